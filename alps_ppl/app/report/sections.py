"""What the report's sections say, as plain values for its template."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl.app.report.run_folder import RunFolder
from alps_ppl.app.report.verdict import NAMES
from alps_ppl.results.backtests import by_origin
from alps_ppl.results.contributions import processes_together, strengths
from alps_ppl.results.cycles import cycles
from alps_ppl.results.fits import OF_A_FAMILY
from alps_ppl.results.inclusion import (
    LARGEST_GATE_R_HAT,
    LARGEST_LOG_JOINT_R_HAT,
    OFF,
    disagreements,
    gate_vectors,
    status,
    worst_convergence,
)
from alps_ppl.results.shares import variance_shares
from alps_ppl.results.trees import processes
from alps_ppl.tables.data import Conversion

MOST_DRAWS = 1000  # for shares, H and latents: their Monte Carlo error is then small beside their spread
ENOUGH_DRAWS = 100  # effective draws that know a probability to .05
GREY = "var(--grey)"
# Keys of the summary's largest differences, and what they are.
DIFFERENCES = {
    "inclusion probability": "Between the engines, over latents and groups; latents of equal covariance can trade "
    "places.",
    "predictive mean": "Between the engines' predictions: root mean square of the worst output, in its mean sd.",
    "predictive sd": "Between the widths of the engines' bands, of the worst output, in its mean sd.",
    "strength mean": "Between the engines, of the sd of what a process adds to an output, on in both, in training sds.",
}


class Part(NamedTuple):
    """A process on the page, or several of equal covariance as one: its colour and its latents' places."""

    colour: str
    places: list[int]


def decimals(value: float | None, digits: int) -> str:
    """A number with so many decimals; a dash where there is none."""
    if value is None or np.isnan(value):
        return "–"
    return f"{round(float(value), digits) + 0.0:,.{digits}f}".replace("-", "−")  # and no minus zero


def significant(value: float) -> str:
    """A number to three digits, never in powers of ten above them."""
    return "–" if np.isnan(value) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """A share of 1 as a whole percentage; a dash where there is none."""
    return "–" if np.isnan(share) else f"{decimals(100 * share, 0)} %"


