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
# # Which columns set Boston's house prices, and how good is the paper's choice?
#
# This is the third experiment of the GP-ALPS paper (section 4.3 and appendix A). There is one output, the median house
# price of 506 neighbourhoods, and there are thirteen columns that might explain it. Each column gets a latent process
# with a gate, so that selecting latents is selecting columns. The paper selects four, `chas`, `rm`, `ptratio` and
# `lstat`, and says that they rank within the best 0.05 % of all $2^{13} = 8192$ subsets.
#
# We do three things: repeat the selection, rank it among all 8,192 subsets, and ask the Gibbs sampler whether it is the
# posterior's. The answer is less flattering than the paper's, and depends on choices that the paper doesn't state.
#
# The model and the data come from `models/boston_housing.py`, and the ranking from `experiments/subsets.py`. Set the
# environment variable `ALPS_NOTEBOOK_QUICK=1` for a shorter run: nine columns instead of thirteen, and coarser results.

# %%
import os
import sys
import warnings
from pathlib import Path

# Neither `models` nor `experiments` is installed. They lie beside this notebook's folder.
root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "models/boston_housing.py").is_file())
sys.path.insert(0, str(root))
quick = os.environ.get("ALPS_NOTEBOOK_QUICK") == "1"
warnings.filterwarnings("ignore", message="IProgress not found")  # progress bars are off below

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pandas as pd
from sklearn.kernel_ridge import KernelRidge

import alps_ppl as alps
from alps_ppl import plots
from experiments import subsets
from models import boston_housing

numpyro.enable_x64()  # 64-bit, before any array is made
svi_key, gibbs_key = jax.random.key(0), jax.random.key(1)

# %% [markdown]
# ## The data
#
# Reading the file prints a note, which is there for a reason.

# %%
table = boston_housing.table()
table.describe().loc[["mean", "std", "min", "max"]].T.round(2)

# %% [markdown]
# `medv` is the output, in 1000 dollars. Of the others the four that matter most below are `rm`, the mean number of
# rooms, `lstat`, the per cent of the population of lower status, `ptratio`, pupils per teacher, and `chas`, 1 at the
# Charles river and else 0.
#
# Look at the ranges. Every latent is a Gaussian process with an RBF covariance of lengthscale 1 *on its raw column*, so
# these ranges decide what a latent can do. One room is much, one dollar of `tax` isn't.

# %%
data = boston_housing.data()
model = boston_housing.model(data)
t, y = data.train_inputs, data.train_y

fig, axes = plt.subplots(1, 4, figsize=(12, 3), sharey=True, layout="constrained")
for name, ax in zip(("rm", "lstat", "tax", "nox"), axes, strict=True):
    ax.plot(table[name], table["medv"], ".", markersize=3, color="#777777")
    x = np.linspace(table[name].min(), table[name].max(), 2_000)
    ax.plot(x, 50 * np.exp(-0.5 * (x - x.mean()) ** 2), color="#d6604d", linewidth=1)
    ax.set_xlabel(name)
axes[0].set_ylabel("medv [1000 dollars]")
_ = fig.suptitle("Grey: the price. Red: the covariance with the middle of the range (any scale)", fontsize=11)

# %% [markdown]
# On `rm` and `lstat` the covariance makes smooth curves. On `tax` it is a spike: two values of `tax` that differ by a
# few dollars have nothing to do with each other, and the latent is a table with an entry for each value. On `nox` it
# is flat: that latent can do little more than be linear. Standardised columns would all be alike, but it is the raw
# ones that give the paper's selection.
#
# ## The paper's reading
#
# The paper states neither split, scaling nor noise. This is the reading that selects its four: 404 training rows of a
# random split, raw columns, the price standardised, and a fixed noise variance of 0.2. Each gate is on with prior
# probability one half. The paper has 100 inducing inputs per latent and the model file 5,000 steps. Here it is 30 and
# 3,000, to save minutes.

# %%
svi_settings = boston_housing.SVI | {"num_inducing": 30, "num_steps": 3_000}
svi_settings |= {"num_inducing": 10, "num_steps": 1_000} if quick else {}
svi = alps.fit_svi(model, t, y, rng_key=svi_key, progress_bar=False, **svi_settings)
ax = plots.plot_inclusion(alps.inclusion_table(svi))

# %%
selected = [name for name, probability in zip(model.latents, svi.inclusion_prob, strict=True) if probability > 0.5]
print("SVI selects:", *selected)
print("the paper:  ", *subsets.PAPER)

