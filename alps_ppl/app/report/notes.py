"""The notes under the report's headline, which the command prints, too: sentences that support or limit the answer."""

import re
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import norm, poisson

from alps_ppl.app.report.run_folder import RunFolder
from alps_ppl.app.report.sections import percent
from alps_ppl.app.report.verdict import NAMES, Note, listed
from alps_ppl.results.inclusion import ON, gates_of
from alps_ppl.results.scales import groups, interchangeable, scales
from alps_ppl.results.shares import of_one_output
from alps_ppl.results.trees import processes
from alps_ppl.tables.data import Conversion

# Tails are heavy where so many more cells than expected are as many sds off that chance alone does it less often.
FAR, FAR_LEVEL = 4.0, 1e-4
# Below this a p-value's digits say nothing.
TINY = 1e-16


def num_times(run: RunFolder) -> int:
    """At how many times there is a cell that was fitted."""
    rows = run.predictions[(run.predictions.split == "train") & run.predictions.observed.notna()]
    labels = [name for name in rows.columns if name.startswith("input")]
    return len(rows[labels].drop_duplicates())


def held_out_notes(run: RunFolder, engine: str) -> list[Note]:
    """How the bands and the error did on cells that the fit didn't see, beside simple forecasts."""
    cells = run.predictions[(run.predictions.engine == engine) & run.predictions.observed.notna()]
    notes = []
    for split, rows in cells[cells.split != "train"].groupby("split", sort=False):
        inside, band = rows.observed.between(rows.lower, rows.upper).mean(), percent(run.interval)
        text = f"Of {len(rows):,} cells held out as “{split}”, {percent(inside)} are in the {band} band"
        rmse = {n: row["rmse"] for n, row in run.summary["scores"].get(split, {}).items() if row["rmse"] is not None}
        others = {name: value for name, value in rmse.items() if name not in NAMES}
        if engine in rmse:
            text += f"; the error is {rmse[engine]:.2f} training sds"
            text += "".join(f", {name} {value:.2f}" for name, value in others.items())
        beaten = engine in rmse and any(value < rmse[engine] for value in others.values())
        notes.append(Note("caution" if inside < run.interval - 0.1 or beaten else "good", text + "."))
    return notes


def spikes_note(run: RunFolder) -> list[Note]:
    """That cells stood out of their neighbours, and what became of them."""
    data = run.summary.get("data", {})
    if (light := data.get("light_cells")) is not None:
        weigh = "1 cell weighs" if light == 1 else f"{light} cells weigh"
        than = "less than a tenth of an ordinary one (outliers.csv)"
        return [Note("plain", f"Noise has heavy tails, Student's: {weigh} {than}.")] if light else []
    if not (number := data.get("spikes", 0)):
        return []
    text = f"{number} cell{' stands' if number == 1 else 's stand'} far out of the neighbours (outliers.csv)"
    if data.get("spikes_are_missing"):
        return [Note("plain", f"{text} and {'was' if number == 1 else 'were'} taken for missing.")]
    return [Note("caution", f"{text} and {'was' if number == 1 else 'were'} fitted: spikes widen all bands.")]


def tails_note(run: RunFolder, engine: str) -> list[Note]:
    """That residuals have heavier tails than the model's noise: more of them than chance leaves beyond four sds."""
    cells = run.predictions[(run.predictions.engine == engine) & (run.predictions.split == "train")]
    sds = ((cells.observed - cells["mean"]) / cells.sd).dropna().abs()
    far, expected = int((sds > FAR).sum()), 2 * norm.sf(FAR) * len(sds)
    if "light_cells" in run.summary.get("data", {}) or far < 3 or poisson.sf(far - 1, expected) > FAR_LEVEL:
        return []
    text = f"{far} of {len(sds):,} fitted cells are more than {FAR:g} sds off, where normal noise leaves {expected:.1g}"
    return [Note("caution", f"{text}: its tails are heavy. fit --noise student (noise_df=4) weighs such cells less.")]


def innovation_notes(summary: dict[str, Any]) -> list[Note]:
    """That what is left of outputs isn't noise that is independent over times and outputs."""
    found = pd.DataFrame(summary.get("gibbs", {}).get("suspicious_innovations", []))
    notes = []
    for check, rows in found.groupby("check", sort=False) if len(found) else []:
        first: Any = next(rows.itertuples())
        names = [f"{row.output} and {row.other}" if row.other else str(row.output) for row in rows.head(4).itertuples()]
        named = listed([*names, f"{len(rows) - 4} more"] if len(rows) > 4 else names)
        size = f"({names[0]}: correlation {first.correlation:.2f}"
        p = f"p = {first.p_value:.1g}" if first.p_value > TINY else f"p < {TINY:g}"
        if check == "over time":
            rows_on = f"over {first.lag} row{'s' * (first.lag > 1)}"
            text = (
                f"What the model leaves of {named} isn't noise: it goes on from row to row {size} {rows_on}, {p}). "
                f"Something is behind {'them' if len(rows) > 1 else 'it'} that no process and no "
                "memory here can say, and a process that is on may stand in for it. A cycle that isn't offered may be "
                "missing, or memories of each output's own, where the model has none."
            )
        else:
            text = (
                f"What the model leaves of {named} goes together within a row {size}, {p}): "
                "outputs share noise or a process that isn't offered, and a process that is on may stand in for it. "
                "white() offers shared noise."
            )
        notes.append(Note("caution", text))
    return notes


def own_memory_note(run: RunFolder, shares: dict[str, Any]) -> list[Note]:
    """What outputs do for themselves, where the model has private memories."""
    own = [(name, row["own"]["share"]) for name, row in shares["rows"].items() if row["own"]]
    if not own:
        return []
    named = ", ".join(f"{name} {percent(share)}" for name, share in own[:8]) + ", …" * (len(own) > 8)
    text = f"A memory of its own, which no other output shares, has of each output's variance: {named}."
    if "light_cells" in run.summary.get("data", {}):
        text += " With Student's noise a memory of a step or two may be noise with lighter tails."
    return [Note("plain", text)]


