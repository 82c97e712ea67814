"""Calls of arviz-stats and arviz-plots by name, functions of what ``test_arviz.py`` makes, and those without a use.

``docs/arviz.md`` says of each what it is good for, or why it has none.
"""

import arviz_plots as P
import arviz_stats as S

H, NOISE = {"var_names": ["H"]}, {"var_names": ["noise_variance"]}

CALLS = {
    # arviz-stats, of the posterior
    "summary": lambda a: S.summary(a.tree, **H),
    "diagnose": lambda a: S.diagnose(a.tree, **H, show_diagnostics=False, return_diagnostics=True),
    "rhat": lambda a: S.rhat(a.tree, **H),
    "rhat_nested": lambda a: S.rhat_nested(a.tree, **H, superchain_ids=[0, 1]),
    "ess": lambda a: S.ess(a.tree, **H),
    "mcse": lambda a: S.mcse(a.tree, **H),
    "thin": lambda a: S.thin(a.tree, **NOISE, factor=2),
    "mean": lambda a: S.mean(a.tree, **NOISE),
    "median": lambda a: S.median(a.tree, **NOISE),
    "mode": lambda a: S.mode(a.tree, **NOISE),
    "std": lambda a: S.std(a.tree, **NOISE),
    "var": lambda a: S.var(a.tree, **NOISE),
    "mad": lambda a: S.mad(a.tree, **NOISE),
    "iqr": lambda a: S.iqr(a.tree, **NOISE),
    "eti": lambda a: S.eti(a.tree, **NOISE),
    "hdi": lambda a: S.hdi(a.tree, **NOISE),
    "ecdf": lambda a: S.ecdf(a.tree["posterior"].dataset, **NOISE),
    "kde": lambda a: S.kde(a.tree, **NOISE),
    "kde2d": lambda a: S.kde2d(a.v[0], a.v[1]),
    "histogram": lambda a: S.histogram(a.tree, **NOISE),
    "histogram2d": lambda a: S.histogram2d(*a.v.values[:2, 0]),
    "hexbin": lambda a: S.hexbin(*a.v.values[:2, 0]),
    "qds": lambda a: S.qds(a.tree, **NOISE),
    "ci_in_rope": lambda a: S.ci_in_rope(a.tree, rope=(0.0, 0.2), **NOISE),
    "kl_divergence": lambda a: S.kl_divergence(a.tree, a.left, **NOISE, num_samples=50),
    "wasserstein": lambda a: S.wasserstein(a.tree, a.left, **NOISE, num_samples=50),
    # of the prior
    "bayes_factor": lambda a: S.bayes_factor(a.u, var_names="noise_variance", ref_vals=0.15),
    "psense": lambda a: S.psense(a.tree, **NOISE),
    "psense_summary": lambda a: S.psense_summary(a.tree, **NOISE),
    # of y
    "get_log_likelihood": lambda a: S.get_log_likelihood(a.tree),
    "loo": lambda a: S.loo(a.left),
    "loo_i": lambda a: S.loo_i(0, a.left),
    "loo_pit": lambda a: S.loo_pit(a.left),
    "loo_expectations": lambda a: S.loo_expectations(a.left)[0],
    "loo_metrics": lambda a: S.loo_metrics(a.left),
    "loo_score": lambda a: S.loo_score(a.left),
    "loo_r2": lambda a: S.loo_r2(a.left, var_name="y", n_simulations=50),
    "loo_influence": lambda a: S.loo_influence(a.left)[0],
    "loo_subsample": lambda a: S.loo_subsample(a.left, observations=8),
    "update_subsample": lambda a: S.update_subsample(
        S.loo_subsample(a.left, observations=6, pointwise=True), a.left, observations=4
    ),
    "compare": lambda a: S.compare({"all": a.tree, "the same": a.left}),
    "weight_predictions": lambda a: S.weight_predictions([a.tree, a.left], weights=[0.3, 0.7]),
    "metrics": lambda a: S.metrics(a.tree),
    "bayesian_r2": lambda a: S.bayesian_r2(a.u, pred_mean="f", scale="noise_scale"),
    "residual_r2": lambda a: S.residual_r2(a.u, pred_mean="f", obs_name="y"),
    # by refits
    "loo_kfold": lambda a: S.loo_kfold(a.wrapper.idata_orig, a.wrapper, k=2),
    "reloo": lambda a: S.reloo(a.wrapper, k_threshold=0.3),
    "lfo_cv": lambda a: S.lfo_cv(a.wrapper.idata_orig, a.wrapper, 12, 1, time_dim="cell"),
    # arviz-plots, of the posterior
    "plot_autocorr": lambda a: P.plot_autocorr(a.tree, **NOISE),
    "plot_convergence_dist": lambda a: P.plot_convergence_dist(a.tree, **H),
    "plot_dgof": lambda a: P.plot_dgof(a.tree, **NOISE),
    "plot_dgof_dist": lambda a: P.plot_dgof_dist(a.tree, **NOISE),
    "plot_dist": lambda a: P.plot_dist(a.tree, **NOISE),
    "plot_ess": lambda a: P.plot_ess(a.tree, **NOISE),
    "plot_ess_evolution": lambda a: P.plot_ess_evolution(a.tree, **NOISE),
    "plot_forest": lambda a: P.plot_forest(a.tree, **H),
    "plot_mcse": lambda a: P.plot_mcse(a.tree, **NOISE),
    "plot_pair": lambda a: P.plot_pair(a.tree, **NOISE),
    "plot_pair_focus": lambda a: P.plot_pair_focus(a.u, focus_var="noise_variance", **H),
    "plot_parallel": lambda a: P.plot_parallel(a.tree, **H),
    "plot_rank": lambda a: P.plot_rank(a.tree, **NOISE),
    "plot_rank_dist": lambda a: P.plot_rank_dist(a.tree, **NOISE, compact=False),
    "plot_ridge": lambda a: P.plot_ridge(a.tree, **H),
    "plot_trace": lambda a: P.plot_trace(a.tree, **NOISE),
    "plot_trace_dist": lambda a: P.plot_trace_dist(a.tree, **NOISE, compact=False),
    "combine_plots": lambda a: P.combine_plots(a.tree, [(P.plot_trace, {}), (P.plot_rank, {})], **NOISE),
    # of the prior
    "plot_bf": lambda a: P.plot_bf(a.u, var_names="noise_variance", ref_val=0.15),
    "plot_prior_posterior": lambda a: P.plot_prior_posterior(a.tree, **NOISE),
    "plot_psense_dist": lambda a: P.plot_psense_dist(a.tree, **NOISE),
    "plot_psense_quantities": lambda a: P.plot_psense_quantities(a.tree, **NOISE),
    # of y
    "plot_compare": lambda a: P.plot_compare(S.compare({"all": a.tree, "the same": a.left})),
    "plot_khat": lambda a: P.plot_khat(S.loo(a.left, pointwise=True)),
    "plot_lm": lambda a: P.plot_lm(a.u, x="cell_time", y="y"),
    "plot_loo_interval": lambda a: P.plot_loo_interval(a.left),
    "plot_loo_pit": lambda a: P.plot_loo_pit(a.left),
    "plot_ppc_dist": lambda a: P.plot_ppc_dist(a.tree),
    "plot_ppc_dist_pit": lambda a: P.plot_ppc_dist_pit(a.tree),
    "plot_ppc_interval": lambda a: P.plot_ppc_interval(a.tree),
    "plot_ppc_pit": lambda a: P.plot_ppc_pit(a.tree),
    "plot_ppc_tstat": lambda a: P.plot_ppc_tstat(a.tree, t_stat="std"),
    # of a calibration
    "plot_ecdf_pit": lambda a: P.plot_ecdf_pit(a.ranks),
    "plot_ppc_pava": lambda a: P.plot_ppc_pava(a.ranks, data_type="binary"),
    "plot_ppc_pava_residuals": lambda a: P.plot_ppc_pava_residuals(a.ranks, x_var="prob", data_type="binary"),
}
NOT_HERE = [
    "add_bands", "add_lines", "bfmi", "generate_survival_curves", "get_function", "kaplan_meier",
    "loo_approximate_posterior", "loo_moment_match", "plot_energy", "plot_loo_pava", "plot_ppc_censored",
    "plot_ppc_rootogram",
]  # fmt: skip
