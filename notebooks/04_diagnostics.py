# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Can this answer be trusted? Diagnostics for both engines
#
# A sampler always returns numbers. This notebook is about telling good ones from bad ones, with ArviZ where it has the
# tool and with `alps_ppl` where it hasn't. It looks at three posteriors of one model, side by side:
#
# - *good*: the Gibbs sampler as it comes;
# - *bad*: the paper's plain Gibbs sampler, which on these data doesn't reach the answer in any time you
#   would wait;
# - *svi*: variational inference, for which half of the usual diagnostics mean nothing.
#
# The data are the noisy mixture of the second notebook: nine outputs, nine periods offered, `T=7` and `T=23` twice.
# Set the environment variable `ALPS_NOTEBOOK_QUICK=1` for a shorter run, with coarser results.

# %%
import os
import sys
import warnings
from pathlib import Path

# The model files aren't installed. They lie beside this notebook's folder.
root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "models/noisy_mixture.py").is_file())
sys.path.insert(0, str(root / "models"))
quick = os.environ.get("ALPS_NOTEBOOK_QUICK") == "1"
warnings.filterwarnings("ignore", message="IProgress not found")  # progress bars are off below

# %%
import arviz_plots
import arviz_stats
import jax
import matplotlib.pyplot as plt
import noisy_mixture
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from tinygp import kernels

import alps_ppl as alps
from alps_ppl import plots
from alps_ppl.results.inclusion import log_joint_r_hat

numpyro.enable_x64()  # 64-bit, before any array is made

data = noisy_mixture.data()
model = noisy_mixture.model(data)
t, y = data.train_inputs, data.train_y
lengths = {"num_warmup": 300, "num_samples": 500} if quick else {"num_warmup": 500, "num_samples": 1_000}


def sample(model, y, moves="default"):
    return alps.fit_gibbs(
        model, t, y, rng_key=jax.random.key(0), moves=moves, start="dispersed", progress_bar=False, **lengths
    )


# %%
num_steps = 1_500 if quick else 6_000
svi_fit = alps.fit_svi(
    model, t, y, rng_key=jax.random.key(1), progress_bar=False, **noisy_mixture.SVI | {"num_steps": num_steps}
)
good_fit = sample(model, y)
good, bad, svi = (alps.to_datatree(fit) for fit in (good_fit, sample(model, y, moves="paper"), svi_fit))

# %% [markdown]
# `start="dispersed"` matters. R-hat compares chains, and chains that all start in the same place can agree because none
# of them has gone anywhere.
#
# ## The gates
#
# A gate is 0 or 1, which is awkward for diagnostics: a gate that stays at 1 has no variance and so no R-hat. The
# sampler therefore also keeps the probability with which it drew each gate (`gate_prob` in `sample_stats`). Its mean
# is the reported inclusion probability, so its R-hat and effective sample size (ESS) are the ones to look at.
# `gate_diagnostics` has them, with how often a gate flips per 1,000 draws, and the lowest and the highest of the
# chains' own probabilities. First the good run.

# %%
alps.gate_diagnostics(good).round(3)

# %% [markdown]
# What to look at, in this order: are `lowest` and `highest` alike? Is R-hat below 1.01? Is the ESS in the hundreds or
# more? Do the gates of probability near one half flip? Here all is well. `T=17` is on in every draw with a conditional
# probability of 1. A constant has neither R-hat nor ESS, and NaN there is no alarm.
#
# Now the bad run, same model, same data, same starts.

# %%
alps.gate_diagnostics(bad).round(3)

