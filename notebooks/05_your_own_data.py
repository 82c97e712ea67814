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
# # Your own data: from a table with dates to an answer you can doubt properly
#
# You have a table with dates, several series and holes in it, and a list of processes that might be behind the series.
# This notebook goes from there to probabilities, a filled gap and a forecast, all in the table's units. Then it asks
# how far to believe them. The table here is New York's weather, but nothing in the steps is about weather:
#
# 1. the table to `alps.Data`, with something held out;
# 2. a dictionary of processes, with *decoys*: processes that can't be there;
# 3. a Gibbs run, and whether it converged;
# 4. the answer, the gap and the forecast;
# 5. what a decoy that comes on says, and what limits the forecast.
#
# Set the environment variable `ALPS_NOTEBOOK_QUICK=1` for a shorter run, with coarser results.

# %%
import os
import warnings
from pathlib import Path

root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "models/data").is_dir())
quick = os.environ.get("ALPS_NOTEBOOK_QUICK") == "1"
warnings.filterwarnings("ignore", message="IProgress not found")  # progress bars are off below

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import pandas as pd
from tinygp import kernels
from tinygp.kernels import quasisep

import alps_ppl as alps
from alps_ppl import plots
from alps_ppl.results.inclusion import log_joint_r_hat

numpyro.enable_x64()  # 64-bit: many times and a rough process need it

# %% [markdown]
# ## 1. The table
#
# Hourly temperature and dew point at three airports in July 2013, in °F. The file has more columns
# (`models/nyc_weather.py` uses all fifteen). Six series keep this notebook short. Rows are times, and an empty cell is
# NaN.

# %%
table = pd.read_csv(root / "models/data/nyc_weather_2013_07.csv", index_col="date", parse_dates=True)
table = table[["temp_ewr", "temp_jfk", "temp_lga", "dewp_ewr", "dewp_jfk", "dewp_lga"]]
table = table.iloc[::3] if quick else table
print("empty cells by column:", table.isna().sum().to_dict())
table.head(3)

# %% [markdown]
# Hold something out, always. Here it is the last six days of everything, a forecast, and one day of one series, a gap
# that the other series could fill. A split is a boolean array, of the rows or of the cells.

# %%
forecast = table.index >= "2013-07-26"
gap = pd.DataFrame(False, table.index, table.columns)
gap.loc["2013-07-13", "temp_jfk"] = True
data = alps.Data(
    table.index,
    table,
    held_out={"test": forecast, "gap": gap.to_numpy()},
    units=dict.fromkeys(table.columns, "°F"),
)
data

# %% [markdown]
# `alps.Data` turned the dates into hours since the first one. (Had the steps been days, they would be days.) The
# periods and lengthscales below are in that unit. It also standardises each series by its training mean and sd: the
# model works in training sds, and predictions come back in °F. Empty cells and held-out cells simply aren't in the
# likelihood.

# %%
print(f"{data.input_label!r}: {data.inputs[0]:g} to {data.inputs[-1]:g}")
pd.DataFrame({"mean [°F]": data.loc, "sd [°F]": data.scale}, data.outputs).round(1).T

# %%
fig, axes = plt.subplots(2, 1, figsize=(11, 4.4), sharex=True, layout="constrained")
for ax, kind, name in zip(axes, ("temp", "dewp"), ("temperature", "dew point"), strict=True):
    for column in table.filter(like=kind):
        ax.plot(
            table.index, table[column].where(~gap[column]), linewidth=0.9, label=column.removeprefix(kind + "_").upper()
        )
    ax.axvspan(table.index[forecast][0], table.index[-1], color="#e9e9e9", zorder=0)
    ax.set_ylabel(f"{name} [°F]")
    ax.margins(x=0.01)
_ = fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)

# %% [markdown]
# Before any model, look. Temperature has a strong daily cycle, the dew point hardly any. Both drift over days,
# and the three airports agree. The shaded end is held out.
#
# ## 2. A dictionary of processes
#
# A process is a name and a covariance: `alps.linear_periodic(T)` is a sine wave of period $T$, and everything else
# comes from tinygp. Offer what you suspect:
#
# - cycles of 24 h and 12 h, the day and its overtone;
# - a slow and a rough memory: Matérn-1/2 processes with scales of 96 h and 12 h (`kernels.Exp`). They aren't smooth, on
#   purpose. A smooth covariance makes strong claims about days it hasn't seen.
#
# And offer what *can't* be there: sine waves of 17 h and 31 h. No weather has them. They cost next to nothing and are
# the best check there is. If a decoy comes on, the dictionary is missing something.

# %%
processes = {
    "24 h": alps.linear_periodic(24.0),
    "12 h": alps.linear_periodic(12.0),
    "17 h (decoy)": alps.linear_periodic(17.0),
    "31 h (decoy)": alps.linear_periodic(31.0),
    "slow": kernels.Exp(scale=96.0),
    "rough": kernels.Exp(scale=12.0),
}
model = alps.ALPS(processes, data.outputs, inclusion_prob=0.5, mixing_variance=1.0, noise_variance=0.5)

