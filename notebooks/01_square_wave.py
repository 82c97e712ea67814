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
# # Which harmonics make up a square wave?
#
# This is the first experiment of the GP-ALPS paper (section 4.1), done with `alps_ppl`. You should know NumPyro a
# little. You needn't know Gaussian processes: here, each one is just a sine wave of a known frequency and an unknown
# amplitude and phase.
#
# The plan: look at the data, write the model, fit it twice (by variational inference and by Gibbs sampling), and ask
# whether the two agree. A probability that nobody checked is worth little.
#
# The model and the data come from `models/square_wave.py`, the file that the command line runs too. Set the
# environment variable `ALPS_NOTEBOOK_QUICK=1` for a shorter run, with coarser results.

# %%
import os
import sys
import warnings
from pathlib import Path

# The model files aren't installed. They lie beside this notebook's folder.
root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "models/square_wave.py").is_file())
sys.path.insert(0, str(root / "models"))
quick = os.environ.get("ALPS_NOTEBOOK_QUICK") == "1"
warnings.filterwarnings("ignore", message="IProgress not found")  # progress bars are off below

# %%
import arviz_plots
import arviz_stats
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pandas as pd
import square_wave
from arviz_base import extract
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.util import format_shapes

import alps_ppl as alps
from alps_ppl import plots

numpyro.enable_x64()  # 64-bit, before any array is made
prior_key, svi_key, gibbs_key = jax.random.split(jax.random.key(0), 3)

# %% [markdown]
# ## The question and the data
#
# The data are 100 seconds of a square wave of frequency $f = 0.05$ Hz, so five periods, read twice a second. The wave
# has no unit. Fourier says what it is made of: odd harmonics only, and the $k$-th has the amplitude $4 / (\pi k)$.
# The even harmonics are missing. The periodogram on the right shows it.

# %%
data = square_wave.data()
t, y = data.train_inputs, data.train_y  # (time,) and (time, output): rows are times, columns are outputs

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained", width_ratios=(3, 2))
left.plot(t, data.y[:, 0], ".", markersize=3, color="#444444")
left.set(xlabel=data.input_label, ylabel=data.outputs[0])
amplitude = 2 * np.abs(np.fft.rfft(y[:, 0])) / len(t)
right.stem(np.fft.rfftfreq(len(t), t[1] - t[0]), amplitude, basefmt=" ", linefmt="#444444", markerfmt=".")
right.set(xlabel="frequency [Hz]", ylabel="amplitude", xlim=(0, 0.43), xticks=square_wave.FREQUENCY * np.arange(1, 9))
right.tick_params(axis="x", labelsize=8)

# %% [markdown]
# We pretend not to know Fourier. We offer the model the first eight harmonics and ask which of them are there.
#
# ## The model is an ordinary NumPyro program
#
# Harmonic $j$ is a latent process $x_j$ with the covariance $\cos(2\pi j f\,(t - t'))$: a random sine wave of
# frequency $jf$. A gate $b_j \in \{0, 1\}$ switches it on or off, and a loading $H_{j}$ scales it:
#
# $$x_j \sim \mathrm{GP}(0, k_j), \quad b_j \sim \mathrm{Bernoulli}(\tfrac12), \quad H_j \sim \mathcal{N}(0, 1), \quad
# y(t) \sim \mathcal{N}\Big(\sum_j H_j b_j x_j(t),\; \sigma^2\Big).$$
#
# The noise sd is fixed at $\sigma = 0.2$. The data hold no noise, but harmonics above the eighth aren't offered, and
# $\sigma$ stands for what they leave over.
#
# An `alps.ALPS` is called like any NumPyro model, so NumPyro's handlers and tools work on it. Here are its sites.

# %%
model = square_wave.model(data)
trace = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace(t)
print(format_shapes(trace))

# %% [markdown]
# `Predictive` draws from the prior. Each draw below is a sum of the harmonics that its gates switched on.

# %%
prior = Predictive(model, num_samples=3)(prior_key, t)

