"""Fits of simulated tables: false alarms, the gates' reliability, and the ranks of the truth."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from alps_ppl.results.calibration import INTERVAL, Calibration, rates_of, reliability
from alps_ppl.results.inclusion import ON

# Of the ranks' band, and of the draws that it is computed from.
BAND, NUM_SIMULATED = 0.95, 1_000
FALSE, FOUND = "#b2182b", "#1b7837"


def plot_rates(result: Calibration, *, ax: Axes | None = None) -> Axes:
    """How often each process comes on, from .9 on, in tables without it and with it; bars are exact 90 % intervals."""
    rates = rates_of(result)
    if ax is None:
        _, ax = plt.subplots(figsize=(7, 1.4 + 0.5 * len(rates)), layout="constrained")
    kinds = (
        ("absent", "false", FALSE, -0.14, "tables without it"),
        ("present", "found", FOUND, 0.14, "tables with it"),
    )
    for kind, what, color, shift, label in kinds:
        column, number = f"{what}_{ON * 100:.0f}", rates[kind].to_numpy()
        share = np.where(number > 0, rates[column] / np.maximum(number, 1), np.nan)
        y = np.arange(len(rates)) + shift
        ax.hlines(y, rates[f"{column}_lower"], rates[f"{column}_upper"], color=color, lw=2, alpha=0.5)
        ax.plot(share, y, "o", color=color, label=label)
        for place, count, of in zip(y, rates[column], number, strict=True):
            ax.annotate(f"{count} of {of}", (1.02, place), va="center", fontsize=8, color=color, annotation_clip=False)
    ax.set_yticks(range(len(rates)), rates.process)
    ax.set(
        xlim=(-0.02, 1.0), ylim=(len(rates) - 0.5, -0.5), xlabel=f"share of the tables in which it has {ON:g} or more"
    )
    ax.figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return ax


def plot_reliability(result: Calibration, *, ax: Axes | None = None) -> Axes:
    """The share of gates that are truly on by the probability that they got; the band is where it lies if all is right.

    All processes together; gates are ticks at the top where they are on, at the bottom where they are off.
    """
    curve = reliability(result)
    if ax is None:
        _, ax = plt.subplots(figsize=(5, 4.4), layout="constrained")
    ax.plot([0, 1], [0, 1], color="grey", lw=0.8)
    band = f"{INTERVAL * 100:.0f} % of curves, if right"
    ax.fill_between(curve.probability, curve.lower, curve.upper, color="C0", alpha=0.2, lw=0, label=band)
    ax.plot(curve.probability, curve.share, color="C0", marker=".", ms=4, label="share that is on")
    for on, y in ((True, 1.04), (False, -0.04)):
        q = result.gate_prob[result.gates == on]
        ax.plot(q, np.full(len(q), y), "|", color="0.4", ms=6, alpha=0.5)
    ax.set(xlabel="probability that a gate got", ylabel="share of such gates that are on", xlim=(-0.02, 1.02))
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.96))
    return ax


def plot_ranks(pit: Mapping[str, Any], *, families: Mapping[str, str] | None = None, ax: Axes | None = None) -> Axes:
    """The ECDF of each quantity's ranks less the uniform's, and the band that holds a uniform one's with 95 %.

    ``families`` says which quantities have one colour and one label: the label by quantity. None: each its own.
    """
    from arviz_stats.ecdf_utils import ecdf_pit

    if ax is None:
        _, ax = plt.subplots(figsize=(6, 4.4), layout="constrained")
    labels = dict(families or {name: name for name in pit})
    colours = {label: f"C{k}" for k, label in enumerate(dict.fromkeys(labels.values()))}
    for name, values in pit.items():
        points, ecdf, lower, upper = ecdf_pit(np.asarray(values), BAND, NUM_SIMULATED)
        ax.step(points, ecdf - points, where="post", lw=1, label=labels[name], color=colours[labels[name]], alpha=0.7)
    ax.fill_between(points, lower - points, upper - points, color="0.85", step="post", zorder=0)
    ax.set(xlabel="rank of the truth among the draws", ylabel="ECDF less the uniform's", xlim=(0, 1))
    once = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False}
    ax.legend(once.values(), once.keys(), fontsize="small", ncols=3, **above)
    return ax