def scale_notes(tree: xr.DataTree, on: list[str], conversion: Conversion | None) -> list[Note]:
    """What is known of the unknown scales of the processes that are on."""
    table = scales({"tree": tree})
    alike = {name for members in groups(tree) for name in members}
    notes = []
    for name, rows in table[table.process.isin(set(on) - alike)].groupby("process", sort=False):
        values = [_scale(row, conversion) for row in rows.itertuples()]
        parameter = {"time": "a shift of level after"}.get(rows.parameter.iloc[0], rows.parameter.iloc[0])
        text = f"{name}: {parameter} {values[0]}"
        if len(values) > 1:
            each = [f"{value} with probability {p:.2f}" for value, p in zip(values, rows.probability, strict=True)]
            text = f"{name}: its {rows.parameter.iloc[0]} has {len(values)} candidates, {'; '.join(each)}"
        if alone := rows.parameter.iloc[0] == "time" and _leaves_one_time(tree, rows["median"].iloc[0]):
            text += ", which leaves one time alone: a spike there looks the same"
        elif rows.at_the_edge.any():
            text += ", at an end of its range: give a wider one"
        caution = alone or rows.at_the_edge.any() or len(values) > 1
        notes.append(Note("caution" if caution else "plain", text + "."))
    return notes


def _leaves_one_time(tree: xr.DataTree, at: float) -> bool:
    """Whether a shift is after the first time of a table, or before its last."""
    if "observed_data" not in tree.children:
        return False  # a tree of gates alone
    times = np.unique(tree["observed_data"].to_dataset()["time"].values)
    return bool(min((times <= at).sum(), (times > at).sum()) <= 1)


def _scale(row: Any, conversion: Conversion | None) -> str:
    """A row's median and interval: a time as a date where there are dates, else with the inputs' unit."""
    step = None if conversion is None else conversion.step
    if row.parameter == "time" and conversion is not None and conversion.origin is not None:
        times = pd.Timestamp(conversion.origin) + pd.to_timedelta([row.lower, row.median, row.upper], step)
        low, median, high = times.strftime("%Y-%m-%d" if step == "days" else "%Y-%m-%d %H:%M")
        return f"{median} ({low} to {high})"
    unit = "" if step is None else f" {step.lower()}"
    if row.parameter == "time":
        return f"{row.median:.10g}{unit} ({row.lower:.10g} to {row.upper:.10g})"
    return f"{row.median:.4g}{unit} ({row.lower:.4g} to {row.upper:.4g})"


def interchangeable_notes(tree: xr.DataTree, conversion: Conversion | None) -> list[Note]:
    """How many of interchangeable processes are on, beside the prior, and what those carry that are surely there."""
    if "observed_data" not in tree.children or "x" not in tree["posterior"]:
        return []  # an older file, or a tree of gates alone
    table = interchangeable({"tree": tree})
    notes = []
    for named, rows in table.groupby("processes", sort=False):
        names = named.split(", ")
        at_least = rows.drop_duplicates("rank").set_index("rank").probability
        exactly = at_least - at_least.shift(-1, fill_value=0.0)
        exactly.loc[0] = 1 - at_least.iloc[0]
        prior = _prior_of_number(tree, names)
        numbers = [f"{k} with probability {exactly[k]:.2f} (prior {prior[k]:.2f})" for k in sorted(exactly.index)]
        text = f"Of the interchangeable processes {names[0]} to {names[-1]} are on: {', '.join(numbers)}. "
        for rank in at_least.index[at_least >= ON]:
            here = rows[rows["rank"] == rank].sort_values("share", ascending=False)
            first: Any = next(here.itertuples())
            of = "" if np.isnan(first.median) else f", {first.parameter} {_scale(first, conversion)}"
            carried = ", ".join(f"{row.output} {percent(row.share)}" for row in here.head(4).itertuples())
            text += f"Number {rank} by size{of}: of the variance of {carried}{', …' * (len(here) > 4)}. "
        notes.append(Note("plain" if exactly.max() >= ON else "caution", text.strip()))
    return notes


def at_least(tree: xr.DataTree) -> dict[str, list[float]]:
    """The probabilities that at least one, two, ... are on of the processes "NAME x N", by the name of their group."""
    gates, names = gates_of(tree)[0], list(processes(tree))
    found = {}
    for members in groups(tree):
        if (
            all(re.fullmatch(r"(.+) \d+", name) for name in members)
            and len({n.rpartition(" ")[0] for n in members}) == 1
        ):
            number = gates[..., [names.index(name) for name in members]].sum(-1)
            found[" or ".join(members)] = [float((number >= rank).mean()) for rank in range(1, len(members) + 1)]
    return found


def _prior_of_number(tree: xr.DataTree, names: list[str]) -> np.ndarray:
    """The prior probability that none, one, two, ... of these processes are on."""
    of_latent = tree["constant_data"].to_dataset()["prior_inclusion_prob"].values
    places = processes(tree)
    number = np.ones(1)
    for prob in (of_latent[places[name][0]] for name in names):
        number = np.convolve(number, [1 - prob, prob])
    return number


def one_output_notes(tree: xr.DataTree, on: list[str]) -> list[Note]:
    """What of the processes that are on isn't shared."""
    text = "{} is nearly all in {} ({} of its squared loadings): it is that output's own rather than shared."
    found = of_one_output(tree).items()
    return [Note("caution", text.format(name, out, percent(share))) for name, (out, share) in found if name in on]
