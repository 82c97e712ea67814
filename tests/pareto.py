"""How many cells have a Pareto k above .7 in ArviZ's loo, with drawn latents and with latents integrated out.

``python tests/pareto.py`` prints a row for each of ten data sets: 60 times of three outputs, a tenth of the cells
missing, a wave of period 7 and a smooth or a rough latent behind them. With ``--exact`` it fits again without each of
the four cells at which the two differ most, of the fourth rough data set.
"""

import sys
import warnings

import arviz_stats
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from tinygp import kernels

import alps_ppl as alps

LATENTS = {"smooth": kernels.ExpSquared(scale=6.0), "rough": kernels.Exp(scale=2.0)}


def problem(kind, seed):
    """The model, times and y."""
    rng = np.random.default_rng(seed)
    t = np.arange(60.0)
    path = np.linalg.cholesky(LATENTS[kind](t, t) + 1e-9 * np.eye(60)) @ rng.normal(size=60)
    f = np.stack([np.sin(2 * np.pi * t / 7), path], 1) @ rng.normal(size=(2, 3))
    y = np.where(rng.uniform(size=f.shape) < 0.1, np.nan, f + 0.3 * rng.normal(size=f.shape))
    latents = {f"T={period:g}": alps.linear_periodic(period) for period in (5.0, 7.0)} | LATENTS
    return alps.ALPS(latents, 3, noise_variance=dist.InverseGamma(2.0, 0.1)), t, y


def main():
    """The table, of 4 chains of 1,000 draws each."""
    warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto")
    print("truth   seed cells  k > .7: drawn integrated  largest: drawn integrated  elpd: drawn integrated")
    for kind in LATENTS:
        for seed in range(5):
            fit = alps.fit_gibbs(*problem(kind, seed), rng_key=jax.random.key(seed), progress_bar=False)
            found = [arviz_stats.loo(alps.cell_tree(fit, integrate_latents=i), pointwise=True) for i in (False, True)]
            k = [one.pareto_k.values for one in found]
            print(
                f"{kind:8}{seed:4}{len(k[0]):6}{(k[0] > 0.7).sum():15}{(k[1] > 0.7).sum():11}{k[0].max():16.2f}"
                f"{k[1].max():11.2f}{found[0].elpd:13.1f}{found[1].elpd:11.1f}",
                flush=True,
            )


def exact():
    """Log p(y_c | all other cells) by either and by a refit."""
    warnings.filterwarnings("ignore", "Estimated shape parameter of Pareto")
    fit = alps.fit_gibbs(*problem("rough", 3), rng_key=jax.random.key(3), progress_bar=False)
    found = [arviz_stats.loo(alps.cell_tree(fit, integrate_latents=i), pointwise=True) for i in (False, True)]
    drawn, integrated = (one.elpd_i.values for one in found)
    wrapper = alps.ArvizWrapper(fit, tree=alps.cell_tree(fit, num_draws=2), rng_key=jax.random.key(9))
    for cell in np.argsort(integrated - drawn)[:4]:
        left, excluded = wrapper.sel_observations(np.array([cell]))
        density = wrapper.log_likelihood__i(excluded, wrapper.get_inference_data(wrapper.sample(left)))
        refit = np.log(np.exp(density.values).mean())
        print(f"cell {cell}: drawn {drawn[cell]:.2f}, integrated {integrated[cell]:.2f}, refit {refit:.2f}", flush=True)


if __name__ == "__main__":
    numpyro.enable_x64()
    exact() if sys.argv[1:] == ["--exact"] else main()
