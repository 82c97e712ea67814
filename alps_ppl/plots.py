"""The paper's figures, as functions that return matplotlib axes. An engine has one colour everywhere."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from alps_ppl.diagnostics import align_signs
from alps_ppl.svi import SVIFit

COLOURS = {"svi": "#2166ac", "gibbs": "#d6604d"}
NAMES = {"svi": "SVI", "gibbs": "Gibbs"}
OBSERVED, HELD_OUT = "#444444", "#1b7837"


def _colour(engine: str, place: int = 0) -> str:
    return COLOURS.get(engine, f"C{place + 2}")


def _name(engine: str) -> str:
    return NAMES.get(engine, engine)


def plot_reconstruction(
    predictions: Mapping[str, xr.Dataset],
    y: np.ndarray,
    *,
    held_out: np.ndarray | None = None,
    input_label: str = "t",
    units: Mapping[str, str] | None = None,
    axes: Any = None,
) -> np.ndarray:
    """Every output with each engine's mean and band: the paper's Figure 1 and 2b.

    ``predictions`` are ``predict``'s at the same inputs by engine, ``y`` (time, output) what was observed there
    (NaN where missing), ``held_out`` (time, output) which of those cells the fit didn't see. One axes per output.
    """
    first = next(iter(predictions.values()))
    outputs = [str(name) for name in first["output"].values]
    time = first["time"].values
    order = np.argsort(time, kind="stable")
    y = np.asarray(y, float).reshape(len(time), len(outputs))
    held_out = np.zeros(y.shape, bool) if held_out is None else np.asarray(held_out, bool)
    if axes is None:
        columns = 1 if len(outputs) <= 4 else 3
        rows = -(-len(outputs) // columns)
        size = (9 if columns == 1 else 15, max(3.6, 2.1 * rows + 0.6))
        _, grid = plt.subplots(rows, columns, figsize=size, sharex=True, squeeze=False, layout="constrained")
        axes = grid.ravel()
        for spare in axes[len(outputs) :]:
            spare.set_visible(False)
    axes = np.atleast_1d(np.asarray(axes, dtype=object))
    marker_size = 9 if len(time) <= 300 else 2
    for i, (output, ax) in enumerate(zip(outputs, axes[: len(outputs)], strict=True)):
        for place, (engine, prediction) in enumerate(predictions.items()):
            band = prediction.isel(output=i, time=order)
            colour = _colour(engine, place)
            label = f"{_name(engine)}, mean and {prediction.attrs.get('interval', 0.9):.0%} interval"
            ax.fill_between(time[order], band["lower"], band["upper"], color=colour, alpha=0.18, linewidth=0)
            ax.plot(time[order], band["mean"], color=colour, linewidth=1.3, ls=["-", "--"][place % 2], label=label)
        seen = ~held_out[:, i]
        ax.scatter(time[seen], y[seen, i], s=marker_size, color=OBSERVED, zorder=3, linewidths=0, label="observed")
        if held_out.any():
            ax.scatter(
                time[~seen],
                y[~seen, i],
                s=marker_size,
                color=HELD_OUT,
                zorder=3,
                linewidths=0,
                label="held out from the fit",
            )
        unit = (units or {}).get(output)
        ax.set_title(output, fontsize=10, loc="left")
        ax.set_ylabel(f"[{unit}]" if unit else "", fontsize=9)
        ax.margins(x=0.01)
    grid_spec = axes[0].get_gridspec()
    num_columns = grid_spec.ncols if grid_spec else 1
    for ax in axes[max(0, len(outputs) - num_columns) : len(outputs)]:
        ax.set_xlabel(input_label)
        ax.tick_params(labelbottom=True)
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(
        handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, markerscale=1.8
    )
    return axes[: len(outputs)]


def plot_inclusion(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Activation probabilities of all latents, engines side by side, with the prior: the paper's Figures 1b and 3c.

    ``table`` is ``inclusion_table``'s; its rows for groups of equal covariance are drawn too. Bars on the Gibbs
    probabilities are two Monte Carlo standard errors.
    """
    engines = list(dict.fromkeys(table.engine))
    latents = list(dict.fromkeys(table.latent))
    if ax is None:
        _, ax = plt.subplots(figsize=(max(6.0, 0.75 * len(latents) + 1.5), 3.8), layout="constrained")
    width = 0.8 / len(engines)
    place = np.arange(len(latents))
    for k, engine in enumerate(engines):
        rows = table[table.engine == engine].set_index("latent").reindex(latents)
        offset = place + (k - (len(engines) - 1) / 2) * width
        bars = ax.bar(offset, rows.probability, width, color=_colour(engine, k), label=_name(engine))
        if rows.mcse.notna().any():
            ax.errorbar(offset, rows.probability, 2 * rows.mcse.fillna(0), fmt="none", ecolor="black", capsize=2)
        ax.bar_label(bars, [f"{p:.2f}" for p in rows.probability], fontsize=7, padding=2)
    prior = table.drop_duplicates("latent").set_index("latent").reindex(latents).prior
    ax.hlines(prior, place - 0.45, place + 0.45, color="grey", linestyles=":", label="prior")
    ax.set_xticks(place, latents, rotation=30 if max(map(len, latents)) > 6 else 0, ha="center")
    ax.set_ylim(0, 1.1)
    ax.set_yticks(np.linspace(0, 1, 5))
    ax.set_ylabel("activation probability")
    ax.set_xlabel("latent process")
    ax.figure.legend(loc="outside upper center", ncols=len(engines) + 1, frameon=False)
    return ax


