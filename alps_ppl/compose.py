"""``alps-ppl fit``: a model file for a table and a list of processes, which is then run as any other."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from alps_ppl.data import Data
from alps_ppl.dictionary import Proposal, decoys, propose
from alps_ppl.grammar import UNITS, Parsed, duration, parse, unit_name
from alps_ppl.model import ALPS, check_bounds
from alps_ppl.runner import check_settings
from alps_ppl.tables import read_table, split_table

# A learnt noise variance's prior mean, in variances of an output, and what share of an output's cells it counts as. One
# that counts less lets the noise fall to nothing, and chains then follow other outputs exactly, each its own.
NOISE_MEAN = 0.1
NOISE_SHARE = 0.1
FEWEST_INDUCING, MOST_INDUCING, MOST_INDUCING_OF_FEW_ROWS = 15, 40, 60
BATCH = 256
# Rows up to which the sampler's longest and long chains, and SVI's longer ones, stay within two minutes.
FEW, LONG = 500, 1_500


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
    time: str | None = None,
    outputs: Sequence[str] | None = None,
    time_unit: str | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    hold_out: str | None = None,
    forecast: str | None = None,
    num_decoys: int = 0,
    learn: Sequence[str] = (),
    expected_active: float | None = None,
    noise: str = "learnt",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[str, list[str]]:
    """The model file's source, and what to tell the user, a line each: columns left out, processes proposed.

    ``latents`` are "NAME = COVARIANCE" or "auto", ``learn`` "NAME.PARAMETER = LOW..HIGH". ``settings`` has
    what to change of "SVI" and "GIBBS". Raises a ValueError or TypeError for input that can't be right.
    """
    given = {"time": time, "separator": separator, "decimal": decimal, "encoding": encoding}
    reading: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    table = read_table(file, outputs=outputs, **reading)
    if len(table) < 2:
        raise ValueError(f"{file.name}: expected a table of at least two rows, got one; no process shows in it")
    reading = {"time": str(table.index.name)} | reading
    splitting = {"hold_out": hold_out, "forecast": forecast, "time_unit": time_unit}
    splitting = {name: value for name, value in splitting.items() if value is not None}
    data = split_table(table, **splitting)
    if data.input_unit and time_unit and unit_name(time_unit) != unit_name(data.input_unit):
        raise ValueError(f"time-unit: the times are dates, read as {data.input_unit}; leave it out")
    unit = data.input_unit or time_unit
    named, twice = _latents(latents, data, unit, num_decoys)
    if expected_active is not None and not 0 <= expected_active <= len(named):
        raise ValueError(
            f"expected-active: expected a number from 0 to the number of processes, {len(named)}, got {expected_active}"
        )
    changed = dict(settings or {})
    svi = svi_settings(data, [latent.parsed for latent in named]) | dict(changed.get("SVI", {}))
    gibbs = gibbs_settings(data) | dict(changed.get("GIBBS", {}))
    covariances = {latent.name: latent.parsed.covariance for latent in named}
    model = ALPS(covariances, data.outputs, noise_variance=NOISE_MEAN)
    check_settings(model, svi, gibbs, len(data.train_inputs), ("svi", "gibbs"))
    notes = [f"Column {name!r} is left out: {why}." for name, why in table.attrs["left_out"].items()]
    flat = [name for i, name in enumerate(data.outputs) if len(set(data.y[data.train[:, i], i])) < 2]
    notes += [f"Column {name!r} has no two different values to fit: it says nothing on the processes." for name in flat]
    notes += [f"Process {latent.name!r}, {latent.text}: {latent.why}." for latent in named if latent.why]
    notes += [f"Process {latent.name!r}, {latent.text}, is left out: {name!r} is the same." for latent, name in twice]
    source = TEMPLATE.format(
        title=f"{file.name}: which of {len(named)} processes are behind {_counted(len(data.outputs), 'output')}?",
        unit=f" in {UNITS[str(unit_name(unit))]}" if unit else " in the unit of the file's times",
        imports="".join(f"{line}\n" for line in _imports(named, noise)),
        file=_quoted(str(file.resolve())),
        outputs=_listed(list(table.columns)),
        reading=_arguments("FILE", reading),
        splitting=_arguments("table", splitting),
        latents="".join(
            f"        # {_comment(latent)}\n        {_quoted(latent.name)}: {latent.parsed.source},\n"
            for latent in named
        ),
        bounds=_bounds(learn, named, unit),
        prior="inclusion_prob=0.5" if expected_active is None else f"expected_active={expected_active!r}",
        noise=noise_prior(data) if noise == "learnt" else repr(_noise(noise)),
        svi=_dict(svi),
        gibbs=_dict(gibbs),
    )
    return source, notes


def noise_prior(data: Data) -> str:
    """An inverse gamma of mean .1 that weighs as much as a tenth of an output's cells, of which there are n on average.

    With rss the residuals' sum of squares, the noise variance is InverseGamma(concentration + n / 2, rate + rss / 2).
    """
    num_observed = float((~np.isnan(data.train_y)).sum(0).mean())
    concentration = round(2 + NOISE_SHARE * num_observed / 2, 1)
    return f"dist.InverseGamma({concentration}, {NOISE_MEAN * (concentration - 1):.3g})"


def svi_settings(data: Data, covariances: Sequence[Parsed]) -> dict:
    """Inducing inputs by the shortest lengthscale, up to 40 (60 for few rows); minibatches where rows are many."""
    t = data.train_inputs
    shortest = min((scale for parsed in covariances for scale in parsed.lengthscales), default=math.inf)
    most = min(MOST_INDUCING_OF_FEW_ROWS if len(t) <= BATCH else MOST_INDUCING, len(t))
    inducing = min(max(math.ceil(3 * np.ptp(t) / shortest), FEWEST_INDUCING), most)
    if len(t) > LONG:
        return {"num_inducing": inducing, "num_steps": 3_000, "batch_size": BATCH // 2}
    return {"num_inducing": inducing, "num_steps": 4_000} | ({"batch_size": BATCH} if len(t) > 2 * BATCH else {})


def gibbs_settings(data: Data) -> dict:
    """Four chains, shorter ones where there are many times."""
    n = len(data.train_inputs)
    warmup, samples = (500, 1_000) if n <= FEW else (300, 500) if n <= LONG else (150, 150)
    return {"num_warmup": warmup, "num_samples": samples, "num_chains": 4}


def _latents(
    texts: Sequence[str], data: Data, unit: str | None, num_decoys: int
) -> tuple[list[Latent], list[tuple[Latent, str]]]:
    """The processes; and those that were proposed but are given, too, with the names they are given under."""
    wanted = []
    for text in texts:
        if text.strip() == "auto":
            wanted += propose(data.train_inputs, data.train_y, unit)
            continue
        name, equals, covariance = (part.strip() for part in text.partition("="))
        if not (equals and name and covariance):
            raise ValueError(
                f"latent: expected NAME = COVARIANCE, e.g. daily = linear_periodic(24h), or auto, got {text!r}"
            )
        wanted.append(Proposal(name, covariance, ""))
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


def _latent(proposal: Proposal, data: Data, unit: str | None) -> Latent:
    try:
        parsed = parse(proposal.text, unit=unit, inputs=data.train_inputs)
    except ValueError as error:
        raise ValueError(f"latent {proposal.name!r}: {error}") from None
    return Latent(*proposal, parsed)


def _bounds(learn: Sequence[str], latents: Sequence[Latent], unit: str | None) -> str:
    """``covariance_bounds`` as an argument, from texts such as "daily.scale = 20h..28h"; empty without any."""
    covariances = {latent.name: latent.parsed.covariance for latent in latents}
    bounds: dict[str, dict[str, tuple[float, float]]] = {}
    for text in learn:
        place, _, limits = text.partition("=")
        named = [name for name in covariances if place.strip().startswith(f"{name}.")]  # a name may have dots, too
        name = max(named, key=len, default="")
        path = place.strip().removeprefix(f"{name}.")
        low, dots, high = limits.partition("..")
        try:
            if name in covariances and limits and not dots:
                raise ValueError(f"'..' is missing between the bounds; expected e.g. 20h..28h, got {limits.strip()!r}")
            if not dots or name not in covariances:
                raise ValueError(f"expected NAME.PARAMETER = LOW..HIGH with a name of {', '.join(covariances)}")
            bounds.setdefault(name, {})[path] = (duration(low, unit), duration(high, unit))
            check_bounds(list(covariances), list(covariances.values()), {name: bounds[name]})
        except ValueError as error:
            raise ValueError(f"learn {text!r}: {error}") from None
    return f", covariance_bounds={bounds!r}" if bounds else ""


def _noise(noise: str) -> float:
    try:
        value = float(noise)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"noise: expected 'learnt', or a positive variance in squared training sds of an output, got {noise!r}"
        )
    return value


def _comment(latent: Latent) -> str:
    text = " ".join(latent.text.split())
    return f"{text}: {latent.why}" if latent.why else text


def _quoted(value: Any) -> str:
    """As the formatter writes it: in double quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _arguments(first: str, arguments: dict) -> str:
    keywords = "".join(f", {key}={_quoted(value)}" for key, value in arguments.items())
    return first + keywords + (", outputs=OUTPUTS" if first == "FILE" else "")