# %% [markdown]
# These are the paper's four. (The quick run is too short to be sure of anything.) `rm` and `lstat` are certain and
# `ptratio` nearly so. `chas` isn't: on other splits it is sometimes off (docs/claims.md).
#
# ## How good is the prediction?
#
# `predict` averages over the gates. Beside it are what the paper compares with: kernel ridge regression on the selected
# columns and on all, a Gaussian process with a learnt weighted sum of the same RBFs, and the lasso. "Kernel ridge"
# can be read in two ways. *Additive* adds the columns' RBFs, as GP-ALPS does. *Joint* is scikit-learn's `KernelRidge`
# with one RBF on all chosen columns together.

# %%
prediction = data.to_units(alps.predict(svi, data.inputs, num_draws=200))
row = {
    "svi": [
        {
            "on": selected,
            "averaged": subsets.score(data, prediction["mean"].values, prediction["sd"].values),
            "refit": subsets.refits(data, selected),
        }
    ],
    "baselines": {name: subsets.score(data, *pair) for name, pair in boston_housing.baselines(data).items()},
    "paper's four": subsets.refits(data, subsets.PAPER),
}
joint_on_all = subsets.refits(data, subsets.COLUMNS)["joint 1"]
rmse = {
    "GP-ALPS, SVI": row["svi"][0]["averaged"],
    "additive ridge on its selection": row["svi"][0]["refit"]["additive 0.2"],
    "additive ridge on the paper's four": row["paper's four"]["additive 0.2"],
    "additive ridge on all": row["baselines"]["ridge on all, additive"],
    "joint ridge on its selection": row["svi"][0]["refit"]["joint 1"],
    "joint ridge on the paper's four": row["paper's four"]["joint 1"],
    "joint ridge on all": joint_on_all,
    "GP, learnt weighted sum": row["baselines"]["weighted sum of RBFs"],
    "lasso": row["baselines"]["lasso"],
}
pd.Series({name: score["rmse"] for name, score in rmse.items()}, name="test RMSE [1000 dollars]").round(2).to_frame()

# %%
held_out = np.asarray(data.split == "test")
axes = plots.plot_predicted({"svi": prediction}, data.y, held_out=held_out, units=data.units)

# %% [markdown]
# Every score is in 1000 dollars, on the 102 held-out rows. Among the additive models the selection isn't the best:
# ridge on all columns is better, and the Gaussian process with learnt weights is better by more. In the joint reading
# it is the other way round. With all thirteen raw columns in one RBF every row is far from every other, the prediction
# is the mean, and nearly any small set of columns beats that. The lasso, which is linear, lies in between.
#
# ## All 8,192 subsets
#
# Additive kernel ridge on every subset of the columns takes half a minute, since all subsets share one Gram matrix of
# features. (The quick run takes the $2^9$ subsets of nine columns.)

# %%
some = ["crim", "chas", "nox", "rm", "dis", "tax", "ptratio", "b", "lstat"] if quick else subsets.COLUMNS
places = [subsets.COLUMNS.index(name) for name in some]
ranked = alps.Data(data.inputs[:, places], data.y, held_out={"test": held_out})
ranks = {"additive 0.2": subsets.subset_rmses(ranked, "additive 0.2")}
row = subsets.rank(row, ranks)
axes = subsets.plot(ranks, row)

# %%
best = int(ranks["additive 0.2"].argmin())
four = row["paper's four"]["additive 0.2"]["rank"]["additive 0.2"]
count = len(ranks["additive 0.2"])
print("the best subset:", *(name for k, name in enumerate(some) if best >> k & 1))
print(f"the paper's four: rank {four:,} of {count:,}, the best {four / count:.1%}")

# %% [markdown]
# So the selection is a good subset in this reading, and far from the best 0.05 %, which would be the best four of
# 8,192. The best subset has six columns: it adds `nox` and `dis` to the four. What the paper reports can't be this
# reading of kernel ridge.
#
# In the joint reading a subset costs a Cholesky factorisation, and all of them take minutes. A random sample is enough
# to see where the four stand.

# %%
sample = np.random.default_rng(0).choice(np.arange(1, 2**13), 50 if quick else 400, replace=False)
observed = data.y[held_out[:, 0], 0]
joint = np.empty(len(sample))
for number, subset in enumerate(sample):
    chosen = np.flatnonzero(subset >> np.arange(13) & 1)
    ridge = KernelRidge(kernel="rbf", gamma=0.5, alpha=1.0).fit(t[:, chosen], y[:, 0])
    error = data.loc + data.scale * ridge.predict(data.inputs[held_out[:, 0]][:, chosen]) - observed
    joint[number] = np.sqrt(np.mean(error**2))
four_joint = row["paper's four"]["joint 1"]["rmse"]

fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
ax.hist(joint, 60, color="#c8c8c8")
ax.axvline(four_joint, color="#d6604d", label=f"the paper's four, {four_joint:.2f}")
ax.axvline(joint_on_all["rmse"], color="#1b7837", linestyle="--", label=f"all columns, {joint_on_all['rmse']:.2f}")
ax.set(xlabel="test RMSE [1000 dollars]", ylabel=f"of {len(sample)} subsets")
ax.set_title("Kernel ridge with one RBF on the columns jointly, alpha = 1", fontsize=10, loc="left")
_ = ax.legend(frameon=False)
print(f"better than the paper's four: {np.mean(joint < four_joint):.1%} of {len(sample)} random subsets")

# %% [markdown]
# Nearly all random subsets are worse than the four here, since most of them have a column such as `tax` whose raw
# range spoils a joint RBF. A sample of this size can't resolve 0.05 %. The figure `docs/boston_subsets.png` has all
# 8,192 of both readings: there the selection is among the first few dozen joint models.
#
# ## What the exact posterior says
#
# The Gibbs sampler, on the same model. Raw columns need many features, so a sweep costs a hundred times as much as on
# the square wave. Two chains and some dozens of sweeps tell the clear cases, not the second decimal.

# %%
gibbs_settings = {"num_warmup": 50, "num_samples": 100, "num_chains": 2}
gibbs_settings |= {"num_warmup": 10, "num_samples": 20} if quick else {}
gibbs = alps.fit_gibbs(model, t, y, rng_key=gibbs_key, progress_bar=False, **boston_housing.GIBBS | gibbs_settings)
inclusion = alps.inclusion_table({"svi": svi, "gibbs": gibbs})
ax = plots.plot_inclusion(inclusion)

# %%
alps.gate_diagnostics(gibbs).round(2)

# %% [markdown]
# The engines agree on `rm`, `lstat` and `ptratio`, and on `chas` not being certain. They disagree on three columns.
# `crim`, `nox` and `dis` are in with probability near 1 in both chains, although each chain started elsewhere, and SVI
# has all of them out. It isn't a local optimum: SVI's bound is lower with Gibbs's columns held open than with its own
# (docs/claims.md). The guide takes $x_j$ and $H_j$ to be independent, and also columns that share what they explain,
# and pays for each that is on. Two short chains don't settle `tax` and `rad`, and needn't.
#
# Does it matter? The Gibbs sampler's prediction, and ridge on the columns that it has above one half:

# %%
gibbs_selected = list(inclusion.query("engine == 'gibbs' and probability > 0.5").latent)
gibbs_prediction = data.to_units(alps.predict(gibbs, data.inputs, num_draws=200))
found = {
    "GP-ALPS, Gibbs": subsets.score(data, gibbs_prediction["mean"].values, gibbs_prediction["sd"].values),
    "additive ridge on its selection": subsets.refits(data, gibbs_selected)["additive 0.2"],
    "GP-ALPS, SVI": rmse["GP-ALPS, SVI"],
    "additive ridge on SVI's selection": rmse["additive ridge on its selection"],
}
print("Gibbs selects:", *gibbs_selected)
ranked_scores = subsets.rank({name: dict(score) for name, score in found.items()}, ranks)
pd.DataFrame(
    {
        "test RMSE [1000 dollars]": {name: score["rmse"] for name, score in found.items()},
        "minus log density per row [price in training sds]": {name: score["nlpd"] for name, score in found.items()},
        f"rank among {count:,}": {name: score["rank"]["additive 0.2"] for name, score in ranked_scores.items()},
    }
).round(2)

# %% [markdown]
# It does. The exact posterior's prediction, of the same model on the same data, is among the best half per cent of the
# 8,192, where SVI's is among the best 15 %. Ridge on the selected columns is worse than the average, which weighs each
# column by what the data say of its $H$.
#
# ## What is left of the paper's claim
#
# - *The selection.* SVI does select the paper's four columns, under one reading of what the paper leaves open, on
#   most splits with 50 inducing inputs; with the paper's 100 `chas` and `crim` come and go (docs/claims.md).
# - *The rank.* Near the top if kernel ridge is one RBF on all chosen columns jointly, where most competitors are spoilt
#   by one raw column of large range. Not if the columns' RBFs are added, as in GP-ALPS itself: then the four are
#   about the best 15 % on this split.
# - *The comparison.* Better than the lasso, and than joint ridge on all columns. Worse, on this split,
#   than additive ridge on all columns, and on every split than a Gaussian process with learnt weights.
# - *The model.* The exact posterior keeps three more columns and predicts much better than SVI. So "near the top" is
#   true of the model under Gibbs sampling, though not to 0.05 %, rather than of its variational fit.
#
# All of this is one split with 102 test rows. On another split the numbers move by several tenths. And the data set is
# kept here for replicating the paper only, for the reason in the note at the top.