def plot_training(fit: SVIFit, *, axes: Any = None) -> np.ndarray:
    """The relaxed model's ELBO and the temperature over the steps (the temperature: the paper's Figure 5)."""
    if axes is None:
        _, axes = plt.subplots(2, 1, figsize=(7, 4.6), sharex=True, layout="constrained", height_ratios=(2, 1))
    axes = np.asarray(axes, dtype=object)
    steps = np.arange(len(fit.losses))
    window = max(1, len(steps) // 200)
    smooth = pd.Series(-fit.losses).rolling(window, min_periods=1, center=True).mean()
    axes[0].plot(steps, -fit.losses, color=COLOURS["svi"], alpha=0.25, linewidth=0.6, label="each step")
    axes[0].plot(steps, smooth, color=COLOURS["svi"], label=f"mean over {window} steps")
    # The first steps are orders of magnitude below; the view is what comes after them, named in the label.
    axes[0].set_ylim(np.quantile(-fit.losses, 0.03), smooth.max() + 0.1 * np.ptp(np.quantile(smooth, [0.03, 1])))
    axes[0].set_ylabel("ELBO, relaxed model [nats]")
    axes[0].legend(loc="lower right", frameon=False, title="lowest 3 % cut off", title_fontsize="small")
    axes[1].plot(steps, fit.temperatures[: len(steps)], color="black")
    axes[1].set_ylabel("temperature")
    axes[1].set_xlabel("step")
    return axes


def plot_mixing(trees: Mapping[str, xr.DataTree], *, axes: Any = None) -> np.ndarray:
    """Mean and variance of the mixing matrix H, a row per engine, signs aligned: the paper's Figures 3a and 3b."""
    first = next(iter(trees.values()))["posterior"]
    outputs, latents = (np.asarray(first[dim]).astype(str) for dim in ("output", "latent"))
    if axes is None:
        height = 0.9 + max(1.1, 0.28 * len(outputs))
        size = (2 * (1.6 + 0.42 * len(latents)) + 1.5, height * len(trees) + 0.4)
        _, axes = plt.subplots(len(trees), 2, figsize=size, squeeze=False, layout="constrained")
    reference, moments = None, {}
    for engine, tree in trees.items():
        aligned = align_signs(tree["posterior"].to_dataset(), reference)
        reference = aligned["x"].mean(("chain", "draw")) if reference is None else reference
        H = aligned["H"]
        moments[engine] = H.mean(("chain", "draw")).values, H.var(("chain", "draw")).values
    # One scale for all engines, so that colours can be compared between rows.
    largest = max(np.abs(mean).max() for mean, _ in moments.values())
    broadest = max(variance.max() for _, variance in moments.values())
    for (engine, (mean, variance)), row in zip(moments.items(), axes, strict=True):
        for ax, values, name, scale in (
            (row[0], mean, "mean", {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}),
            (row[1], variance, "variance", {"cmap": "viridis", "vmin": 0.0, "vmax": broadest}),
        ):
            image = ax.imshow(values, aspect="auto", **scale)
            ax.set_xticks(range(len(latents)), latents, rotation=45, ha="right", fontsize=8)
            ax.set_yticks(range(len(outputs)), outputs, fontsize=8)
            ax.set_title(f"{_name(engine)}: {name} of H", fontsize=10)
            ax.figure.colorbar(image, ax=ax)
    for ax in axes[-1]:
        ax.set_xlabel("latent process")
    for ax in axes[:, 0]:
        ax.set_ylabel("output")
    return axes
