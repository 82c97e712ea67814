"""Outputs beside their predictions."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from alps_ppl.results.gaps import with_gaps
from alps_ppl.results.plots.style import colour_of, name_of

OBSERVED, HELD_OUT = "#6b7785", "black"
# What a stretch that the fit didn't see is shaded in, and the line where it begins.
HELD_OUT_SPAN, FORECAST_SPAN = ("#f6e6d8", "#b3440a"), ("#dfeaf8", "#2a6fc9")


def plot_reconstruction(
    predictions: Mapping[str, xr.Dataset],
    y: np.ndarray,
    *,
    held_out: np.ndarray | None = None,
    input_label: str = "t",
    units: Mapping[str, str] | None = None,
    axes: Any = None,
) -> np.ndarray:
    """Every output with each engine's mean and band: the paper's Figures 1 and 2b.

    The first engine's band is filled, the others' have dashed edges. Held-out cells lie on a shaded span, with a line
    where it begins, and what is "forecast" on one of another colour. Lines end where there is a gap between times.

    Parameters
    ----------
    predictions
        ``predict``'s results at the same inputs, by engine. Their times may be dates.
    y
        (time, output) what was observed there, NaN where missing, in the predictions' unit.
    held_out
        (time, output) which of these cells the fit didn't see; none if left out. Or the name of each cell's split,
        as ``Data.split`` has them: "train" is what was fitted, "forecast" what lies ahead of the table.
    input_label
        What the horizontal axis is called, with its unit.
    units
        Each output's unit, by its name.
    axes
        One for each output; a new figure if left out.

    Returns
    -------
    The axes, one for each output.
    """
    time, outputs, y, split = _cells(predictions, y, held_out)
    held_out = split != "train"
    order = np.argsort(time, kind="stable")
    axes = _column_of_axes(len(outputs)) if axes is None else np.atleast_1d(np.asarray(axes, dtype=object))
    shown = axes[: len(outputs)]
    for i, (output, ax) in enumerate(zip(outputs, shown, strict=True)):
        for place, (engine, prediction) in enumerate(predictions.items()):
            _band(ax, prediction.isel(output=i, time=order), engine, place, alone=len(predictions) == 1)
        size = 12 if len(time) <= 300 else 6
        for cells, colour, label in (
            (~held_out[:, i], OBSERVED, "observed"),
            (held_out[:, i] & ~np.isnan(y[:, i]), HELD_OUT, "observed, held out"),
        ):
            if cells.any():
                ax.scatter(time[cells], y[cells, i], size, colour, zorder=3, linewidths=0, label=label)
        _shade(ax, time[order], split[order, i])
        unit = (units or {}).get(output)
        ax.set_title(output, fontsize=10, loc="left")
        ax.set_ylabel(f"[{unit}]" if unit else "", fontsize=9)
        ax.margins(x=0.01)
    grid_spec = axes[0].get_gridspec()
    num_columns = grid_spec.ncols if grid_spec else 1
    for ax in shown[-num_columns:]:
        ax.set_xlabel(input_label)
        ax.tick_params(labelbottom=True)
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    ncols = len(entries) if num_columns > 1 else -(-len(entries) // 2)
    axes[0].figure.legend(
        entries.values(), entries, loc="outside upper center", ncols=ncols, frameon=False, markerscale=1.8
    )
    return shown


def plot_predicted(
    predictions: Mapping[str, xr.Dataset],
    y: np.ndarray,
    *,
    held_out: np.ndarray | None = None,
    units: Mapping[str, str] | None = None,
    axes: Any = None,
) -> np.ndarray:
    """Observed cells against their predicted means, where inputs have several columns and so no one axis.

    Held-out cells (all cells, where none are held out) have the interval of their prediction as a bar.

    Parameters
    ----------
    predictions, y, held_out, units
        As in ``plot_reconstruction``.
    axes
        (output, engine); a new figure if left out.

    Returns
    -------
    The axes (output, engine).
    """
    _, outputs, y, split = _cells(predictions, y, held_out)
    held_out = split != "train"
    if axes is None:
        size = (4.6 * len(predictions), 4.5 * len(outputs) + 0.4)
        _, axes = plt.subplots(len(outputs), len(predictions), figsize=size, squeeze=False, layout="constrained")
    axes = np.asarray(axes, dtype=object).reshape(len(outputs), len(predictions))
    for i, output in enumerate(outputs):
        unit = (units or {}).get(output)
        values = np.concatenate([y[:, i], *(prediction["mean"][:, i] for prediction in predictions.values())])
        low, high = np.nanmin(values), np.nanmax(values)
        limits = low - 0.05 * (high - low), high + 0.05 * (high - low)
        shown = held_out[:, i] if held_out[:, i].any() else ~held_out[:, i]
        for place, (ax, (engine, prediction)) in enumerate(zip(axes[i], predictions.items(), strict=True)):
            band = prediction.isel(output=i)
            mean, ends = band["mean"].values, np.abs([band["lower"] - band["mean"], band["upper"] - band["mean"]])
            label, colour = f"{'training' if shown.all() else 'held out'}, {_interval(band)}", colour_of(engine, place)
            ax.plot(limits, limits, color="black", linewidth=0.8, zorder=0, label="observed = predicted")
            if not shown.all():
                ax.scatter(mean[~shown], y[~shown, i], 8, OBSERVED, alpha=0.5, linewidths=0, label="training")
            bars: Any = {"xerr": ends[:, shown], "ecolor": (colour, 0.3), "elinewidth": 0.9}
            ax.errorbar(mean[shown], y[shown, i], fmt="o", markersize=3.5, color=colour, label=label, **bars)
            ax.set(xlim=limits, ylim=limits, aspect="equal")
            ax.set_title(f"{output}: {name_of(engine)}", fontsize=10, loc="left")
            ax.set_xlabel(f"predicted [{unit}]" if unit else "predicted")
            ax.set_ylabel(f"observed [{unit}]" if unit else "observed")
    for place, ax in enumerate(axes[0]):
        ax.legend(frameon=False, fontsize=8, loc="upper left" if place == 0 else "lower right")
    return axes


def _cells(
    predictions: Mapping[str, xr.Dataset], y: Any, held_out: Any
) -> tuple[np.ndarray, list[str], np.ndarray, np.ndarray]:
    """Times, the outputs' names, and y and the names of splits as (time, output); a mask's are "train", "hold-out"."""
    first = next(iter(predictions.values()))
    outputs = [str(name) for name in first["output"].values]
    y = np.asarray(y, float).reshape(first.sizes["time"], len(outputs))
    split = np.zeros(y.shape, bool) if held_out is None else np.asarray(held_out).reshape(y.shape)
    if split.dtype.kind in "bif":
        split = np.where(split.astype(bool), "hold-out", "train")
    return first["time"].values, outputs, y, split.astype(str)


def _column_of_axes(count: int) -> np.ndarray:
    """Axes one above another, in two columns if they are many; those to spare are hidden."""
    columns = 1 if count <= 8 else 2
    rows = -(-count // columns)
    size = (11 * columns, max(3.6, 2.1 * rows + 0.6))
    _, grid = plt.subplots(rows, columns, figsize=size, sharex=True, squeeze=False, layout="constrained")
    for spare in grid.ravel()[count:]:
        spare.set_visible(False)
    return grid.ravel()


def _band(ax: Axes, band: xr.Dataset, engine: str, place: int, *, alone: bool) -> None:
    """An engine's mean and band of one output; the first engine's is filled."""
    colour, interval = colour_of(engine, place), f"{name_of(engine)}, {_interval(band)}"
    time, mean, lower, upper = with_gaps(band["time"].values, band["mean"], band["lower"], band["upper"])
    # The first mean is broader, so that it shows on both sides of a second one that covers it.
    width = 2.2 if place == 0 and not alone else 1.1
    ax.plot(time, mean, linewidth=width, label=f"{name_of(engine)}, mean", color=colour)
    if place == 0:
        ax.fill_between(time, lower, upper, alpha=0.25, linewidth=0, label=interval, color=colour)
    else:
        ax.plot(time, np.stack([lower, upper], axis=1), "--", linewidth=0.9, label=[interval, "_"], color=colour)


def _interval(prediction: xr.Dataset) -> str:
    return f"{prediction.attrs.get('interval', 0.9):.0%} interval"


def _shade(ax: Axes, time: np.ndarray, split: np.ndarray) -> None:
    """Shade the runs of held-out times; ``time`` is sorted, and a run reaches halfway to its neighbours."""
    edges = np.concatenate([time[:1], time[:-1] + np.diff(time) / 2, time[-1:]])
    for name in dict.fromkeys(split[split != "train"]):
        fill, line = FORECAST_SPAN if name == "forecast" else HELD_OUT_SPAN
        label = str(name)
        for start, stop in np.flatnonzero(np.diff(split == name, prepend=False, append=False)).reshape(-1, 2):
            ax.axvspan(edges[start], edges[stop], color=fill, linewidth=0, zorder=0, label=label)
            ax.axvline(edges[start], color=line, linewidth=0.9, linestyle="--", zorder=0.5)
            label = "_"