fig, axes = plt.subplots(3, 1, figsize=(8, 5), sharex=True, layout="constrained")
for ax, f, b in zip(axes, prior["f"], prior["b"], strict=True):
    ax.plot(t, f[:, 0], color="#7f7f7f")
    ax.set_title("on: " + ", ".join(np.array(model.latents)[b == 1]), fontsize=10, loc="left")
axes[1].set_ylabel("f(t), a draw from the prior")
_ = axes[-1].set_xlabel(data.input_label)

# %% [markdown]
# ## Engine one: stochastic variational inference
#
# `fit_svi` relaxes the gates to numbers between 0 and 1, and fits a structured mean-field guide with ten inducing
# inputs. A temperature controls how sharp the relaxed gates are. It rises and falls once, late in the run, so that
# gates that closed too early get a second chance. ELBOs at different temperatures can't be compared.

# %%
svi_settings = square_wave.SVI | ({"num_steps": 2_000} if quick else {})
svi = alps.fit_svi(model, t, y, rng_key=svi_key, progress_bar=False, **svi_settings)
axes = plots.plot_training(svi)

# %% [markdown]
# `svi.inclusion_prob` is the answer: $\rho_j$, the probability under the guide that gate $j$ is on.

# %%
pd.Series(svi.inclusion_prob, model.latents, name="SVI").round(3).to_frame().T

# %% [markdown]
# ## Engine two: Gibbs sampling
#
# The guide is an approximation, so we check it. `alps.fit_gibbs` samples the same program, with gates that are exactly
# 0 or 1. Its draws come from the exact posterior in the limit. All chains run as one batch. (For those who want
# NumPyro's own `MCMC`, `alps.ALPSGibbs` is the same sampler as a kernel.) Here are the sites and the shapes of their
# draws.

# %%
gibbs_settings = square_wave.GIBBS | ({"num_warmup": 200, "num_samples": 300} if quick else {})
gibbs = alps.fit_gibbs(model, t, y, rng_key=gibbs_key, progress_bar=False, **gibbs_settings)
{site: draws.shape for site, draws in gibbs.samples.items()}

# %% [markdown]
# ## Both in the same form
#
# `to_datatree` turns either fit into an ArviZ tree with named coordinates. SVI counts as one chain of independent
# draws from the guide.

# %%
trees = {"svi": alps.to_datatree(svi), "gibbs": alps.to_datatree(gibbs)}
print(*trees["gibbs"].children, sep=", ")
trees["gibbs"]["posterior"]["b"].sel(latent="2 f").to_series().groupby("chain").agg(["mean", "size"]).round(3)

# %% [markdown]
# `inclusion_table` puts the engines side by side. `mcse` is the Monte Carlo standard error of a Gibbs probability;
# R-hat and the effective sample size `ess` are those of the gate. They have no meaning for SVI. A gate that never moved
# has no effective sample size either.

# %%
table = alps.inclusion_table(trees)
diagnostics = table[table.engine == "gibbs"].set_index("latent")[["mcse", "r_hat", "ess"]]
table.pivot(index="latent", columns="engine", values="probability")[["svi", "gibbs"]].join(diagnostics).round(4)

# %%
ax = plots.plot_inclusion(table)

# %% [markdown]
# Both engines switch the odd harmonics on and the even ones off, each against a prior of one half.
#
# `predict` gives the posterior predictive of the output, the gates' uncertainty included.

# %%
predictions = {"svi": alps.predict(svi, t), "gibbs": alps.predict(gibbs, t)}
axes = plots.plot_reconstruction(predictions, y, input_label=data.input_label)
_ = axes[0].set_ylabel("y(t)")

# %% [markdown]
# The curve is the start of the Fourier series: four harmonics, with the ripples that come from stopping there. Are the
# amplitudes Fourier's $4 / (\pi k)$ too? The part of harmonic $j$ in the curve is $H_j b_j x_j(t)$. It is a sine wave,
# so its amplitude is $\sqrt 2$ times its root mean square over time. Here is the mean over the draws.

# %%
amplitudes = pd.DataFrame({"Fourier": [4 / (np.pi * k) if k % 2 else 0.0 for k in range(1, 9)]}, list(model.latents))
for engine, tree in trees.items():
    posterior = tree["posterior"]
    posterior["part"] = (posterior["H"] * posterior["b"] * posterior["x"]).isel(output=0, drop=True)
    amplitudes[engine] = np.sqrt(2 * (posterior["part"] ** 2).mean("time")).mean(("chain", "draw")).values
