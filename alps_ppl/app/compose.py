"""``alps-ppl fit``: a problem for a table and a list of processes, with the model file that says the same."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from tinygp import kernels

from alps_ppl.app.problem import Problem
from alps_ppl.app.source import model_file
from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import period_of
from alps_ppl.model.memory import PrivateMemory, private_memory
from alps_ppl.model.scales import MOST_POINTS, kind_of, num_points
from alps_ppl.tables.data import Data
from alps_ppl.tables.durations import duration, unit_name
from alps_ppl.tables.grammar import Parsed, parse
from alps_ppl.tables.growth import growing
from alps_ppl.tables.proposals import Proposal, decoys, propose
from alps_ppl.tables.reading import read_table
from alps_ppl.tables.splitting import split_table
from alps_ppl.tables.stamps import UNIX

DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?")
# A learnt noise variance's prior mean, in variances of an output, and what share of an output's cells it counts as. One
# that counts less lets the noise fall to nothing, and chains then follow other outputs exactly, each its own.
NOISE_MEAN = 0.1
NOISE_SHARE = 0.1
# What ``noise`` may be besides a number, and the degrees of freedom of Student's.
LEARNT_NOISE, STUDENT_DF = ("learnt", "student"), 4.0
# Of an output's own variance, memory and noise together.
OWN_PRIOR = (1.0, 0.2)
FEWEST_INDUCING, MOST_INDUCING, MOST_INDUCING_OF_FEW_ROWS = 15, 40, 60
BATCH = 256
# Of one covariance: "memory x 4".
MOST_ALIKE = 20
# Rows up to which the sampler's longest and long chains, and SVI's longer ones, stay within two minutes; and rows times
# outputs squared, where outputs' memories are states.
FEW, LONG, MUCH_WORK = 500, 1_500, 10_000


class Latent(NamedTuple):
    """A named process, the text it was given as, why it is there, and what the text means."""

    name: str
    text: str
    why: str
    parsed: Parsed


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
    if logarithms := _logarithms(log, data):
        splitting["log"] = logarithms
        data = split_table(table, **splitting)
    unit = _unit(data, splitting.get("time_unit"))
    named, twice = _latents(latents, data, unit, num_decoys)
    prior = {"inclusion_prob": 0.5} if expected_active is None else {"expected_active": expected_active}
    arguments: dict[str, Any] = prior | _bounds(learn, named, unit) | _ranges(named, data)
    cycles = {latent.name: 2 for latent in named if _is_a_cycle(latent.parsed.covariance)}
    if cycles and not paper_model:
        arguments["copies"] = cycles
    is_learnt = noise in LEARNT_NOISE
    if noise == "student":
        arguments["noise_df"] = STUDENT_DF
    memory = None if paper_model or not is_learnt else _private_memory(data)
    try:
        learnt = noise_prior(data) if memory is None else OWN_PRIOR
        variance = learnt if is_learnt else float(noise)
    except ValueError:
        raise ValueError(
            f"noise: expected 'learnt', 'student', or a variance in squared training sds of an output, got {noise!r}"
        ) from None
    model = ALPS(
        {latent.name: latent.parsed.covariance for latent in named},
        data.outputs,
        noise_variance=dist.InverseGamma(*variance) if isinstance(variance, tuple) else variance,
        private_memory=memory,
        **arguments,
    )
    changed = settings or {}
    has_memory = memory is not None
    svi = svi_settings(data, [latent.parsed for latent in named], has_memory=has_memory) | changed.get("SVI", {})
    gibbs = gibbs_settings(data, has_memory=has_memory) | changed.get("GIBBS", {})
    notes = _notes(table, data, named, twice, paper_model)
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
        arguments=arguments,
        noise=variance,
        private_memory=memory is not None,
        svi=svi,
        gibbs=gibbs,
    )
    are_missing = bool(reading.get("drop_spikes"))
    spikes = {"spikes": table.attrs["spikes"], "spikes_are_missing": are_missing}
    return Problem(name, data, model, svi, gibbs, source=source, vb=changed.get("VB", {}), **spikes), notes


def _logarithms(log: str, data: Data) -> list[str]:
    """The outputs whose logarithm is modelled."""
    if log.strip().lower() == "auto":
        return growing(data)
    return [] if log.strip().lower() == "none" else [name.strip() for name in log.split(",")]


def _is_a_cycle(covariance: Any) -> bool:
    """Whether it is a linear-periodic covariance, or a sum of them, but for factors: two copies give it any phase."""
    if isinstance(covariance, kernels.Sum):
        return _is_a_cycle(covariance.kernel1) and _is_a_cycle(covariance.kernel2)
    return period_of(covariance) is not None


def _private_memory(data: Data) -> PrivateMemory | None:
    """That of ``alps.private_memory``, where there is one axis of times."""
    t = data.train_inputs
    return private_memory(t) if t.ndim == 1 and len(np.unique(t)) > 1 else None


def noise_prior(data: Data) -> tuple[float, float]:
    """Concentration and rate of an inverse gamma of mean .1 that weighs as much as a tenth of an output's cells.

    Of those there are n on average. With rss the residuals' sum of squares, the noise variance is
    InverseGamma(concentration + n / 2, rate + rss / 2).
    """
    num_observed = float((~np.isnan(data.train_y)).sum(0).mean())
    concentration = round(2 + NOISE_SHARE * num_observed / 2, 1)
    return concentration, float(f"{NOISE_MEAN * (concentration - 1):.3g}")


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


def _latents(
    texts: Sequence[str], data: Data, unit: str | None, num_decoys: int
) -> tuple[list[Latent], list[tuple[Latent, str]]]:
    """The processes; and those that were proposed but are given, too, with the names they are given under."""
    wanted: list[Proposal] = []
    for text in texts:
        wanted += propose(data.train_inputs, data.train_y, unit) if text.strip() == "auto" else _given(text)
    if not wanted:
        raise ValueError(
            "latent: expected at least one, e.g. --latent 'daily = linear_periodic(24h)', or --latent auto"
        )
    named = [_latent(proposal, data, unit) for proposal in wanted]
    given = {latent.parsed.source: latent.name for latent in named if not latent.why}
    twice = [(latent, given[latent.parsed.source]) for latent in named if latent.why and latent.parsed.source in given]
    named = [latent for latent in named if not (latent.why and latent.parsed.source in given)]
    if num_decoys:
        periods = [period for latent in named for period in latent.parsed.periods]
        chosen = decoys(num_decoys, periods, data.train_inputs, unit)
        named += [_latent(proposal, data, unit) for proposal in chosen]
    names = [latent.name for latent in named]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"latent: expected names that differ, got {', '.join(repeated)} more than once")
    return named, twice


def _given(text: str) -> list[Proposal]:
    """The process of "NAME = COVARIANCE", or the interchangeable ones of "NAME x 4 = COVARIANCE"."""
    name, equals, covariance = (part.strip() for part in text.partition("="))
    if not (equals and name and covariance):
        raise ValueError(
            f"latent: expected NAME = COVARIANCE, e.g. daily = linear_periodic(24h), or auto, got {text!r}"
        )
    if not (several := re.fullmatch(r"(.*\S)\s+[x×X*]\s*([-+\d.]+)", name)):
        return [Proposal(name, covariance, "")]
    if not several[2].isdigit() or not 1 <= int(several[2]) <= MOST_ALIKE or covariance == "auto":
        raise ValueError(
            f"latent {name!r}: expected from 1 to {MOST_ALIKE} processes of a covariance, as in 'memory x 4 = "
            f"matern12(1h..4d)', got {text!r}"
        )
    return [Proposal(f"{several[1]} {k + 1}", covariance, "") for k in range(int(several[2]))]


def _latent(proposal: Proposal, data: Data, unit: str | None) -> Latent:
    inputs = data.train_inputs  # its errors are the data's
    try:
        parsed = parse(DATE.sub(lambda date: _since_the_first(date[0], data), proposal.text), unit=unit, inputs=inputs)
    except (ValueError, TypeError) as error:
        raise ValueError(f"latent {proposal.name!r}: {error}") from None
    return Latent(*proposal, parsed)


def _since_the_first(date: str, data: Data) -> str:
    """A date in a covariance, as of a step, as the duration from where the inputs are counted."""
    conversion = data.conversion
    if conversion.origin is None:
        raise ValueError(f"{date} is a date, but the table's times are numbers")
    (value,) = conversion.to_inputs([date])
    return f"{value:.12g}{'h' if conversion.step == 'hours' else 'd'}"


def _bounds(learn: Sequence[str], latents: Sequence[Latent], unit: str | None) -> dict[str, dict]:
    """``covariance_bounds`` from texts such as "daily.scale = 20h..28h"; nothing without any."""
    names = [latent.name for latent in latents]
    bounds: dict[str, dict[str, tuple[float, float]]] = {}
    for text in learn:
        place, _, limits = text.partition("=")
        # A name may have dots, too.
        name = max((name for name in names if place.strip().startswith(f"{name}.")), key=len, default="")
        low, dots, high = limits.partition("..")
        try:
            if name and limits and not dots:
                raise ValueError(f"'..' is missing between the bounds; expected e.g. 20h..28h, got {limits.strip()!r}")
            if not (name and dots):
                raise ValueError(f"expected NAME.PARAMETER = LOW..HIGH with a name of {', '.join(names)}")
            path = place.strip().removeprefix(f"{name}.")
            least, most = duration(low, unit), duration(high, unit)
            if not least < most:
                raise ValueError(f"expected the lower bound first, got {limits.strip()!r}")
            bounds.setdefault(name, {})[path] = (least, most)
        except ValueError as error:
            raise ValueError(f"learn {text!r}: {error}") from None
    return {"covariance_bounds": bounds} if bounds else {}


def _ranges(latents: Sequence[Latent], data: Data) -> dict[str, dict]:
    """``covariance_ranges`` of the covariances with a range in their text, with the points that these times ask for."""
    ranges: dict[str, dict[str, tuple[float, float, int]]] = {}
    t = data.train_inputs
    span = float(np.ptp(t)) if t.ndim == 1 else 0.0
    for name, text, _, parsed in latents:
        for path, (low, high) in parsed.ranges.items():
            kind = kind_of(parsed.covariance, path)
            points = num_points(low, high, span, kind)
            if kind == "time":  # once between two times is enough
                points = max(2, min(points, round((high - low) / np.median(np.diff(np.unique(t)))) + 1))
            if points > MOST_POINTS:
                raise ValueError(
                    f"latent {name!r}: {text} is a range of {points} different values over these times; narrow it to "
                    f"one of at most {MOST_POINTS}"
                )
            ranges[name] = {path: (low, high, points)}
    return {"covariance_ranges": ranges} if ranges else {}


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


def _notes(
    table: pd.DataFrame, data: Data, named: list[Latent], twice: list[tuple[Latent, str]], paper_model: bool
) -> list[str]:
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
    waves = [latent for latent in named if latent.parsed.periods and not _is_a_cycle(latent.parsed.covariance)]
    notes += [f"Process {latent.name!r}, {latent.text}, {one_shape}." for latent in waves if not paper_model]
    return notes
