"""The paper's figures, as functions that return matplotlib axes. An engine has one colour everywhere."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from alps_ppl.diagnostics import align_engines, by_engine, inclusion_probability
from alps_ppl.svi import SVIFit

COLOURS = {"svi": "#2166ac", "gibbs": "#d6604d"}
NAMES = {"svi": "SVI", "gibbs": "Gibbs"}
OBSERVED, HELD_OUT, HELD_OUT_SPAN = "#777777", "black", "#e9e9e9"


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
    (NaN where missing), ``held_out`` (time, output) which of those cells the fit didn't see; they lie on a shaded
    span. The first engine's band is filled, the others' have dashed edges. One axes per output.
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
    marker_size = 9 if len(time) <= 300 else 3
    for i, (output, ax) in enumerate(zip(outputs, axes[: len(outputs)], strict=True)):
        for place, (engine, prediction) in enumerate(predictions.items()):
            band = prediction.isel(output=i, time=order)
            style = {"color": _colour(engine, place)}
            interval = f"{_name(engine)}, {prediction.attrs.get('interval', 0.9):.0%} interval"
            # The first mean is broader, so that it shows on both sides of a second one that covers it.
            width = 2.2 if place == 0 and len(predictions) > 1 else 1.1
            ax.plot(time[order], band["mean"], linewidth=width, label=f"{_name(engine)}, mean", **style)
            if place == 0:
                ax.fill_between(
                    time[order], band["lower"], band["upper"], alpha=0.25, linewidth=0, label=interval, **style
                )
            else:
                edges = np.stack([band["lower"], band["upper"]], axis=1)
                ax.plot(time[order], edges, "--", linewidth=0.9, label=[interval, "_"], **style)
        for cells, colour, label in (
            (~held_out[:, i], OBSERVED, "observed"),
            (held_out[:, i] & ~np.isnan(y[:, i]), HELD_OUT, "observed, held out"),
        ):
            if cells.any():
                ax.scatter(time[cells], y[cells, i], marker_size, colour, zorder=3, linewidths=0, label=label)
        _shade(ax, time[order], held_out[order, i])
        unit = (units or {}).get(output)
        ax.set_title(output, fontsize=10, loc="left")
        ax.set_ylabel(f"[{unit}]" if unit else "", fontsize=9)
        ax.margins(x=0.01)
    grid_spec = axes[0].get_gridspec()
    num_columns = grid_spec.ncols if grid_spec else 1
    for ax in axes[max(0, len(outputs) - num_columns) : len(outputs)]:
        ax.set_xlabel(input_label)
        ax.tick_params(labelbottom=True)
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    ncols = len(entries) if num_columns > 1 else -(-len(entries) // 2)
    axes[0].figure.legend(
        entries.values(), entries, loc="outside upper center", ncols=ncols, frameon=False, markerscale=1.8
    )
    return axes[: len(outputs)]


def plot_predicted(
    predictions: Mapping[str, xr.Dataset],
    y: np.ndarray,
    *,
    held_out: np.ndarray | None = None,
    units: Mapping[str, str] | None = None,
    axes: Any = None,
) -> np.ndarray:
    """Observed cells against their predicted means, where inputs have several columns and so no one axis.

    Arguments as in ``plot_reconstruction``. A row per output, a column per engine; held-out cells (all, where none are)
    have the interval of their prediction as a bar. Returns axes (output, engine).
    """
    first = next(iter(predictions.values()))
    outputs = [str(name) for name in first["output"].values]
    y = np.asarray(y, float).reshape(first.sizes["time"], len(outputs))
    held_out = np.zeros(y.shape, bool) if held_out is None else np.asarray(held_out, bool).reshape(y.shape)
    if axes is None:
        size = (4.6 * len(predictions), 4.5 * len(outputs) + 0.4)
        _, axes = plt.subplots(len(outputs), len(predictions), figsize=size, squeeze=False, layout="constrained")
    axes = np.asarray(axes, dtype=object).reshape(len(outputs), len(predictions))
    for i, output in enumerate(outputs):
        unit = (units or {}).get(output)
        limits = _common_limits([y[:, i], *(prediction["mean"][:, i] for prediction in predictions.values())])
        for place, (ax, (engine, prediction)) in enumerate(zip(axes[i], predictions.items(), strict=True)):
            band = prediction.isel(output=i)
            shown = held_out[:, i] if held_out[:, i].any() else ~held_out[:, i]
            mean, ends = band["mean"].values, np.abs([band["lower"] - band["mean"], band["upper"] - band["mean"]])
            label = f"{'training' if shown.all() else 'held out'}, {prediction.attrs.get('interval', 0.9):.0%} interval"
            colour = _colour(engine, place)
            ax.plot(limits, limits, color="black", linewidth=0.8, zorder=0, label="observed = predicted")
            if not shown.all():
                ax.scatter(mean[~shown], y[~shown, i], 8, OBSERVED, alpha=0.5, linewidths=0, label="training")
            ax.errorbar(
                mean[shown], y[shown, i], xerr=ends[:, shown], fmt="o", markersize=3.5, color=colour,
                ecolor=(colour, 0.3), elinewidth=0.9, label=label,
            )  # fmt: skip
            ax.set(xlim=limits, ylim=limits, aspect="equal")
            ax.set_title(f"{output}: {_name(engine)}", fontsize=10, loc="left")
            ax.set_xlabel(f"predicted [{unit}]" if unit else "predicted")
            ax.set_ylabel(f"observed [{unit}]" if unit else "observed")
    for place, ax in enumerate(axes[0]):
        ax.legend(frameon=False, fontsize=8, loc="upper left" if place == 0 else "lower right")
    return axes


def _common_limits(values: list) -> tuple[float, float]:
    """The range of all values, with a margin."""
    flat = np.concatenate([np.ravel(v) for v in values])
    low, high = np.nanmin(flat), np.nanmax(flat)
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _shade(ax: Axes, time: np.ndarray, held_out: np.ndarray) -> None:
    """Shade the runs of held-out times; ``time`` is sorted, and a run reaches halfway to its neighbours."""
    edges = np.concatenate([time[:1], (time[1:] + time[:-1]) / 2, time[-1:]])
    runs = np.flatnonzero(np.diff(held_out, prepend=False, append=False)).reshape(-1, 2)
    if len(runs):
        spans = [(edges[start], edges[stop] - edges[start]) for start, stop in runs]
        ax.broken_barh(
            spans, (0, 1), transform=ax.get_xaxis_transform(), color=HELD_OUT_SPAN, zorder=0, label="hold-out"
        )


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
        probability, error = rows.probability.to_numpy(), 2 * rows.mcse.fillna(0).to_numpy()
        label = _name(engine) + (" ± 2 Monte Carlo standard errors" if error.any() else "")
        ends = [np.minimum(error, probability), np.minimum(error, 1 - probability)]
        bars = ax.bar(offset, probability, width, yerr=ends, color=_colour(engine, k), label=label)
        ax.bar_label(bars, [f"{p:.2f}" for p in probability], fontsize=7, padding=2)
    prior = table.drop_duplicates("latent").set_index("latent").reindex(latents).prior.to_numpy()
    ax.hlines(prior, place - 0.45, place + 0.45, color="grey", linestyles=":", label="prior")
    slanted: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if max(map(len, latents)) > 6 else {}
    ax.set_xticks(place, latents, **slanted)
    ax.set_ylim(0, 1.1)
    ax.set_yticks(np.linspace(0, 1, 5))
    ax.set_ylabel("activation probability")
    ax.set_xlabel("latent process")
    handles, labels = ax.get_legend_handles_labels()
    ax.figure.legend(  # the prior comes last
        handles[1:] + handles[:1], labels[1:] + labels[:1], loc="outside upper center", ncols=len(labels), frameon=False
    )
    return ax


def plot_training(fit: SVIFit, *, axes: Any = None) -> np.ndarray:
    """The relaxed model's ELBO and the temperature over the steps (the temperature: the paper's Figure 5)."""
    if axes is None:
        _, axes = plt.subplots(2, 1, figsize=(7, 4.6), sharex=True, layout="constrained", height_ratios=(2, 1))
    axes = np.asarray(axes, dtype=object)
    steps = np.arange(len(fit.losses))
    window = max(1, len(steps) // 200)
    smooth = pd.Series(-fit.losses).rolling(window, min_periods=1, center=True).mean()
    axes[0].plot(steps, -fit.losses, color=COLOURS["svi"], alpha=0.35, linewidth=0.6, label="at each step")
    if window > 1:
        axes[0].plot(steps, smooth, color=COLOURS["svi"], label=f"mean over {window} steps")
    # The first steps are orders of magnitude below; the view is what comes after them, named in the label.
    axes[0].set_ylim(np.quantile(-fit.losses, 0.03), smooth.max() + 0.1 * np.ptp(np.quantile(smooth, [0.03, 1])))
    axes[0].set_ylabel("ELBO [nats]")
    axes[0].set_title("ELBO of the relaxed model (the lowest 3 % lie below the axis)", fontsize=10, loc="left")
    for line in axes[0].legend(loc="lower right", frameon=False).get_lines():
        line.set_linewidth(1.5)
    axes[1].plot(steps, fit.temperatures[: len(steps)], color="black")
    axes[1].set_ylabel("temperature")
    axes[1].set_title("Temperature of the relaxed gates", fontsize=10, loc="left")
    axes[1].set_xlabel("step")
    return axes


def _on(trees: Mapping[str, xr.DataTree]) -> np.ndarray:
    """Which latents are on (probability above 1/2) by some engine."""
    return np.any([inclusion_probability(tree).values > 0.5 for tree in trees.values()], axis=0)


def plot_mixing(
    trees: xr.DataTree | Mapping[str, xr.DataTree], *, unit: str = "unit of the output", axes: Any = None
) -> np.ndarray:
    """Mean and variance of the mixing matrix H, a row per engine, the paper's Figures 3a and 3b.

    ``unit`` is that of H: the unit of the outputs that were fitted. A latent's sign is free; its draws are given one
    sign, the same for all engines. The names of latents that no engine has on (above 1/2) are grey.
    """
    trees = by_engine(trees, needs="x")
    first = next(iter(trees.values()))["posterior"]
    outputs, latents = (np.asarray(first[dim]).astype(str) for dim in ("output", "latent"))
    if axes is None:
        height = 0.5 + max(0.8, 0.26 * len(outputs))
        size = (2 * (1.6 + 0.42 * len(latents)) + 1.8, height * len(trees) + 1.0)
        _, axes = plt.subplots(
            len(trees), 2, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
        )
    axes = np.asarray(axes, dtype=object)
    moments = {}
    for engine, aligned in align_engines(trees).items():
        H = aligned["H"]
        moments[engine] = H.mean(("chain", "draw")).values, H.var(("chain", "draw")).values
    on = _on(trees)
    # One scale for all engines, so that colours can be compared between rows.
    largest = max(np.abs(mean).max() for mean, _ in moments.values())
    broadest = max(variance.max() for _, variance in moments.values())
    for column, (name, bar_label, scale) in enumerate(
        (
            ("mean", f"[{unit}]", {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}),
            ("variance", f"[({unit})²]", {"cmap": "viridis", "vmin": 0.0, "vmax": broadest}),
        )
    ):
        for (engine, values), ax in zip(moments.items(), axes[:, column], strict=True):
            image = ax.imshow(values[column], aspect="auto", **scale)
            ax.set_xticks(range(len(latents)), latents, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
            ax.set_yticks(range(len(outputs)), outputs, fontsize=8)
            ax.set_title(f"{_name(engine)}: {name} of H", fontsize=10)
        ax.figure.colorbar(image, ax=list(axes[:, column])).set_label(bar_label, fontsize=8)
        for label, is_on in zip(ax.get_xticklabels(), on, strict=True):
            label.set_color("black" if is_on else "#999999")
        ax.set_xlabel("latent process (grey: off)")
    for ax in axes[:, 0]:
        ax.set_ylabel("output")
    return axes


def plot_latents(
    trees: xr.DataTree | Mapping[str, xr.DataTree], *, input_label: str = "t", axes: Any = None
) -> np.ndarray:
    """Each latent that some engine has on (above 1/2): mean and 90 % band of x_j while its gate is open.

    Signs are aligned as in ``plot_mixing``. One axes per latent, over the fitted inputs; the paper's
    Figure 2a has the noiseless ones.
    """
    trees = by_engine(trees, needs="x")
    posteriors = align_engines(trees)
    draws = {engine: posterior.stack(sample=("chain", "draw")) for engine, posterior in posteriors.items()}
    first = next(iter(draws.values()))
    latents = first["latent"].values
    on = latents[_on(trees)]
    if axes is None:
        rows = max(1, len(on))
        _, axes = plt.subplots(rows, 1, figsize=(9, 1.5 * rows + 0.9), sharex=True, squeeze=False, layout="constrained")
        axes = axes[:, 0]
    axes = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
    if len(axes) < len(on):
        raise ValueError(f"axes: expected one for each of the {len(on)} latents that are on, got {len(axes)}")
    time = first["time"].values
    order = np.argsort(time, kind="stable")
    for name, ax in zip(on, axes, strict=False):
        for place, (engine, posterior) in enumerate(draws.items()):
            here = posterior.sel(latent=name)
            x = here["x"].transpose("sample", "time").values[here["b"].values == 1][:, order]
            if len(x) == 0:
                continue
            style = {"color": _colour(engine, place)}
            probability = float(inclusion_probability(trees[engine]).sel(latent=name))
            ax.plot(time[order], x.mean(0), linewidth=1.1, label=f"{_name(engine)} ({probability:.2f})", **style)
            band = np.quantile(x, [0.05, 0.95], axis=0)
            ax.fill_between(time[order], *band, alpha=0.2, linewidth=0, **style)
        ax.set_title(str(name), fontsize=10, loc="left")
        ax.legend(loc="upper right", bbox_to_anchor=(1.0, 1.22), ncols=len(draws), frameon=False, fontsize=8)
        ax.margins(x=0.01)
    if len(on) == 0:
        axes[0].set_title("no latent has a probability above 1/2", fontsize=10, loc="left")
    axes[-1].set_xlabel(input_label)
    return axes[: max(1, len(on))]


def plot_engines(comparison: pd.DataFrame, *, unit: str = "unit of the output", axes: Any = None) -> np.ndarray:
    """``compare_engines`` as a picture: inclusion probabilities, predictions per output, H's means with their sds."""
    if list(comparison.columns[:2]) != ["quantity", "of"]:
        raise ValueError(f"comparison: expected compare_engines's result, got columns {list(comparison.columns)}")
    first, second = comparison.columns[2:4]
    names = _name(first), _name(second)
    if axes is None:
        _, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    axes = np.asarray(axes, dtype=object)
    parts = dict(list(comparison.groupby("quantity")))

    def diagonal(ax, low, high):
        ax.plot([low, high], [low, high], color="grey", linewidth=0.8, zorder=0)
        ax.set_xlabel(names[0])
        ax.set_ylabel(names[1])
        ax.set_aspect("equal", adjustable="datalim")

    gates = parts["inclusion probability"]
    axes[0].errorbar(gates[first], gates[second], yerr=2 * gates["mcse"], fmt="o", markersize=4, color="black")
    apart = gates[gates["difference"].abs() > 0.1]
    if len(apart):
        lines = [f"{row['of']}: {row[first]:.2f}, {row[second]:.2f}" for row in apart.to_dict("records")]
        note = "\n".join([f"more than 0.1 apart ({names[0]}, {names[1]}):", *lines])
        axes[0].text(0.5, 0.03, note, transform=axes[0].transAxes, ha="center", fontsize=8)
    diagonal(axes[0], 0, 1)
    axes[0].set_title("inclusion probabilities (bars: 2 Monte Carlo errors)", fontsize=10, loc="left")

    mean, sd = parts["predictive mean"], parts["predictive sd"]
    place = np.arange(len(mean))
    axes[1].bar(place - 0.2, mean["difference"], 0.4, color="#5e3c99", label="means: root mean square")
    axes[1].bar(place + 0.2, sd["difference"], 0.4, color="#e66101", label="mean sds")
    axes[1].axhline(0, color="black", linewidth=0.8)
    axes[1].set_xticks(place, mean["of"], rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    axes[1].set_ylabel(f"{names[0]} less {names[1]} [{names[1]}'s mean sd]")
    axes[1].set_title("predictions, per output", fontsize=10, loc="left")
    axes[1].set_xlim(-0.8, max(len(mean), 3) - 0.2)
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(low, high + 0.18 * (high - low))  # room for the legend
    axes[1].legend(frameon=False, fontsize=8, ncols=2, loc="upper right")

    if "H mean" in parts:
        H, spread = parts["H mean"], parts["H sd"]
        axes[2].errorbar(
            H[first], H[second], xerr=spread[first], yerr=spread[second], fmt="o", markersize=3, color="black",
            elinewidth=0.7,
        )  # fmt: skip
        diagonal(axes[2], H[[first, second]].min().min(), H[[first, second]].max().max())
    axes[2].set_title(f"H ± sd [{unit}], latents on in both", fontsize=10, loc="left")
    return axes