# %% [markdown]
# The other settings: each process is on with prior probability one half, loadings have prior variance 1 in standardised
# units, and the noise is half of each series' variance. So much noise is a choice: two memories can't follow six series
# in every detail, and what they leave over must go somewhere. We change it below to see what it does.
#
# ## 3. Run it
#
# The Gibbs sampler needs no tuning. Four chains start far apart on purpose.

# %%
lengths = {"num_warmup": 100, "num_samples": 150} if quick else {"num_warmup": 300, "num_samples": 600}


def sample(model):
    return alps.fit_gibbs(
        model,
        data.train_inputs,
        data.train_y,
        rng_key=jax.random.key(0),
        start="dispersed",
        progress_bar=False,
        **lengths,
    )


fit = sample(model)

# %% [markdown]
# Did it converge? Look at this before looking at the answer: the chains' own probabilities (`lowest`, `highest`)
# should agree, and R-hat should be below about 1.01. NaN stands for a gate that never moved, in all chains. The fourth
# notebook says more.

# %%
print(f"R-hat of the log joint density: {log_joint_r_hat(fit):.3f}")
alps.gate_diagnostics(fit).round(3)

# %% [markdown]
# ## 4. The answer

# %%
inclusion = alps.inclusion_table(fit)
ax = plots.plot_inclusion(inclusion)

# %% [markdown]
# The daily cycle and both memories are in, and the decoys are out. The 12 h overtone is undecided, with about a
# fifth: these data don't show it above so much noise. That is a fact about the data *and* the noise, as section 5 will
# show.
#
# Single probabilities don't say which processes come *together*. These do:

# %%
alps.gate_vectors(fit, top=4).round(3)

# %%
alps.num_active(fit).round(3).T

# %% [markdown]
# Nearly all probability is on "24 h, slow, rough", with or without the overtone.
#
# How strongly does each process move each series? The number is the sd over time of what it adds to the series, and a
# minus says that the series goes against the one that the process moves most.

# %%
axes = plots.plot_strengths({"gibbs": fit}, unit="training sd")

# %% [markdown]
# The daily cycle is the temperature's. The dew point hardly has it. The slow memory moves all six together: warm days
# are damp days. The rough one moves temperature and dew point against one another. The processes that are off
# (grey) add little even in the few draws that have them on.
#
# ### The gap and the forecast
#
# `predict` takes any inputs: those of the gap, of the future, or in between. `to_units` brings the result back to °F.

# %%
prediction = alps.predict(fit, data.inputs, num_draws=400)
in_units = data.to_units(prediction)
last = table.index >= "2013-07-11"
axes = plots.plot_reconstruction(
    {"gibbs": in_units.isel(time=last)},
    data.y[last],
    held_out=np.asarray(data.split != "train")[last],
    input_label=data.input_label,
    units=data.units,
)

# %% [markdown]
# The curves follow the days, and not the hours: the bands are wide because of the noise of one half. In the forecast
# the daily cycle goes on and the memories go back to the mean, the slow one within some days, and the bands widen. The
# model couldn't know that the dew point would fall on 29 July, and doesn't pretend to.
#
# Now the scores, in °F, beside two simple rules: the training mean, and the mean of the same hour of the day.

# %%
train = pd.DataFrame(np.where(data.train, data.y, np.nan), table.index, table.columns)
rules = {
    "GP-ALPS (Gibbs)": in_units["mean"].values,
    "training mean": np.broadcast_to(train.mean().to_numpy(), data.y.shape),
    "hour-of-day mean": train.groupby(table.index.hour).transform("mean").to_numpy(),
}


def scores(split):
    cells = data.split == split
    error = {name: np.where(cells, data.y - mean, np.nan) for name, mean in rules.items()}
    return pd.DataFrame(
        {name: np.sqrt(np.nanmean(e[:, cells.any(0)] ** 2, axis=0)) for name, e in error.items()},
        np.array(data.outputs)[cells.any(0)],
    ).T


print("RMSE of the forecast, six days [°F]")
scores("test").round(1)

# %%
print("RMSE in the gap, one day [°F]")
scores("gap").round(1)

# %%
for split in ("test", "gap"):
    cells = (data.split == split) & ~np.isnan(data.y)
    inside = (data.y >= in_units["lower"].values) & (data.y <= in_units["upper"].values)
    print(f"{split}: the 90 % intervals hold {inside[cells].mean():.0%} of {cells.sum()} cells")