def thinned(tree: xr.DataTree) -> xr.DataTree:
    """At most ``MOST_DRAWS`` draws and the observed data, in memory."""
    posterior = tree["posterior"].to_dataset()
    step = max(1, -(-posterior.sizes["chain"] * posterior.sizes["draw"] // MOST_DRAWS))
    thin = posterior.isel(draw=slice(None, None, step)).load()
    rest = {
        name: tree[name].to_dataset().load() for name in ("observed_data", "constant_data") if name in tree.children
    }
    return xr.DataTree.from_dict({"posterior": thin, **rest})


def colours(table: pd.DataFrame, engine: str) -> dict[str, str]:
    """Each process' colour, grey for those that are off. Processes of equal covariance have one colour.

    A member of such a group is grey only below its part of what is off: a group may be on when none of its members is.
    """
    rows = table[table.engine == engine]
    size = rows.groupby("group").members.max()
    single = rows[rows.members == 1]
    on = single[single.probability > OFF / single.group.map(size)].group.unique()
    # Hues a golden angle apart differ, however many there are.
    hues = {group: f"oklch(var(--tone) 0.13 {(255 + 137.5 * k) % 360:.0f})" for k, group in enumerate(on)}
    return {str(row.latent): hues.get(row.group, GREY) for row in single.itertuples()}


def parts(tree: xr.DataTree, colours: Mapping[str, str]) -> dict[str, Part]:
    """The processes that aren't grey, those of equal covariance as one."""
    first = {places[0]: colours[name] for name, places in processes(tree).items()}
    found = {name: Part(first[places[0]], places) for name, places in processes_together(tree).items()}
    return {name: part for name, part in found.items() if part.colour != GREY}


def data(run: RunFolder) -> dict[str, Any]:
    """The numbers of outputs, times and cells; ``extent``: the first and the last time, where there is one axis.

    The times of a forecast ahead of the file have no cells and don't count.
    """
    rows = run.predictions
    first = rows[(rows.engine == rows.engine.iloc[0]) & (rows.split != "forecast")]
    observed, outputs = first.observed.notna(), first.output.nunique()
    extent = None
    if "input" in first:
        ends = first["date" if "date" in first else "input"].iloc[[first.input.argmin(), first.input.argmax()]]
        extent = [end.replace("T", " ") if isinstance(end, str) else f"{end:g}" for end in ends]
    return {
        "outputs": outputs,
        "times": len(first) // outputs,
        "observed": int(observed.sum()),
        "missing": float(1 - observed.mean()),
        "held_out": first[observed].split.value_counts().drop("train", errors="ignore").to_dict(),
        "extent": extent,
        "interval": run.interval,
    }


def gates(table: pd.DataFrame, engine: str, colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of the activation bars: latents, then groups of equal covariance; ``whisker`` is (low, high)."""
    wide = table.set_index(["latent", "engine"]).probability
    others = [other for other in dict.fromkeys(table.engine) if other != engine]
    single = table[(table.engine == engine) & (table.members == 1)]
    of_group = {row.group: colours[str(row.latent)] for row in single.itertuples()}
    alike = single[single.group.isin(table[table.members > 1].group)].latent.tolist()
    return [
        {
            "latent": str(row.latent),
            "is_group": row.members > 1,
            "colour": of_group[row.group],
            "probability": row.probability,
            "mcse": None if np.isnan(row.mcse) else row.mcse,
            "whisker": np.clip([row.probability - 2 * row.mcse, row.probability + 2 * row.mcse], 0, 1),
            "prior": row.prior,
            "status": status(row.probability),
            "words": "not told apart" if row.latent in alike and status(row.probability) == "undecided" else "",
            "others": {other: wide[row.latent, other] for other in others if (row.latent, other) in wide.index},
        }
        for row in table[table.engine == engine].sort_values("members", kind="stable").itertuples()
    ]


def shares(tree: xr.DataTree, shown: list[str]) -> dict[str, Any]:
    """``variance_shares`` by output, processes that aren't ``shown`` in one sum; ``scale``: the longest bar."""
    table = variance_shares({"tree": tree}, together=True)
    rows = {}
    for output, here in table.groupby("output", sort=False):
        here = here.set_index(["part", "latent"])[["share", "lower", "upper"]]
        latents = here.loc["latent"]
        rest = latents.drop(shown)
        rows[str(output)] = {
            "latents": {name: latents.loc[name].to_dict() for name in shown},
            "others": float(rest.share.sum(skipna=False)) if len(rest) else None,
            "own": here.loc["own memory", ""].to_dict() if "own memory" in here.index else None,
            "noise": here.loc["noise", ""].to_dict(),
            "overlap": here.loc["overlap", ""].to_dict(),
        }
    # What isn't overlap, which may be negative, adds to 1 less overlap.
    lengths = [1 - row["overlap"]["share"] for row in rows.values()]
    has_own = any(row["own"] for row in rows.values())
    return {"rows": rows, "scale": float(np.nanmax([1.0, *lengths])), "has_own": has_own}


def backtest(run: RunFolder) -> dict[str, Any] | None:
    """Scores, and each process' probability by origin, of the backtest that the folder has, if any."""
    if run.backtest is None:
        return None
    scores, gates, _ = run.backtest
    wide = by_origin(gates)
    rows = [(str(name), row.tolist()) for name, row in wide.iterrows()]
    return {"scores": scores.to_dict("records"), "origins": list(wide.columns), "gates": rows}


def cycle_rows(tree: xr.DataTree, shown: list[str], conversion: Conversion | None) -> list[dict[str, Any]]:
    """``cycles`` of the processes that are ``shown``, with its peaks as dates, or times of the day of a daily one."""
    table = cycles({"tree": tree})
    rows = table[table.process.isin(shown)].to_dict("records")
    for row in rows:
        row["error"] = _error(max(row["peak_upper"] - row["peak"], row["peak"] - row["peak_lower"]), conversion)
        row["peak"] = _peak(row["peak"], row["period"], conversion)
    return rows


def _peak(peak: float, period: float, conversion: Conversion | None) -> str:
    if conversion is None or conversion.origin is None:
        return f"{peak:.4g}, every {period:.4g}"
    unit = pd.Timedelta(1, conversion.step)
    date = pd.Timestamp(conversion.origin) + peak * unit
    if period * unit == pd.Timedelta(1, "D"):
        return f"{date.round('min'):%H:%M}"
    return f"{date.round('min'):%Y-%m-%d %H:%M}" if period * unit < pd.Timedelta(60, "D") else f"{date:%Y-%m-%d}"


def _error(error: float, conversion: Conversion | None) -> str:
    if conversion is None or conversion.origin is None:
        return f"{error:.2g}"
    error *= pd.Timedelta(1, conversion.step)
    if error >= pd.Timedelta(1, "D"):
        return f"{error / pd.Timedelta(1, 'D'):.1f} days"
    hours, minutes = divmod(round(error / pd.Timedelta(1, "min")), 60)
    return f"{hours}:{minutes:02d}"


def mixing(tree: xr.DataTree, shown: list[str]) -> dict[str, Any]:
    """``strengths`` by output of the processes that are ``shown``; ``lead``: the output that each moves most."""
    table = strengths({"tree": tree})
    table = table[table.process.isin(shown)]
    largest = float(table["mean"].abs().max()) or 1.0
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in table.to_dict("records"):
        rows.setdefault(row["output"], []).append(row | {"strength": abs(row["mean"]) / largest})
    most = table[table.most]
    unsigned = table[~table.signed].process.unique().tolist()
    lead = dict(zip(most.process, most.output, strict=True))
    return {"processes": list(lead), "rows": rows, "lead": lead, "unsigned": unsigned}


def combinations(tree: xr.DataTree, top: int = 5) -> list[dict[str, Any]]:
    """The most probable sets of processes."""
    vectors = gate_vectors(tree, top=top)
    latents = vectors.columns[:-2]
    return [
        {"latents": list(latents[gates == 1]), "probability": probability}
        for gates, probability in zip(vectors[latents].to_numpy(), vectors.probability, strict=True)
    ]


class Diagnostic(NamedTuple):
    """A number with its meaning in a sentence; ``level`` as in ``verdict.Note``."""

    name: str
    value: str
    level: str
    meaning: str


def diagnostics(run: RunFolder, table: pd.DataFrame, engine: str, lp_r_hat: float) -> list[Diagnostic]:
    """What the engines say of themselves, of each other, and how many held-out cells the bands hold."""
    rows = []
    if "gibbs" in run.trees:
        rows += _of_sampler(run.trees["gibbs"], table, lp_r_hat)
    for name in [name for name in run.trees if name in OF_A_FAMILY]:
        elbo = decimals(run.summary[name].get("elbo"), 1)
        meaning = "A lower bound of the log evidence in nats; it compares fits of the same data and nothing else."
        rows.append(Diagnostic(f"ELBO ({NAMES[name]})", elbo, "plain", meaning))
    differences = run.summary.get("largest_differences", {})
    rows += [
        Diagnostic(f"Largest difference, {quantity}", decimals(differences[quantity], 2), "plain", meaning)
        for quantity, meaning in DIFFERENCES.items()
        if quantity in differences
    ]
    return rows + _of_bands(run, engine)


def _of_sampler(tree: xr.DataTree, table: pd.DataFrame, lp_r_hat: float) -> list[Diagnostic]:
    r_hat, ess = worst_convergence(table, "gibbs")
    sizes = tree["posterior"].sizes

    def judged(value: float, good: bool, unknown: str = "caution", bad: str = "bad") -> str:
        return unknown if np.isnan(value) else "good" if good else bad

    return [
        Diagnostic(
            "Largest R-hat of a gate",
            decimals(r_hat, 3),
            judged(r_hat, r_hat <= LARGEST_GATE_R_HAT, bad="bad" if len(disagreements(table, "gibbs")) else "plain"),
            f"Compares the chains' gates: 1 where they can't be told apart; above {LARGEST_GATE_R_HAT} they differ, "
            "which matters where one chain alone would have another answer.",
        ),
        Diagnostic(
            "R-hat of the log joint",
            decimals(lp_r_hat, 2),
            judged(lp_r_hat, lp_r_hat <= LARGEST_LOG_JOINT_R_HAT),
            f"Compares how well the chains fit: above {LARGEST_LOG_JOINT_R_HAT} they sit in modes of their own, and "
            "their average isn't the posterior.",
        ),
        Diagnostic(
            "Fewest effective draws of a gate",
            decimals(ess, 0),
            judged(ess, ess >= ENOUGH_DRAWS, unknown="plain"),
            f"How many independent draws the worst gate's draws are worth; {ENOUGH_DRAWS} know a probability to .05. "
            "A dash where no gate moved.",
        ),
        Diagnostic("Draws", f"{sizes['chain']} × {sizes['draw']:,}", "plain", "Chains, and the sweeps kept of each."),
    ]


def _of_bands(run: RunFolder, engine: str) -> list[Diagnostic]:
    cells = run.predictions[run.predictions.engine == engine]
    cells = cells[(cells.split != "train") & cells.observed.notna()]
    if len(cells) == 0:
        return []
    interval, inside = run.interval, cells.observed.between(cells.lower, cells.upper).mean()
    meaning = (
        f"{NAMES.get(engine, engine)}'s, of {len(cells):,} that the fit didn't see. Far fewer than "
        f"{percent(interval)}: the bands are too sure; far more: too wide. Neighbouring cells aren't independent."
    )
    level = "good" if abs(inside - interval) <= 0.1 else "caution"
    return [Diagnostic(f"Held-out cells in the {percent(interval)} band", percent(inside), level, meaning)]
