"""What fits of simulated tables say of fits: how often a gate is right, and where the truth is among the draws."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float
from scipy.optimize import isotonic_regression
from scipy.stats import binomtest

from alps_ppl.results.inclusion import OFF, ON

# From these probabilities on a process has come on, as reports of a calibration count it.
LEVELS = (0.5, ON)
# Of every interval. The upper end of a rate's is what it is at most, with a confidence of 95 %.
INTERVAL = 0.9
EDGES = (0.0, OFF, 0.5, ON, 1.0)
# How many times gates are drawn to see how a reliability curve scatters.
NUM_REDRAWN = 1_000


class Calibration(NamedTuple):
    """What is true of simulated tables, and what their fits say.

    ``pit`` (table,) by quantity: the rank of the truth among the draws, uniform where the sampler is right and the
    truth is from its prior. ``gates`` (table, process): which processes are in a table. ``gate_prob`` (table, process):
    the probabilities that they got. ``processes``: their names. ``tables``: a row per table, failed ones too:
    ``covered``, which part of the noiseless truth at the observed cells lies in its 90 % band, ``unseen``, the same of
    y at cells that the fit didn't see (NaN where there are none), the largest ``r_hat`` of a gate, ``seconds`` and
    ``error``. ``truth``: how they were simulated, "table" or "prior".
    """

    pit: dict[str, Float[np.ndarray, " table"]]
    gates: Bool[np.ndarray, "table process"]
    gate_prob: Float[np.ndarray, "table process"]
    processes: Sequence[str] = ()
    tables: pd.DataFrame | None = None
    truth: str = "prior"

    @property
    def rates(self) -> pd.DataFrame:
        """``rates_of``: a row per process."""
        return rates_of(self)

    @property
    def tree(self) -> xr.DataTree:
        """``tree_of``: for ArviZ."""
        return tree_of(self)


def ranks(truth: Float[np.ndarray, ""], draws: Float[np.ndarray, " draw"], uniform: Any) -> Any:
    """(number of draws below + U (1 + number of ties)) / (number of draws + 1); the draws are the last axis."""
    below, ties = (draws < truth[..., None]).sum(-1), (draws == truth[..., None]).sum(-1)
    return (below + uniform * (1 + ties)) / (draws.shape[-1] + 1)


def exact_interval(count: int, number: int, level: float = INTERVAL) -> tuple[float, float]:
    """Clopper and Pearson's of a rate, of which ``count`` of ``number`` is an estimate: 0 to 1 where there are none."""
    if not number:
        return 0.0, 1.0
    found = binomtest(int(count), int(number)).proportion_ci(level, "exact")
    return float(found.low), float(found.high)


def rates_of(result: Calibration) -> pd.DataFrame:
    """A row per process: in how many tables it is absent, and of those how many have it on; the same where it is there.

    Columns: process, absent, then of each level 50 and 90 (a probability from .5 or .9 on): false_50, false_50_lower,
    false_50_upper; present, and found_50, ... The intervals are 90 %, exact.
    """
    rows = []
    for k, name in enumerate(result.processes):
        row: dict[str, Any] = {"process": name}
        for kind, of, what in (("absent", ~result.gates[:, k], "false"), ("present", result.gates[:, k], "found")):
            row[kind] = int(of.sum())
            for level in LEVELS:
                count = int((result.gate_prob[of, k] >= level).sum())
                column = f"{what}_{level * 100:.0f}"
                row[column] = count
                row[f"{column}_lower"], row[f"{column}_upper"] = exact_interval(count, row[kind])
        rows.append(row)
    return pd.DataFrame(rows)


def bins_of(result: Calibration, edges: Sequence[float] = EDGES) -> pd.DataFrame:
    """A row per bin of probability, all processes together: its gates, how many are truly on, and how many should be.

    Columns: low, high (which is in the next bin, but for 1), gates, on, expected (the sum of the probabilities), and
    the exact 90 % interval of the share of gates that are on, lower and upper.
    """
    b, q = result.gates.ravel(), result.gate_prob.ravel()
    place = np.clip(np.searchsorted(edges, q, side="right") - 1, 0, len(edges) - 2)
    rows = []
    for k, (low, high) in enumerate(pairwise(edges)):
        here = place == k
        lower, upper = exact_interval(b[here].sum(), here.sum())
        row = {"low": low, "high": high, "gates": int(here.sum()), "on": int(b[here].sum())}
        rows.append(row | {"expected": float(q[here].sum()), "lower": lower, "upper": upper})
    return pd.DataFrame(rows)


def reliability(result: Calibration, level: float = INTERVAL) -> pd.DataFrame:
    """A row per gate by rising probability: ``share`` that is on, by isotonic regression, and where that would lie.

    ``lower`` to ``upper`` hold the share with the probability ``level`` were every probability right: gates are drawn
    anew with their ``probability``, and the regression is done again (Dimitriadis, Gneiting and Jordan 2021,
    consistency bands).
    """
    order = np.argsort(result.gate_prob, axis=None, kind="stable")
    b, q = (values.ravel()[order].astype(float) for values in (result.gates, result.gate_prob))
    # Gates of the same probability are one point: their order says nothing.
    _, inverse, count = np.unique(q, return_inverse=True, return_counts=True)

    def fitted(gates: np.ndarray) -> np.ndarray:
        share = np.bincount(inverse, gates) / count
        return isotonic_regression(share, weights=count).x[inverse]

    rng = np.random.default_rng(0)
    drawn = np.array([fitted((rng.uniform(size=len(q)) < q).astype(float)) for _ in range(NUM_REDRAWN)])
    lower, upper = np.quantile(drawn, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return pd.DataFrame({"probability": q, "share": fitted(b), "lower": lower, "upper": upper})


def coverage_of(result: Calibration) -> pd.DataFrame:
    """Which part of the cells their 90 % bands hold, ``covered`` and ``unseen``: the tables' mean and standard error.

    Cells of one table go together, and tables don't: the error is of as many values as there are tables.
    """
    if result.tables is None:
        return pd.DataFrame(columns=["mean", "se", "tables"])
    found = result.tables[["covered", "unseen"]].astype(float)
    return pd.DataFrame({"mean": found.mean(), "se": found.sem(), "tables": found.count()}).query("tables > 0")


def tree_of(result: Calibration) -> xr.DataTree:
    """For ArviZ: ``prior_sbc`` has the ranks of the continuous quantities, and y are the gates.

    posterior_predictive has gates drawn anew with the probabilities that they got, and constant_data those, as
    ``prob``, and with the processes' names ``process`` and ``table`` of each. A gate's own rank would be among ties,
    which ranks don't break.
    """
    from arviz_base import from_dict

    gates, prob = result.gates.ravel().astype(int), result.gate_prob.ravel()
    drawn = np.random.default_rng(0).uniform(size=(1, NUM_REDRAWN, len(prob))) < prob
    groups: dict[str, Any] = {"prior_sbc": {name: pit[None] for name, pit in result.pit.items()}} if result.pit else {}
    groups |= {"posterior_predictive": {"gate": drawn.astype(int)}, "observed_data": {"gate": gates}}
    constant: dict[str, np.ndarray] = {"prob": prob}
    if result.processes:
        table, process = np.indices(result.gates.shape)
        constant |= {"table": table.ravel(), "process": np.array(result.processes)[process.ravel()]}
    groups["constant_data"] = constant
    dims = {name: ["replication"] for name in ("gate", "prob", "table", "process")}
    tree = from_dict(groups, dims=dims)
    tree.attrs["truth"] = result.truth
    return tree
