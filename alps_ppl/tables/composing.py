"""A model of a table: processes from text, proposals, decoys, copies of cycles, and what an output has of its own."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from tinygp import kernels

from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import period_of
from alps_ppl.model.memory import PrivateMemory, private_memory
from alps_ppl.model.scales import MOST_POINTS, kind_of, num_points
from alps_ppl.tables.data import Data
from alps_ppl.tables.durations import duration
from alps_ppl.tables.grammar import Parsed, parse
from alps_ppl.tables.proposals import Proposal, decoys, propose

DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?)?")
# A learnt noise variance's prior mean, in variances of an output, and what share of an output's cells it counts as. One
# that counts less lets the noise fall to nothing, and chains then follow other outputs exactly, each its own.
NOISE_MEAN = 0.1
NOISE_SHARE = 0.1
# What ``noise`` may be besides a number, and the degrees of freedom of Student's.
LEARNT_NOISE, STUDENT_DF = ("learnt", "student"), 4.0
# Of an output's own variance, memory and noise together.
OWN_PRIOR = (1.0, 0.2)
# Of one covariance: "memory x 4".
MOST_ALIKE = 20


class Latent(NamedTuple):
    """A named process, the text it was given as, why it is there, and what the text means."""

    name: str
    text: str
    why: str
    parsed: Parsed


class Composed(NamedTuple):
    """A model, and what it was made of.

    ``twice`` are processes that were proposed but are given, too, with the names they are given under. ``arguments``
    are ``ALPS``' besides the latents, the outputs, the private memory and ``noise_variance``, which is here a fixed
    variance or the concentration and rate of an inverse gamma.
    """

    model: ALPS
    latents: list[Latent]
    twice: list[tuple[Latent, str]]
    arguments: dict[str, Any]
    noise_variance: float | tuple[float, float]


def composed(
    data: Data,
    latents: Sequence[str | Latent],
    unit: str | None,
    *,
    num_decoys: int = 0,
    learn: Sequence[str] = (),
    expected_active: float | None = None,
    noise: str = "learnt",
    paper_model: bool = False,
) -> Composed:
    """The model that ``alps-ppl fit`` makes of its options, for standardised outputs.

    ``latents`` are "NAME = COVARIANCE", "NAME x 4 = COVARIANCE", "auto", or ready ones; durations in them need the
    ``unit`` of the inputs. ``learn`` are "NAME.PARAMETER = LOW..HIGH". Raises a ValueError or TypeError that names the
    option.
    """
    named, twice = _latents(latents, data, unit, num_decoys)
    prior = {"inclusion_prob": 0.5} if expected_active is None else {"expected_active": expected_active}
    arguments: dict[str, Any] = prior | _bounds(learn, named, unit) | _ranges(named, data)
    cycles = {latent.name: 2 for latent in named if is_a_cycle(latent.parsed.covariance)}
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
    return Composed(model, named, twice, arguments, variance)


def is_a_cycle(covariance: Any) -> bool:
    """Whether it is a linear-periodic covariance, or a sum of them, but for factors: two copies give it any phase."""
    if isinstance(covariance, kernels.Sum):
        return is_a_cycle(covariance.kernel1) and is_a_cycle(covariance.kernel2)
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


def _latents(
    latents: Sequence[str | Latent], data: Data, unit: str | None, num_decoys: int
) -> tuple[list[Latent], list[tuple[Latent, str]]]:
    """The processes; and those that were proposed but are given, too, with the names they are given under."""
    named: list[Latent] = []
    for latent in latents:
        if isinstance(latent, Latent):
            named.append(latent)
            continue
        is_auto = latent.strip() == "auto"
        wanted = propose(data.train_inputs, data.train_y, unit) if is_auto else _given(latent)
        named += [_latent(proposal, data, unit) for proposal in wanted]
    if not named:
        raise ValueError(
            "latent: expected at least one, e.g. --latent 'daily = linear_periodic(24h)', or --latent auto"
        )
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
