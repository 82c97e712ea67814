"""How a backtest's gates moved, whether its forecasts are calibrated, and the forecasts themselves."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from alps_ppl.results.backtests import OURS, by_origin
from alps_ppl.results.plots.style import COLOURS

MOST_OUTPUTS = 6


def plot_backtest_gates(gates: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """The probability of each process at each origin; ``gates`` are ``Backtest.gates``."""
    wide = by_origin(gates)
    if ax is None:
        _, ax = plt.subplots(figsize=(3 + 0.75 * wide.shape[1], 1.6 + 0.4 * len(wide)), layout="constrained")
    ax.imshow(wide, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), probability in np.ndenumerate(wide.to_numpy()):
        ax.text(
            column,
            row,
            f"{probability:.2f}",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if probability > 0.6 else "black",
        )
    ax.set_xticks(range(wide.shape[1]), wide.columns, rotation=25, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(wide)), wide.index)
    ax.set_xlabel("last time that the fit saw")
    ax.set_title("activation probability", loc="left", fontsize=9)
    return ax


def plot_calibration(cells: pd.DataFrame, *, num_bins: int = 10, ax: Axes | None = None) -> Axes:
    """How often the observed cells fell into each tenth of the forecast distributions: even where all is right.

    ``cells`` are ``Backtest.cells``. Cells of one origin go together, so that the bars scatter more than independent
    ones would.
    """
    ours = cells[cells.forecast == OURS]
    if ax is None:
        _, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    counts, edges = np.histogram(ours.pit, bins=num_bins, range=(0, 1))
    ax.bar(edges[:-1], counts / len(ours), 1 / num_bins, align="edge", color=COLOURS["gibbs"], edgecolor="white")
    ax.axhline(1 / num_bins, color="grey", ls=":", label="even")
    ax.set_xlabel("probability that the forecast gave to values up to the observed one")
    ax.set_ylabel(f"share of {len(ours):,} cells")
    ax.legend(frameon=False)
    return ax


def plot_backtest_forecasts(cells: pd.DataFrame, *, axes: np.ndarray | None = None) -> np.ndarray:
    """Observed cells, forecasts and 90 % bands from every origin, of up to six outputs; ``cells`` as above.

    A dotted line is at the first time of each forecast; the outputs are in the table's units.
    """
    ours = cells[cells.forecast == OURS]
    outputs = list(dict.fromkeys(ours.output))[:MOST_OUTPUTS]
    if axes is None:
        _, axes = plt.subplots(len(outputs), figsize=(9, 1 + 1.7 * len(outputs)), sharex=True, layout="constrained")
    axes = np.atleast_1d(np.asarray(axes, dtype=object))
    for ax, output in zip(axes, outputs, strict=False):
        for _, rows in ours[ours.output == output].groupby("origin", sort=False):
            time = _axis(rows.time)
            ax.fill_between(time, rows.lower, rows.upper, color=COLOURS["gibbs"], alpha=0.2, lw=0, label="90 % band")
            ax.plot(time, rows["mean"], color=COLOURS["gibbs"], lw=1.3, label="forecast")
            ax.plot(time, rows.observed, ".", color="black", ms=3, label="observed")
            ax.axvline(time.iloc[0], color="grey", lw=0.5, ls=":")
        ax.set_title(output, loc="left", fontsize=9)
    axes[-1].set_xlabel("time")
    once = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
    axes[0].figure.legend(once.values(), once.keys(), loc="outside upper center", ncols=3, frameon=False)
    return axes


def _axis(values: pd.Series) -> pd.Series:
    return values if pd.api.types.is_numeric_dtype(values) else pd.to_datetime(values, format="mixed")