# %% [markdown]
# For `T=23a` and `T=23b` some chains say 0 and others say 1, and R-hat is above ten. The averages over the chains
# aren't probabilities but counts of chains: with four of them, .25, .5 or .75 from where they happened to end. That is
# the alarm that everybody knows.
#
# In the full run `T=7a` and `T=7b` are worse, because there is no alarm. All four chains happen to have ended with
# `T=7b`, R-hat is 1.000 and the ESS 4,000. By symmetry the right answer is one half for each. Four chains that make
# the same choice look like agreement. What gives them away is `flips`: not one in 4,000 draws, of a gate that has an
# equal twin.
#
# Why? The paper draws $b_j$ given $x_j$ and $H_{:j}$. While gate $j$ is off, these two are draws from the prior. To
# come on, a random wave with random loadings has to fit nine outputs by chance. The default moves integrate $H_{:j}$ or
# $x_j$ out instead, and exchange the latents of a pair.
#
# Would one chain have shown it? Here is the first chain of the bad run alone.

# %%
one_chain = bad.map_over_datasets(lambda dataset: dataset.isel(chain=[0]) if "chain" in dataset.dims else dataset)
alps.inclusion_table(one_chain)[["latent", "probability", "mcse", "r_hat", "ess"]].round(3)

# %% [markdown]
# It looks clean: probabilities near 0 and 1, tiny Monte Carlo errors. R-hat is NaN, since one chain can't tell. Run
# at least four.
#
# ## Rank plots
#
# A rank plot asks whether the draws of all chains are mixed: it ranks all draws together and shows, for each chain,
# the distribution of its ranks less a uniform one. Lines that stay in the grey band are what a good sampler gives. It
# needs a quantity without ties. A gate has two values, and its conditional probability is often 1 to the last digit,
# so neither will do. The loadings $H$ will, once their signs are aligned (more on signs below): while a gate is off,
# its $H$ is a draw from the prior, so a chain whose gate is stuck has other loadings than the rest.

# %%
for tree, name in ((good, "good"), (bad, "bad")):
    aligned = alps.align_signs(tree["posterior"].to_dataset())["H"]
    for output, latent in (("output 1", "T=7a"), ("output 2", "T=17"), ("output 3", "T=23a")):
        tree["posterior"][f"H of {output}, {latent}"] = aligned.sel(output=output, latent=latent, drop=True)
    arviz_plots.plot_rank(
        tree, var_names=["H of"], filter_vars="like", backend="matplotlib", figure_kwargs={"figsize": (11, 2.6)}
    )
    plt.gcf().suptitle(f"{name} run, a colour per chain", fontsize=11, y=1.12)

# %% [markdown]
# In the good run all lines stay in the band. In the bad one, look at `T=23a` on the right: two chains have the high
# ranks and two the low ones. `T=17`, in the middle, is on in all chains, but the scale that its $H$ and $x$ share
# wanders slowly: the paper's sampler has no move for it. `T=7a`, on the left, shows nothing, since all chains have it
# off together.
#
# ## The log joint density
#
# Samplers like NUTS come with an energy plot. A Gibbs sweep has no energy. What it has is the log joint density `lp`
# of each draw, which is the place to see whether chains have settled, and whether they sit in modes of different
# height.

# %%
fig, axes = plt.subplots(1, 2, figsize=(11, 3), sharey=True, layout="constrained")
for ax, (tree, name) in zip(axes, ((good, "good"), (bad, "bad")), strict=True):
    ax.plot(tree["sample_stats"]["lp"].values.T, linewidth=0.5, alpha=0.7)
    ax.set_title(f"{name}: R-hat of the log joint density {log_joint_r_hat(tree):.3f}", fontsize=10, loc="left")
    ax.set_xlabel("draw")
_ = axes[0].set_ylabel("log joint density [nats]")

# %% [markdown]
# The bad run passes! Its chains sit in different modes, but by symmetry the modes are of equal height: `T=7a` with
# `T=23b` is as good as `T=7b` with `T=23a`. So `lp` finds chains that are stuck somewhere *worse*, and not chains that
# are stuck. Look at both, the gates and `lp`.
#
# ## Signs, scales, and what to summarise
#
# $(H_{:j}, x_j)$ and $(-H_{:j}, -x_j)$ are the same signal. Chains choose a sign each, and R-hat of the raw $H$ means
# nothing. `align_signs` gives all draws of a latent one sign. The product $H_{ij} b_j x_j(t)$, the part of latent $j$
# in output $i$, needs no alignment. `T=17` in the good run:

