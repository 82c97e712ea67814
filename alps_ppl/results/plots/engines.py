"""The engines themselves: SVI's run, and both engines beside one another."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from alps_ppl import checks
from alps_ppl.results.plots.style import COLOURS, name_of
from alps_ppl.svi.posterior import SVIFit


def plot_training(fit: SVIFit, *, axes: Any = None) -> np.ndarray:
    """The relaxed model's ELBO and the temperature over the steps (the temperature: the paper's Figure 5).

    ``axes``: two; a new figure if left out. Raises a TypeError for what isn't of ``fit_svi``.
    """
    checks.instance("fit", fit, SVIFit, "what fit_svi returned")
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


def plot_engines(comparison: pd.DataFrame, *, unit: str = "unit of the output", axes: Any = None) -> np.ndarray:
    """``compare_engines`` as a picture: inclusion probabilities, predictions per output, what each process adds.

    The third is the sd over time of what a process adds to an output, as in ``plot_strengths``: mean and sd over draws.

    Parameters
    ----------
    comparison
        ``compare_engines``'s table.
    unit
        The unit of the outputs that were fitted.
    axes
        Three; a new figure if left out.

    Returns
    -------
    The three axes. Raises a ValueError for another table.
    """
    if list(comparison.columns[:2]) != ["quantity", "of"]:
        raise ValueError(f"comparison: expected compare_engines's result, got columns {list(comparison.columns)}")
    engines = list(comparison.columns[2:4])
    if axes is None:
        _, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    axes = np.asarray(axes, dtype=object)
    parts = dict(list(comparison.groupby("quantity")))
    _gates(axes[0], parts["inclusion probability"], engines)
    _predictions(axes[1], parts["predictive mean"], parts["predictive sd"], engines)
    if "strength mean" in parts:
        mean, sd = ([parts[quantity][engine] for engine in engines] for quantity in ("strength mean", "strength sd"))
        axes[2].errorbar(*mean, xerr=sd[0], yerr=sd[1], fmt="o", markersize=3, color="black", elinewidth=0.7)
        _diagonal(axes[2], engines, np.min(mean), np.max(mean))
    axes[2].set_title(f"sd of what each adds ± sd [{unit}], on in both", fontsize=10, loc="left")
    return axes


def _gates(ax: Axes, gates: pd.DataFrame, engines: list[str]) -> None:
    first, second = engines
    ax.errorbar(gates[first], gates[second], yerr=2 * gates["mcse"], fmt="o", markersize=4, color="black")
    apart = gates[gates["difference"].abs() > 0.1]
    if len(apart):
        lines = [f"{row['of']}: {row[first]:.2f}, {row[second]:.2f}" for row in apart.to_dict("records")]
        note = "\n".join([f"more than 0.1 apart ({name_of(first)}, {name_of(second)}):", *lines])
        ax.text(0.5, 0.03, note, transform=ax.transAxes, ha="center", fontsize=8)
    _diagonal(ax, engines, 0, 1)
    ax.set_title("inclusion probabilities (bars: 2 Monte Carlo errors)", fontsize=10, loc="left")


def _predictions(ax: Axes, mean: pd.DataFrame, sd: pd.DataFrame, engines: list[str]) -> None:
    first, second = map(name_of, engines)
    place = np.arange(len(mean))
    ax.bar(place - 0.2, mean["difference"], 0.4, color="#5e3c99", label="means: root mean square")
    ax.bar(place + 0.2, sd["difference"], 0.4, color="#e66101", label="mean sds")
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xticks(place, mean["of"], rotation=45, ha="right", rotation_mode="anchor", fontsize=8)
    ax.set_ylabel(f"{first} less {second} [{second}'s mean sd]")
    ax.set_title("predictions, per output", fontsize=10, loc="left")
    ax.set_xlim(-0.8, max(len(mean), 3) - 0.2)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.18 * (high - low))  # room for the legend
    ax.legend(frameon=False, fontsize=8, ncols=2, loc="upper right")


def _diagonal(ax: Axes, engines: list[str], low: float, high: float) -> None:
    ax.plot([low, high], [low, high], color="grey", linewidth=0.8, zorder=0)
    ax.set_xlabel(name_of(engines[0]))
    ax.set_ylabel(name_of(engines[1]))
    ax.set_aspect("equal", adjustable="datalim")