def _dict(settings: dict) -> str:
    return "{" + ", ".join(f"{_quoted(key)}: {_quoted(value)}" for key, value in settings.items()) + "}"


def _listed(names: Sequence[str]) -> str:
    """A list of names in lines of at most 100 characters."""
    line = ", ".join(map(_quoted, names))
    return f"[{line}]" if len(line) < 100 else "[\n" + "".join(f"    {_quoted(name)},\n" for name in names) + "]"


def _imports(latents: Sequence[Latent], noise: str) -> list[str]:
    lines = ["import numpyro.distributions as dist"] if noise == "learnt" else []
    if any("kernels." in latent.parsed.source for latent in latents):
        lines.append("from tinygp import kernels")
    return ["from pathlib import Path", "", *lines, *([""] if lines else []), "import alps_ppl as alps"]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


TEMPLATE = '''"""{title}

Written by ``alps-ppl fit``, and a file to go on with: change it, and ``alps-ppl run`` it.
Periods and lengthscales are{unit}; H and the noise variance are those of standardised outputs.
"""

{imports}
FILE = Path({file})
OUTPUTS = {outputs}


def data() -> alps.Data:
    """The table, sorted by time; what is held out or ahead of its end isn't seen by the fit."""
    table = alps.read_table({reading})
    return alps.split_table({splitting})


def model(data: alps.Data) -> alps.ALPS:
    """A gate for each process."""
    latents = {{
{latents}    }}
    return alps.ALPS(latents, data.outputs, {prior}, noise_variance={noise}{bounds})


SVI = {svi}
GIBBS = {gibbs}
'''