# %%
raw = good["posterior"].to_dataset()
aligned = alps.align_signs(raw)
part = (raw["H"] * raw["b"] * raw["x"].sel(time=10.0)).sel(latent="T=17")
quantities = {
    "raw H": raw["H"].sel(latent="T=17"),
    "aligned H": aligned["H"].sel(latent="T=17"),
    "part at t = 10": part,
}
pd.DataFrame(
    {
        name: {
            "largest R-hat over outputs": float(arviz_stats.rhat(values.drop_vars("time", errors="ignore")).max()),
            "smallest ESS": float(arviz_stats.ess(values.drop_vars("time", errors="ignore")).min()),
        }
        for name, values in quantities.items()
    }
).T.round(3)

# %%
fig, axes = plt.subplots(1, 2, figsize=(11, 3), sharey=True, layout="constrained")
for ax, (name, values) in zip(axes, list(quantities.items())[:2], strict=True):
    ax.plot(values.sel(output="output 2").values.T, linewidth=0.5, alpha=0.8)
    ax.set_title(f"{name}: output 2, T=17, a colour per chain", fontsize=10, loc="left")
    ax.set_xlabel("draw")
_ = axes[0].set_ylabel("H [training sd]")

# %% [markdown]
# ## What these mean for SVI: nothing
#
# `to_datatree` gives an SVI fit as one chain of independent draws from the guide. Their ESS is about their number, and
# would be as good for a fit that is wrong everywhere.

# %%
ess = arviz_stats.ess(svi["posterior"].to_dataset()["H"])
print(
    f"{svi['posterior'].sizes['draw']} draws; the ESS of H's entries: {float(ess.min()):.0f} to {float(ess.max()):.0f}"
)

# %% [markdown]
# For SVI look at three other things. Has the ELBO levelled off at the end, when the temperature is low? Is the gates'
# $\rho$ near 0 or 1, or still on its way? And do different random keys (`num_restarts`) end at the same ELBO of the
# discrete model, `fit.elbo`?

# %%
axes = plots.plot_training(svi_fit)
print(f"ELBO of the discrete model: {svi_fit.elbo:.1f} nats, Monte Carlo error {svi_fit.elbo_mcse:.1f}")

# %%
table = alps.inclusion_table({"svi": svi, "gibbs": good})
table.pivot(index="latent", columns="engine", values="probability")[["svi", "gibbs"]].round(3).T

# %% [markdown]
# This fit has 6,000 of the model file's 10,000 steps, and it shows: of the two `T=7` one has $\rho = 1$ and the other
# about .7. It hasn't finished. With all of them (second notebook) one of the two is off. A gate in the middle, in
# SVI, is first of all a sign of a fit that isn't done.
#
# The best check of SVI is the other engine. Where they differ on single duplicates and agree on the pairs ("at least
# one"), the difference is a choice of SVI's and no error.
#
# ## Posterior predictive checks
#
# All diagnostics so far ask whether the posterior was computed well. Now: does the model fit the data? The usual plot
# first: the distribution of the observed cells against those of data sets drawn from the posterior predictive, both
# engines.

# %%
for tree, name in ((good, "Gibbs"), (svi, "SVI")):
    arviz_plots.plot_ppc_dist(
        tree, num_samples=50, backend="matplotlib", visuals={"title": False}, figure_kwargs={"figsize": (7, 2.6)}
    )
    plt.gca().set_title(f"{name}: observed (black) and replicated cells", fontsize=10, loc="left")
    plt.gca().set_xlabel("y [training sd]")

# %% [markdown]
# Nothing to see, and that is typical: a model that learns a variance for each output gets the distribution of the
# cells right. A check is worth something if it aims at what the model *assumes*. This one assumes that the outputs'
# noises are independent. So take the residuals $y - f$ of each draw, and compute the mean absolute correlation between
# the residuals of two outputs, for the observed data and for the replicated data of the same draw.


