"""``alps-ppl fit``: a problem for a table and a list of processes, with the model file that says the same."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.app.problem import Problem
from alps_ppl.app.source import model_file
from alps_ppl.tables.composing import Composed, composed, is_a_cycle
from alps_ppl.tables.data import Data
from alps_ppl.tables.durations import unit_name
from alps_ppl.tables.grammar import Parsed
from alps_ppl.tables.growth import logarithms
from alps_ppl.tables.reading import read_table
from alps_ppl.tables.splitting import split_table
from alps_ppl.tables.stamps import UNIX

FEWEST_INDUCING, MOST_INDUCING, MOST_INDUCING_OF_FEW_ROWS = 15, 40, 60
BATCH = 256
# Rows up to which the sampler's longest and long chains, and SVI's longer ones, stay within two minutes; and rows times
# outputs squared, where outputs' memories are states.
FEW, LONG, MUCH_WORK = 500, 1_500, 10_000


def compose(
    file: Path,
    *,
    latents: Sequence[str],
    name: str = "model.py",
    outputs: Sequence[str] | None = None,
    num_decoys: int = 0,
    learn: Sequence[str] = (),
    expected_active: float | None = None,
    noise: str = "learnt",
    paper_model: bool = False,
    log: str = "none",
    settings: Mapping[str, dict[str, Any]] | None = None,
    cut: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table,
    **options: Any,
) -> tuple[Problem, list[str]]:
    """The problem, and what to tell the user, a line each: columns left out, processes proposed.

    Nothing is executed: the model is made of the parsed covariances, and ``problem.source`` is a file for the user.

    ``latents`` are "NAME = COVARIANCE", "NAME x 4 = COVARIANCE" or "auto", ``learn`` "NAME.PARAMETER = LOW..HIGH".
    ``log`` is "auto", "none" or names of outputs, with commas between them. ``settings`` has what to change of "SVI"
    and "GIBBS", ``name`` is the model file's. ``cut`` takes the table that was read and gives the one to fit.
    ``options`` are those of ``read_table`` and ``split_table``, None where they weren't given. Raises a ValueError or
    TypeError for input that can't be right, an OSError for a file that can't be read.
    """
    reading = {name: value for name, value in options.items() if value is not None and value is not False}
    splitting: dict[str, Any] = {
        name: reading.pop(name) for name in ("hold_out", "forecast", "time_unit") if name in reading
    }
    table = cut(read_table(file, outputs=outputs, **reading))
    if len(table) < 2:
        raise ValueError(f"{file.name}: expected a table of at least two rows, got one; no process shows in it")
    reading = {"time": str(table.index.name)} | reading
    if isinstance(table.index, pd.DatetimeIndex) and unit_name(splitting.get("time_unit")) in UNIX:
        del splitting["time_unit"]  # Unix times in that unit, which the table has as dates
    data = split_table(table, **splitting)
    if by_logarithm := logarithms(log, data):
        splitting["log"] = by_logarithm
        data = split_table(table, **splitting)
    unit = _unit(data, splitting.get("time_unit"))
    made = composed(
        data,
        latents,
        unit,
        num_decoys=num_decoys,
        learn=learn,
        expected_active=expected_active,
        noise=noise,
        paper_model=paper_model,
    )
    named, model, has_memory = made.latents, made.model, made.model.private_memory is not None
    changed = settings or {}
    svi = svi_settings(data, [latent.parsed for latent in named], has_memory=has_memory) | changed.get("SVI", {})
    gibbs = gibbs_settings(data, has_memory=has_memory) | changed.get("GIBBS", {})
    notes = _notes(table, data, made, paper_model)
    notes += _spikes_note(table.attrs["spikes"], reading, noise == "student")
    if {"hold_out", "forecast"} <= set(splitting):
        held = int((data.split == "test").any(1).sum())
        notes.append(
            f"The forecast is from a fit without the {held} rows held out at the end; for one from the file's "
            "last row, leave --hold-out out."
        )
    source = model_file(
        file.resolve(),
        list(table.columns),
        reading=reading,
        splitting=splitting,
        unit=unit_name(unit),
        latents=[
            (latent.name, latent.parsed.source, latent.text + (f": {latent.why}" if latent.why else ""))
            for latent in named
        ],
        arguments=made.arguments,
        noise=made.noise_variance,
        private_memory=has_memory,
        svi=svi,
        gibbs=gibbs,
    )
    are_missing = bool(reading.get("drop_spikes"))
    spikes = {"spikes": table.attrs["spikes"], "spikes_are_missing": are_missing}
    return Problem(name, data, model, svi, gibbs, source=source, vb=changed.get("VB", {}), **spikes), notes


def svi_settings(data: Data, covariances: Sequence[Parsed], *, has_memory: bool = False) -> dict:
    """Inducing inputs by the shortest lengthscale, up to 40 (60 for few rows); minibatches where rows are many.

    With private memories the times aren't independent, and each step takes them all.
    """
    t = data.train_inputs
    shortest = min((scale for parsed in covariances for scale in parsed.lengthscales), default=math.inf)
    most = min(MOST_INDUCING_OF_FEW_ROWS if len(t) <= BATCH else MOST_INDUCING, len(t))
    inducing = min(max(math.ceil(3 * np.ptp(t) / shortest), FEWEST_INDUCING), most)
    if has_memory:
        return {"num_inducing": inducing, "num_steps": 4_000}
    if len(t) > LONG:
        return {"num_inducing": inducing, "num_steps": 3_000, "batch_size": BATCH // 2}
    return {"num_inducing": inducing, "num_steps": 4_000} | ({"batch_size": BATCH} if len(t) > 2 * BATCH else {})


def gibbs_settings(data: Data, *, has_memory: bool = False) -> dict:
    """Four chains, shorter ones where there are many times, or each output's own states beside them."""
    n = len(data.train_inputs)
    warmup, samples = (500, 1_000) if n <= FEW else (300, 500) if n <= LONG else (150, 150)
    if has_memory and n > FEW // 2:
        warmup, samples = (400, 600) if n <= FEW else (200, 300) if n <= LONG else (150, 150)
    work = n * len(data.outputs) ** 2  # of a factorisation, where outputs' memories are states
    if has_memory and work > MUCH_WORK:
        warmup, samples = min((warmup, samples), (200, 300) if work <= 5 * MUCH_WORK else (150, 150))
    return {"num_warmup": warmup, "num_samples": samples, "num_chains": 4}