# %% [markdown]
# The forecast beats both rules, most of all for the temperature, whose days begin cool and stay so for a while. In the
# gap it loses to the mean of the same hour, although the other two airports were observed all day. The reason is in
# the model: the same two memories must serve six series, and what is JFK's alone is noise to it. On 13 July JFK rose
# to 84 °F and LaGuardia to 76 °F.
#
# The intervals hold somewhat fewer cells than 90 % in the forecast. The misses are mostly the dew point after its
# fall. Six days are a small sample, in which all cells of a day miss together.
#
# ## 5. A decoy that comes on
#
# The noise variance was a choice. Suppose you believed that the processes explain nearly everything, and set it to 0.1.


# %%
def with_less_noise(processes):
    """The inclusion table, and the errors in °F, with a noise variance of 0.1."""
    model = alps.ALPS(processes, data.outputs, inclusion_prob=0.5, mixing_variance=1.0, noise_variance=0.1)
    fit = sample(model)
    mean = data.to_units(alps.predict(fit, data.inputs, num_draws=200))["mean"]
    error = {split: np.sqrt(np.nanmean((data.y - mean.values)[data.split == split] ** 2)) for split in ("test", "gap")}
    return alps.inclusion_table(fit).set_index("latent"), error


precise, precise_error = with_less_noise(processes)
probability = pd.DataFrame(
    {"noise 0.5": inclusion.set_index("latent").probability, "noise 0.1": precise.probability}, precise.index
)
print(f"largest R-hat of a gate with noise 0.1: {precise.r_hat.max():.3f}")
probability.round(3).T

# %% [markdown]
# The overtone is certain now, and so is a decoy. There is no 31 h cycle in the weather. R-hat has no objection: the
# sampler is right about this model, and the model is wrong. Told to explain nine tenths of the variance with this
# dictionary, it takes what there is.
#
# **A decoy that comes on says that the dictionary is short of a process, or the noise is set too low.** It doesn't say
# which of the real processes is spurious. It says that none of the probabilities in this run should be quoted.
#
# What could be missing? Look at the temperatures once more. The days are of different size: hot days have a large
# daily cycle, cool ones a small one or none. The dictionary has only a sine wave of fixed size. The product of a
# slowly changing size and a 24 h wave has frequencies beside that of 24 h, and 31 h is such a neighbour. So offer it:
# a 24 h cycle whose size and phase change over some days. Its covariance is $e^{-|t - t'| / 96} \cos(2\pi (t - t') /
# 24)$. As a `quasisep` covariance of tinygp it has a Markov form, so a sweep stays fast. (`linear_periodic(24) *
# Exp(96)` is the same function, but would be dense.)

# %%
changing = {"24 h, changing": quasisep.Celerite(a=1.0, b=0.0, c=1 / 96, d=2 * np.pi / 24)}
repaired, repaired_error = with_less_noise(processes | changing)
probability = probability.reindex(repaired.index).assign(**{"noise 0.1 and a changing cycle": repaired.probability})
print(f"largest R-hat of a gate with the changing cycle: {repaired.r_hat.max():.3f}")
probability.round(3).T

# %% [markdown]
# The decoy is off, at the same low noise. That is how decoys are used: they don't name the missing process, but they
# go off again when what was added takes what they took.
#
# ## What limits the forecast
#
# Is the better dictionary the better forecast? Root mean square errors over all series, in °F:

# %%
overall = {
    split: {name: np.sqrt(np.nanmean((data.y - mean)[data.split == split] ** 2)) for name, mean in rules.items()}
    for split in ("test", "gap")
}
for split, column in overall.items():
    column["GP-ALPS, noise 0.1"] = precise_error[split]
    column["GP-ALPS, noise 0.1 and a changing cycle"] = repaired_error[split]
pd.DataFrame(overall).rename(columns={"test": "forecast, six days [°F]", "gap": "gap, one day [°F]"}).round(1)

# %% [markdown]
# It isn't. The forecasts hardly differ, and in the gap less noise is worse: its curve for that day is a compromise
# between airports that went apart, and it is surer of it. What limits it is that few processes serve many series. What
# only one series does, the model can't follow, and fitting each series by itself can do better. On all fifteen series
# of this file a Gaussian process per series does (`docs/measured.md` has the numbers). Use this model to learn what the
# series have in common and which processes are behind it. If predictions are all you want, compare with the simple
# things first.
#
# One more warning. Learnt noise (`noise_variance=dist.InverseGamma(2.0, 0.1)`) sounds like the way out of choosing it.
# On the fifteen series it lets a process follow one kind of series to nearly nothing, and chains disagree about which.
#
# ## For your own table
#
# 1. Hold something out, and offer decoys.
# 2. Look at convergence first, at the decoys next, and only then at the answer.
# 3. If a decoy is on, look for what the series do that no process can. Failing that, raise the noise until it is off,
#    and say so.
# 4. Compare predictions with simple rules, in the table's units.
#
# `alps-ppl fit my_series.csv --time date --latent "daily = linear_periodic(24h)" --decoys 2 --hold-out 10% --out DIR`
# does all of this from the file, with both engines, and writes tables, figures and `DIR/model.py`, a model file to go
# on with; `alps-ppl report DIR` makes a page of it to show.