# %%
def residual_correlation(tree, draws=200):
    """(observed, replicated): mean absolute correlation of two outputs' residuals, for some of the draws."""
    posterior = tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    chosen = np.linspace(0, posterior.sizes["sample"] - 1, draws).astype(int)
    p = posterior.isel(sample=chosen)
    order = {name: p[name].transpose("sample", *dims).values for name, dims in
             {"H": ("output", "latent"), "b": ("latent",), "x": ("latent", "time")}.items()}  # fmt: skip
    f = np.einsum("soj,sj,sjt->sto", order["H"], order["b"], order["x"])
    replicated = tree["posterior_predictive"].to_dataset()["y"].stack(sample=("chain", "draw")).isel(sample=chosen)
    both = (tree["observed_data"]["y"].values[None], replicated.transpose("sample", "time", "output").values)
    pairs = np.triu_indices(f.shape[-1], 1)
    return [np.array([np.abs(np.corrcoef(r.T)[pairs]).mean() for r in values - f]) for values in both]


own = noisy_mixture.data(independent=True)
own_tree = alps.to_datatree(sample(model, own.train_y))

fig, axes = plt.subplots(1, 2, figsize=(11, 2.8), sharex=True, layout="constrained")
for ax, tree, name in zip(axes, (good, own_tree), ("shared noise", "noise of each output's own"), strict=True):
    observed, replicated = residual_correlation(tree)
    bins = np.linspace(0, 0.8, 81)
    ax.hist(replicated, bins, color="#bbbbbb", label="replicated")
    ax.hist(observed, bins, color=plots.COLOURS["gibbs"], alpha=0.8, label="observed")
    ax.set_title(f"{name}: P(replicated ≥ observed) = {np.mean(replicated >= observed):.2f}", fontsize=10, loc="left")
    ax.set_xlabel("mean absolute correlation of two outputs' residuals")
    ax.set_ylabel("draws")
_ = axes[0].legend(frameon=False)

# %% [markdown]
# Left, the data of this notebook: the residuals of two outputs are strongly correlated, and no replicated data set
# comes near. The model is wrong about the noise, as we know, since it was added before mixing. Right, the same check
# on data with noise of each output's own: nothing wrong. No R-hat could have told.
#
# ## LOO, and its Pareto k
#
# `loo` estimates the expected log density of each cell given all others, by reweighting the draws as if they hadn't
# seen the cell. Pareto $k$ says for each cell whether the reweighting can be trusted. Below 0.7 it can. ArviZ warns
# when it can't. The cell below silences that warning and counts instead.
#
# A drawn path of a latent has seen the cell. `alps.cell_tree` puts y over the observed cells, as ArviZ's functions want
# it, and `integrate_latents=True` takes the paths out: then few parameters are left to reweight. It is for Gibbs draws
# only. SVI's LOO is of drawn paths, and so is a second one of Gibbs, to compare.

# %%
warnings.filterwarnings("ignore", message="Estimated shape parameter")


def loo_of(fit, integrate_latents):
    return arviz_stats.loo(alps.cell_tree(fit, integrate_latents=integrate_latents), pointwise=True)


loo = {
    "Gibbs, paths integrated out": loo_of(good_fit, True),
    "Gibbs, drawn paths": loo_of(good_fit, False),
    "SVI, drawn paths": loo_of(svi_fit, False),
}


def describe(loo):
    k = loo.pareto_k.values
    return {"elpd": loo.elpd, "se": loo.se, "effective parameters": loo.p, "cells": k.size, "k > 0.7": (k > 0.7).sum()}


pd.DataFrame({name: describe(each) for name, each in loo.items()}).T.round(1)

# %%
for name in ("Gibbs, paths integrated out", "SVI, drawn paths"):
    arviz_plots.plot_khat(loo[name], backend="matplotlib", figure_kwargs={"figsize": (9, 2.6)})
    plt.gca().axhline(0.7, color="black", linewidth=0.8)
    plt.gca().set(xlabel="cell, row by row", ylabel="Pareto k", title=name)