def _unit(data: Data, time_unit: str | None) -> str | None:
    if data.input_unit and time_unit and unit_name(time_unit) != unit_name(data.input_unit):
        raise ValueError(f"time-unit: the times are dates, read as {data.input_unit}; leave it out")
    return data.input_unit or time_unit


def _spikes_note(found: pd.DataFrame, reading: Mapping[str, Any], student: bool) -> list[str]:
    """What to say of cells that stand out of their neighbours."""
    if not len(found):
        return []
    largest = found.loc[found.robust_sds.abs().idxmax()]
    where = f"the largest is {largest.value:g} of {largest.output!r} at {largest.time}"
    are = "1 cell stands" if len(found) == 1 else f"{len(found)} cells stand"
    if reading.get("drop_spikes"):
        return [
            f"{are} out of the neighbours by more than eight robust sds, and "
            f"{'is' if len(found) == 1 else 'are'} taken for missing: {where}; outliers.csv lists them. "
            "--keep-spikes fits them, too."
        ]
    if student:
        return [
            f"{are} out of the neighbours by more than eight robust sds: {where}. Student's noise weighs such less."
        ]
    return [
        f"{are} out of the neighbours by more than eight robust sds: {where}; outliers.csv lists them. Noise is "
        "Gaussian here, so spikes widen all bands and hide processes; if they are errors, leave --keep-spikes out, or "
        "give --noise student."
    ]


def _notes(table: pd.DataFrame, data: Data, made: Composed, paper_model: bool) -> list[str]:
    named, twice = made.latents, made.twice
    notes = [*table.attrs["notes"]]
    notes += [f"Column {name!r} is left out: {why}." for name, why in table.attrs["left_out"].items()]
    flat = [name for i, name in enumerate(data.outputs) if len(set(data.y[data.train[:, i], i])) < 2]
    if data.log:
        named_log = f"Output{'s' * (len(data.log) > 1)} {', '.join(map(repr, data.log))}"
        are = "is modelled by its logarithm" if len(data.log) == 1 else "are modelled by their logarithms"
        notes.append(
            f"{named_log} {are}: swings are shares of the level; forecasts are in the file's units. --log none "
            "leaves it."
        )
    notes += [f"Column {name!r} has no two different values to fit: it says nothing on the processes." for name in flat]
    notes += [f"Process {latent.name!r}, {latent.text}: {latent.why}." for latent in named if latent.why]
    notes += [f"Process {latent.name!r}, {latent.text}, is left out: {name!r} is the same." for latent, name in twice]
    one_shape = "has one shape in all outputs: only linear_periodic ones and their sums have a phase in each"
    waves = [latent for latent in named if latent.parsed.periods and not is_a_cycle(latent.parsed.covariance)]
    notes += [f"Process {latent.name!r}, {latent.text}, {one_shape}." for latent in waves if not paper_model]
    span = float(np.ptp(data.train_inputs)) if data.train_inputs.ndim == 1 else math.inf
    shifts = [latent for latent in named if "alps.step(" in latent.parsed.source]
    if shifts and not any(_is_slow(latent.parsed, span) for latent in named if latent not in shifts):
        notes.append(
            f"Process {shifts[0].name!r}, {shifts[0].text}: a drift looks like a shift where nothing slow is offered; "
            "offer one beside it, such as --latent 'trend = linear()' --latent 'slow = random_walk()'."
        )
    return notes


def _is_slow(parsed: Parsed, span: float) -> bool:
    """Whether a process can drift over a table of that span: a line, a walk, or a memory of an eighth of it."""
    drifts = any(name in parsed.source for name in ("alps.linear(", "_walk("))
    longest = max([*parsed.lengthscales, *(high for _, high in parsed.ranges.values())], default=0.0)
    return drifts or (longest >= span / 8 and not is_a_cycle(parsed.covariance))
