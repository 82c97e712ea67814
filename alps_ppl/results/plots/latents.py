"""Which latents are there, how they enter the outputs, and what they add to them."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from alps_ppl.results.contributions import contribution, is_on, strengths, together
from alps_ppl.results.engines import align_engines
from alps_ppl.results.gaps import with_gaps
from alps_ppl.results.inclusion import inclusion_probability
from alps_ppl.results.plots.style import colour_of, name_of
from alps_ppl.results.trees import Trees, as_trees, processes


def plot_inclusion(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Activation probabilities of all latents, engines side by side, with the prior: the paper's Figures 1b and 3c.

    ``table`` is ``inclusion_table``'s; its rows for groups of equal covariance are drawn too. Bars on the Gibbs
    probabilities are two Monte Carlo standard errors. ``ax``: where to draw; a new figure if left out.
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
        label = name_of(engine) + (" ± 2 Monte Carlo standard errors" if error.any() else "")
        ends = [np.minimum(error, probability), np.minimum(error, 1 - probability)]
        bars = ax.bar(offset, probability, width, yerr=ends, color=colour_of(engine, k), label=label)
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


def plot_mixing(trees: Trees, *, unit: str = "unit of the output", axes: Any = None) -> np.ndarray:
    """Mean and variance of the mixing matrix H, a row per engine: the paper's Figures 3a and 3b.

    A latent's sign is free; its draws are given one sign, the same for all engines. Its scale is free, too, and much of
    the variance is of that; ``plot_strengths`` shows what the data tell. The names of latents that no
    engine has on (above 1/2) are grey.

    Parameters
    ----------
    trees
        Fits or ``to_datatree``'s trees by the engine's name, or one of them.
    unit
        Of H: the unit of the outputs that were fitted.
    axes
        (engine, 2); a new figure if left out.

    Returns
    -------
    The axes (engine, 2).
    """
    trees = as_trees(trees, needs="x")
    first = next(iter(trees.values()))["posterior"]
    outputs, latents = (np.asarray(first[dim]).astype(str) for dim in ("output", "latent"))
    if axes is None:
        height = 0.5 + max(0.8, 0.26 * len(outputs))
        size = (2 * (1.6 + 0.42 * len(latents)) + 1.8, height * len(trees) + 1.0)
        _, axes = plt.subplots(
            len(trees), 2, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
        )
    axes = np.asarray(axes, dtype=object)
    draws = {engine: posterior["H"] for engine, posterior in align_engines(trees).items()}
    on = _on(trees)
    for column, what, moment, bar_label, cmap, lowest in (
        (0, "mean", xr.DataArray.mean, f"[{unit}]", "RdBu_r", -1.0),
        (1, "variance", xr.DataArray.var, f"[({unit})²]", "viridis", 0.0),
    ):
        values = {engine: moment(H, ("chain", "draw")).values for engine, H in draws.items()}
        # One scale for all engines, so that colours can be compared between rows.
        largest = max(np.abs(value).max() for value in values.values())
        for (engine, value), ax in zip(values.items(), axes[:, column], strict=True):
            image = ax.imshow(value, aspect="auto", cmap=cmap, vmin=lowest * largest, vmax=largest)
            ax.set_xticks(range(len(latents)), latents, rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
            ax.set_yticks(range(len(outputs)), outputs, fontsize=8)
            ax.set_title(f"{name_of(engine)}: {what} of H", fontsize=10)
        ax.figure.colorbar(image, ax=list(axes[:, column])).set_label(bar_label, fontsize=8)
        for label, bold in zip(ax.get_xticklabels(), on, strict=True):
            label.set_color("black" if bold else "#999999")
        ax.set_xlabel("latent process (grey: off)")
    for ax in axes[:, 0]:
        ax.set_ylabel("output")
    return axes


def plot_strengths(trees: Trees, *, unit: str = "unit of the output", axes: Any = None) -> np.ndarray:
    """``strengths`` as a table in colour, a row of axes per engine: the sd over time of what processes add to outputs.

    Other than H's, its scale is one that the data tell. Processes of equal covariance are one column, their sum. A
    minus and red: the output goes against the one that the process moves most. The names of processes that no engine
    has on (above 1/2) are grey.

    Parameters
    ----------
    trees
        Fits or ``to_datatree``'s trees by the engine's name, or one of them.
    unit
        The unit of the outputs that were fitted.
    axes
        One for each engine; a new figure if left out.

    Returns
    -------
    The axes, one for each engine.
    """
    trees = as_trees(trees, needs="x")
    first = next(iter(trees.values()))
    outputs, names = first["posterior"].to_dataset()["output"].values.astype(str), list(together(trees))
    if axes is None:
        height = 0.9 + 0.3 * len(outputs) + 0.055 * max(map(len, names))
        size = (2.6 + 0.85 * len(names), height * len(trees))
        _, axes = plt.subplots(len(trees), 1, figsize=size, squeeze=False, layout="constrained")
    axes = np.asarray(axes, dtype=object).ravel()
    table, on = strengths(trees), _probable(trees)
    largest = table["mean"].abs().max() if len(table) else 1.0
    for (engine, rows), ax in zip(((e, table[table.engine == e]) for e in trees), axes, strict=False):
        mean, sd = (
            rows.pivot(index="output", columns="process", values=moment)
            .reindex(index=outputs, columns=names)
            .to_numpy()
            for moment in ("mean", "sd")
        )
        image = ax.imshow(mean, aspect="auto", cmap="RdBu", vmin=-largest, vmax=largest)
        for (i, j), value in np.ndenumerate(mean):
            if np.isfinite(value):
                colour = "white" if abs(value) > 0.6 * largest else "black"
                text = f"{value:.2f} ± {sd[i, j]:.2f}".replace("-", "−")
                ax.text(j, i, text, ha="center", va="center", fontsize=7, color=colour)
        ax.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
        ax.set_yticks(range(len(outputs)), outputs, fontsize=8)
        ax.set_title(f"{name_of(engine)}: sd over time of what each adds, while it is on", fontsize=10, loc="left")
        ax.figure.colorbar(image, ax=ax).set_label(f"[{unit}]", fontsize=8)
        for label, name in zip(ax.get_xticklabels(), names, strict=True):
            label.set_color("black" if name in on else "#999999")
    axes[-1].set_xlabel("process (grey: off)")
    return axes[: len(trees)]


def plot_latents(
    trees: Trees, *, unit: str = "unit of the output", time: Any = None, input_label: str = "t", axes: Any = None
) -> np.ndarray:
    """What each process that some engine has on (above 1/2) adds to the output that it moves most: mean and 90 % band.

    This is sum_j H_ij b_j x_j(t) over the draws that have the process on, which the data tell, where the sign and the
    scale of x_j by itself are free. Processes of equal covariance can change places, and so are summed. A line ends
    where there is a gap between the fitted times. The paper's Figure 2a has the noiseless latents.

    Parameters
    ----------
    trees
        Fits or ``to_datatree``'s trees by the engine's name, or one of them.
    unit
        The unit of the outputs that were fitted.
    time
        (time,) the fitted times as they are to be drawn, dates for example; left out, as they were fitted.
    input_label
        What the horizontal axis is called, with its unit.
    axes
        One for each process that is on; a new figure if left out.

    Returns
    -------
    The axes, one for each process that is on.

    Raises a ValueError where there are too few axes.
    """
    trees = as_trees(trees, needs="x")
    on = _probable(trees)
    if axes is None:
        rows = max(1, len(on))
        _, axes = plt.subplots(
            rows, 1, figsize=(11, 1.7 * rows + 0.9), sharex=True, squeeze=False, layout="constrained"
        )
    axes = np.asarray(axes, dtype=object).ravel()
    if len(axes) < len(on):
        raise ValueError(f"axes: expected one for each of the {len(on)} latents that are on, got {len(axes)}")
    first = next(iter(trees.values()))
    time = first["posterior"].to_dataset()["time"].values if time is None else np.asarray(time)
    order = np.argsort(time, kind="stable")
    places, most = together(trees), strengths(trees).query("most").drop_duplicates("process")
    output_of = dict(zip(most.process, most.output, strict=True))
    for (name, probability), ax in zip(on.items(), axes, strict=False):
        for place, (engine, tree) in enumerate(trees.items()):
            draws = contribution(tree, places[name], output_of[name])[:, order]
            if len(draws) == 0:
                continue
            colour, label = colour_of(engine, place), f"{name_of(engine)} ({probability[engine]:.2f})"
            x, mean, lower, upper = with_gaps(time[order], draws.mean(0), *np.quantile(draws, [0.05, 0.95], axis=0))
            ax.plot(x, mean, linewidth=1.1, label=label, color=colour)
            ax.fill_between(x, lower, upper, alpha=0.2, linewidth=0, color=colour)
        ax.set_title(f"{name} in {output_of[name]}", fontsize=10, loc="left")
        ax.legend(loc="lower right", bbox_to_anchor=(1.0, 0.97), ncols=len(trees), frameon=False, fontsize=8)
        ax.margins(x=0.01)
    if len(on) == 0:
        axes[0].set_title("no latent has a probability above 1/2", fontsize=10, loc="left")
    axes[0].figure.supylabel(f"[{unit}]", fontsize=9)
    axes[-1].set_xlabel(input_label)
    return axes[: max(1, len(on))]


def _probable(trees: dict[str, xr.DataTree]) -> dict[str, dict[str, float]]:
    """The processes, those of equal covariance as one, that some engine has on (above 1/2): probability by engine."""
    found: dict[str, dict[str, float]] = {}
    shared = together(trees)
    for engine, tree in trees.items():
        single = inclusion_probability(tree).values
        one_each = {tuple(places): float(single[places[0]]) for places in processes(tree).values()}
        for name, places in shared.items():
            known = one_each.get(tuple(places))
            found.setdefault(name, {})[engine] = is_on(tree, places).mean() if known is None else known
    return {name: by_engine for name, by_engine in found.items() if max(by_engine.values()) > 0.5}


def _on(trees: dict[str, xr.DataTree]) -> np.ndarray:
    """Which latents are on (probability above 1/2) by some engine."""
    return np.any([inclusion_probability(tree).values > 0.5 for tree in trees.values()], axis=0)