# %% [markdown]
# For Gibbs all cells are fine, and both ways agree: a sine wave can't follow a single cell. A rough process can, and
# then drawn paths give too high an estimate (docs/arviz.md). For SVI many cells aren't fine, and its estimate shouldn't
# be quoted. The formula supposes draws from the exact posterior. The guide draws $x$, $H$ and an undecided gate apart
# from one another, and after the reweighting few draws would carry nearly all of the weight. Bad Pareto $k$ say that,
# and usefully so.
#
# Another warning, for Gibbs too: with noise that the outputs share, leaving out one cell leaves its noise in the other
# outputs. The cells aren't the independent witnesses that LOO takes them for. With missing cells, LOO runs over the
# observed ones.
#
# ## What LOO can't tell: forecasts
#
# A cell that LOO leaves out has neighbours on both sides. A forecast has none. Take output 5 alone and a model without
# any period: one smooth process with a lengthscale of 3. LOO and the mean log density of the held-out future, per
# cell:

# %%
i = data.outputs.index("output 5")
smooth = alps.ALPS({"smooth": kernels.ExpSquared(scale=3.0)}, ["output 5"], noise_variance=dist.InverseGamma(2.0, 0.2))
smooth_fit = sample(smooth, y[:, [i]])

future = data.split[:, 0] == "test"
new_t, new_y = data.inputs[future], data.standardised[future]
smooth_density = alps.log_predictive_density(smooth_fit, new_t, new_y[:, [i]])
density = alps.log_predictive_density(good_fit, new_t, new_y)
compared = (loo["Gibbs, paths integrated out"], loo_of(smooth_fit, True))
of_output_5 = np.tile(np.array(data.outputs) == "output 5", len(t))  # cells row by row, none missing
pd.DataFrame(
    {
        "LOO": [float(compared[0].elpd_i[of_output_5].mean()), float(compared[1].elpd_i.mean())],
        "the 50 held-out times": [float(density.sel(output="output 5").mean()), float(smooth_density.mean())],
        "cells with k > 0.7": [int((each.pareto_k > 0.7).sum()) for each in compared],
    },
    ["nine periods, nine outputs", "one smooth process"],
).round(2).rename_axis("log density per cell of output 5 [nats]")

# %%
axes = plots.plot_reconstruction(
    {
        "smooth": alps.predict(smooth_fit, data.inputs),
        "gibbs": alps.predict(good_fit, data.inputs).isel(output=[i]),
    },
    data.standardised[:, [i]],
    held_out=future[:, None],
    input_label="t",
)
_ = axes[0].set_ylabel("[training sd]")

# %% [markdown]
# By LOO, with the paths integrated out in both, the smooth process is a quarter of a nat a cell behind, which is
# respectable for a model without any period: interpolation needs none. In the forecast it is a full nat behind, since
# it falls back to its mean within a few steps. To judge forecasts hold the end of the series out, as `alps.Data(...,
# held_out={"test": ...})` does, and score it with `log_predictive_density`.
#
# ## A list to go through
#
# 1. Four chains or more, from `start="dispersed"`.
# 2. `gate_diagnostics`: chains alike, R-hat of the conditional probability below 1.01, ESS in the hundreds, and flips
#    where the probability isn't near 0 or 1 or where a twin is offered. NaN is a gate that never moved, in all chains.
# 3. R-hat of the log joint density. It finds chains in worse modes, and misses symmetric ones.
# 4. Other quantities: products $H_{ij} b_j x_j$, or aligned $H$. Never the raw $H$.
# 5. SVI: its ELBO, gates in the middle, restarts, and Gibbs. Not R-hat, not ESS.
# 6. A predictive check that aims at an assumption.
# 7. LOO, with the latents integrated out, for interpolation; a held-out end for forecasts.