amplitudes.round(3)

# %% [markdown]
# ## ArviZ on the trees
#
# The trees are plain ArviZ trees, so its diagnostics work on them. Two things to know first.
#
# - *Some gates never move.* A gate that is on in every draw is a constant, and R-hat of a constant is undefined. Leave
#   such gates out.
# - *Signs and scales aren't identified by the data.* $(H_j, x_j)$ and $(c H_j, x_j / c)$ are the same signal for every
#   $c \neq 0$. Chains may differ in the sign, and only the priors hold the scale, so it may wander slowly. R-hat of the
#   raw $H$ means nothing. Look at the product $H_j b_j x_j$. Where you want $H$ itself, `alps.align_signs` turns all
#   draws the same way.

# %%
gates = trees["gibbs"]["posterior"]["b"]
moving = [name for name in model.latents if gates.sel(latent=name).std() > 0]
columns = ["mean", "sd", "ess_bulk", "r_hat", "mcse_mean"]
arviz_stats.summary(trees["gibbs"], var_names=["b"], coords={"latent": moving}, round_to=3)[columns]

# %% [markdown]
# The parts $H_j b_j x_j$ at one time, $t = 5$ s, in the middle of the first plateau:

# %%
arviz_stats.summary(trees["gibbs"], var_names=["part"], coords={"time": [5.0]}, round_to=3)[columns]

# %% [markdown]
# The trace of the log joint density `lp` shows whether the chains have settled.

# %%
arviz_plots.plot_trace(
    trees["gibbs"],
    group="sample_stats",
    var_names=["lp"],
    backend="matplotlib",
    visuals={"trace": {"alpha": 0.6, "width": 0.6}},
    figure_kwargs={"figsize": (9, 3)},
)
_ = plt.gca().set(xlabel="draw", ylabel="log joint density [nats]", title="Gibbs, a colour per chain")

# %% [markdown]
# A forest plot puts the engines side by side, with the same parts at $t = 5$ s. The runs have different numbers of
# chains, so `extract` first takes as many draws from each.

# %%
parts = {
    engine: extract(tree, var_names=["part"], num_samples=1000, random_seed=0, keep_dataset=True)
    .sel(time=5.0, drop=True)
    .drop_vars(["sample", "chain", "draw"])
    for engine, tree in trees.items()
}
collection = arviz_plots.plot_forest(
    parts,
    sample_dims=["sample"],
    labels=["latent"],
    color=[plots.COLOURS[engine] for engine in parts],
    backend="matplotlib",
    visuals={"point_estimate": {"size": 12}},
    figure_kwargs={"figsize": (9, 4.5)},
)
collection.add_legend("model", loc="outside upper center", ncols=2, frameon=False)
names, forest = plt.gcf().axes
names.set_axis_off()
_ = forest.set_xlabel("part of the curve at t = 5 s")

# %% [markdown]
# `arviz_stats.loo` estimates how well each reading would be predicted from the others, by reweighting draws as if they
# hadn't seen it. A drawn path of $x$ has seen it. So `alps.cell_tree` with `integrate_latents=True` takes the paths out
# first: it has each reading's density given the others, $H$ and the gates. A Pareto $k$ in the class "good" says that
# the estimate can be trusted at that reading. (docs/arviz.md has all calls.)

# %%
arviz_stats.loo(alps.cell_tree(gibbs, integrate_latents=True))

# %% [markdown]
# ## What the two engines agree on
#
# They agree on the answer: harmonics 1, 3, 5 and 7 make up the wave, and 2, 4, 6 and 8 don't. They agree on the curve,
# on its interval, and on how much each harmonic contributes, which is what Fourier says to within 0.02. They don't
# agree to the last digit on how sure to be: SVI is a little less sure of the seventh harmonic, and surer that the even
# ones are absent. Its guide is an approximation, fitted by noisy gradients, and a shorter run leaves it more undecided.
# Had we had SVI alone, we would have had the right harmonics, but no way to tell which part of its doubt is the data's
# and which its own.
