"""A first dictionary of processes for a table: leading periods, a slow and a rough process, and decoys."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.signal import lombscargle

from alps_ppl.tables.durations import DURATIONS, duration_text, period_name, rounded, unit_name
from alps_ppl.tables.red_noise import RedNoise

MOST_PERIODS = 4
FEWEST_CYCLES = 3.0
# The chance that the largest of all ordinates of a smooth spectrum passes for a peak.
FALSE_ALARM = 0.001
# Of the calendar, and what part of all that is slow a sine needs to explain to count with fewer cycles.
CALENDAR = ("y", "w", "d")
CLEAR_SHARE = 0.8
HARMONICS = 6
# A cycle whose size changes slowly has peaks beside its own, this many cycles over the span away: no other period.
SIDE_CYCLES = 2.5
# Of the shortest period offered, no small fractions of it: 24 h have decoys of 31 h and 17 h.
DECOY_RATIOS = (1.29, 0.708, 1.87, 0.59, 2.43, 0.453, 3.17, 0.37, 4.23, 0.29, 5.71, 0.23, 7.39)
MOST_ROWS = 5_000
BLOCK = 200_000
# Bins of an eighth of a period: so many need cells, each at least this part of the middle bin's.
FEWEST_BINS, FEWEST_IN_BIN = 6, 0.25
# Of an output's variance, what a straight line explains where a trend is proposed.
TREND_SHARE = 0.5
# The mean square of differences over an eighth of the span, of that over a sixteenth: 2 of a random walk, and 1 of what
# has come back by then.
WANDERS = 1.75


class Proposal(NamedTuple):
    """A latent's name, the text of its covariance, and why it is there."""

    name: str
    text: str
    why: str


def propose(
    t: Float[np.ndarray, " time"], y: Float[np.ndarray, "time output"], unit: str | None = None
) -> list[Proposal]:
    """Up to four periods of the outputs' pooled periodogram, a trend, a slow and a rough process.

    A period is proposed where its peak stands out of the smooth spectrum around it (a slow drift has a steep spectrum,
    and no peak), or where stamps lack, out of red noise at the same stamps (weekends and nights without rows repeat all
    that is slow at other frequencies), and where the data hold at least three of its cycles. A day, a week or a year of
    the calendar may have fewer where a sine of it explains nearly all that is slow. A trend is proposed where a
    straight line explains half of an output's variance. The slow process is a random walk where the outputs move on
    over an eighth of the span as a walk does, else a Matern-1/2 with an eighth of the span as its lengthscale; the
    rough one has a sixtieth.

    Of more than 5,000 rows, long periods are looked for among means of neighbours, and those that are too short for
    that among the last 5,000 rows.

    ``t`` (time,) are the inputs, in any order, in ``unit``, such as "hours" (None: plain numbers, for which there is no
    calendar); ``y`` the training cells, NaN where missing. Raises a ValueError if all times are one.
    """
    order = np.argsort(np.asarray(t, float), kind="stable")
    t, y = np.asarray(t, float)[order], np.asarray(y, float)[order]
    span = np.ptp(t)
    if span == 0:
        raise ValueError("latent: auto needs at least two different times; name the processes yourself")
    step = float(np.median(np.diff(np.unique(t))))
    periods = _all_periods(t, y, unit)
    proposals = [_periodic("", period, unit, why) for period, why in periods]
    if (share := _line_share(t, y)) >= TREND_SHARE:
        proposals.append(Proposal("trend", "linear()", f"a straight line is {share:.0%} of an output's variance"))
    slow, rough = span / 8, max(span / 60, 3 * step)
    rest = _less(t, y, np.array([period for period, _ in periods]))
    if (growth := _growth_of_differences(t, rest)) >= WANDERS:
        why = f"over an eighth of the span an output moves {growth:.1f} times as far, squared, as over a sixteenth"
        proposals.append(Proposal("wander", "random_walk()", f"{why}: a level that doesn't come back"))
    else:
        proposals.append(_matern("slow", slow, unit, "an eighth of the span: a drift or a long memory"))
    if rough < slow / 2:
        proposals.append(_matern("rough", rough, unit, "a sixtieth of the span, or three steps: a short memory"))
    return proposals


def decoys(
    number: int, periods: Sequence[float], t: Float[np.ndarray, " time"], unit: str | None = None
) -> list[Proposal]:
    """Linear-periodic latents that nobody suspects, as a check: one that comes on says the dictionary is short.

    Their periods are fixed multiples of the shortest of ``periods`` (of a tenth of the span, if there are none),
    rounded to two digits. Left out are those within 5 % or a cycle over the span of a period's first six harmonics
    or multiples, those as near another decoy, and those that the step or the span can't show.

    ``periods`` are those of the processes that are offered, in the unit of the inputs ``t``. Raises a ValueError if
    fewer than ``number`` are left.
    """
    span, step = float(np.ptp(t)), float(np.median(np.diff(np.unique(t))))
    base = min(periods, default=span / 10)
    chosen: list[float] = []
    for ratio in DECOY_RATIOS:
        if len(chosen) == number:
            break
        period = rounded(base * ratio, unit)
        shown = 2.5 * step <= period <= span / FEWEST_CYCLES
        apart = all(abs(1 / period - 1 / other) >= 1 / span for other in chosen)
        if shown and apart and not any(_near(period, other, span) for other in periods):
            chosen.append(period)
    if len(chosen) < number:
        offered = ", ".join(f"{period:.4g}" for period in periods) or "none"
        raise ValueError(
            f"decoys: expected at most {len(chosen)} beside periods of {offered},"
            f" steps of {step:g} and a span of {span:g}, got {number}"
        )
    why = "no harmonic of a period offered; should it come on, the dictionary is short of a process"
    return [_periodic("decoy ", period, unit, why) for period in chosen]


def is_decoy(name: str) -> bool:
    """Whether a process is one that its user calls a decoy."""
    return "decoy" in name.lower()


def _periodic(prefix: str, period: float, unit: str | None, why: str) -> Proposal:
    return Proposal(prefix + period_name(period, unit), f"linear_periodic({duration_text(period, unit)})", why)


def _matern(name: str, lengthscale: float, unit: str | None, why: str) -> Proposal:
    return Proposal(name, f"matern12({duration_text(rounded(lengthscale, unit), unit)})", why)


def _near(period: float, other: float, span: float) -> bool:
    f, g = 1 / period, 1 / other
    k = np.arange(1, HARMONICS + 1)
    related = np.concatenate([k * g, g / k])
    return bool((np.abs(f - related) < max(0.05 * f, 1 / span)).any())


def _line_share(t: np.ndarray, y: np.ndarray) -> float:
    """What a straight line explains of an output's variance, the most of all outputs."""
    shares = [0.0]
    for column in y.T:
        seen = ~np.isnan(column)
        if seen.sum() > 10 and column[seen].std() > 0 and t[seen].std() > 0:
            shares.append(np.corrcoef(t[seen], column[seen])[0, 1] ** 2)
    return float(max(shares))


def _growth_of_differences(t: np.ndarray, y: np.ndarray) -> float:
    """How mean squares of differences over an eighth of the span compare with those over a sixteenth, about a line.

    Of thirty-seconds' means, so that noise and short cycles have little part in it; the middle one of all outputs.
    """
    bins = np.minimum((32 * (t - t.min()) / np.ptp(t)).astype(int), 31)
    ratios = []
    for column in y.T:
        seen = ~np.isnan(column)
        counts = np.bincount(bins[seen], minlength=32)
        if (counts == 0).any():
            continue
        means = np.bincount(bins[seen], column[seen], 32) / counts
        left = _left(np.stack([np.ones(32), np.arange(32.0)], 1), means)
        near, far = (np.mean((left[lag:] - left[:-lag]) ** 2) for lag in (2, 4))
        ratios.append(far / near if near > 0 else 1.0)
    return float(np.median(ratios)) if ratios else 0.0


def _all_periods(t: np.ndarray, y: np.ndarray, unit: str | None) -> list[tuple[float, str]]:
    """(period, why): of all rows, or the long ones of means and the short ones of the last rows."""
    size = -(-len(t) // MOST_ROWS)
    if size == 1:
        return _periods(t, y, unit)
    shortest = 4 * size * float(np.median(np.diff(np.unique(t))))
    last = f"; looked for among the last {MOST_ROWS:,} rows"
    short = [(p, why + last) for p, why in _periods(t[-MOST_ROWS:], y[-MOST_ROWS:], unit) if p < shortest]
    # Left in, they would fold: of means of three minutes, a cycle of four has twelve.
    rest = _less(t, y, np.array([period for period, _ in short]))
    means = f"; looked for among means of {size} rows"
    long = [(p, why + means) for p, why in _periods(*_means(t, rest, size), unit) if p >= shortest]
    return [*long, *short][:MOST_PERIODS]


def _less(t: np.ndarray, y: np.ndarray, periods: np.ndarray) -> np.ndarray:
    """The outputs less their sines of these periods."""
    rest = y.copy()
    phase = 2 * np.pi * t[:, None] / periods
    basis = np.concatenate([np.ones((len(t), 1)), np.cos(phase), np.sin(phase)], 1)
    for column in rest.T:
        seen = ~np.isnan(column)
        column[seen] = _left(basis[seen], column[seen])
    return rest


def _left(basis: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What least squares of a basis leave of the values."""
    return values - basis @ np.linalg.lstsq(basis, values, rcond=None)[0]


def _means(t: np.ndarray, y: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Means of so many neighbouring rows."""
    starts = np.arange(0, len(t), size)
    counts = np.add.reduceat(~np.isnan(y), starts)
    means = np.add.reduceat(np.nan_to_num(y), starts) / np.where(counts > 0, counts, np.nan)
    return np.add.reduceat(t, starts) / np.diff([*starts, len(t)]), means


def _periods(t: np.ndarray, y: np.ndarray, unit: str | None) -> list[tuple[float, str]]:
    """(period, why), the clearest first."""
    span, step = np.ptp(t), np.median(np.diff(np.unique(t)))
    observed = [(t[seen], column[seen]) for column in y.T if (seen := ~np.isnan(column)).sum() > 10]
    outputs = [(times, values) for times, values in observed if np.ptp(values) > 1e-9 * np.abs(values).max()]
    if not outputs or span / step < 12:
        return []
    name = unit_name(unit)
    known = [DURATIONS[suffix] / DURATIONS[name] for suffix in CALENDAR] if name else []
    found: list[tuple[float, str]] = []
    lacking = any(_lacks_stamps(t, step) for t, _ in outputs)
    for period in known:
        share = _share_of_slow(outputs, period) if 0.9 <= span / period < FEWEST_CYCLES else 0.0
        if share >= CLEAR_SHARE:
            cycles = f"only {span / period:.2g} of its cycles in the data"
            found.append((period, f"{cycles}, but a sine of it is {share:.0%} of all that is slow"))
    while len(found) < MOST_PERIODS:
        taken = np.array([1 / p for p, _ in found])
        frequency, height, threshold = _highest_peak(outputs, span, step, taken, known, lacking)
        if height < threshold:
            break
        # A harmonic of a cycle of the calendar that is there may change its size, too.
        near = {p: SIDE_CYCLES if p in [q for q, _ in found] else 0.5 for p in known}
        harmonics = [(p / k, near[p]) for p in known for k in (1, 2, 3, 4)]
        period = next((p for p, cycles in harmonics if abs(1 / p - frequency) < cycles / span), 1 / frequency)
        if period in [p for p, _ in found]:
            break
        around = "red noise at the same times" if lacking else "the spectrum around it"
        why = f"its peak is {np.exp(height):.0f} times {around} ({np.exp(threshold):.0f} is significant)"
        found.append((period, why))
    return found


def _without(y: list, periods: np.ndarray) -> list:
    """Each output less a straight line and sines of these periods, by least squares, standardised."""
    rest = []
    for t, values in y:
        phase = 2 * np.pi * t[:, None] / (np.asarray(periods) if len(periods) else np.inf)
        middle = (t - t.mean()) / (np.ptp(t) or 1.0)
        basis = np.concatenate([np.ones((len(t), 1)), middle[:, None], np.cos(phase), np.sin(phase)], 1)
        residual = _left(basis, values)
        rest.append((t, residual / (residual.std() or 1.0)))
    return rest


def _share_of_slow(y: list, period: float) -> float:
    """What a sine of ``period`` explains of the outputs' means over an eighth of it, the least of all outputs."""
    shares = []
    for t, values in y:
        bins = np.floor((t - t.min()) / (period / 8)).astype(int)
        counts = np.bincount(bins)
        keep = counts >= max(1, FEWEST_IN_BIN * np.median(counts[counts > 0]))
        phases = np.unique(np.flatnonzero(keep) % 8)
        if keep.sum() < FEWEST_BINS or len(phases) < FEWEST_BINS:
            return 0.0  # three bins fit three coefficients, whatever they hold
        means = np.bincount(bins, values)[keep] / counts[keep]
        phase = 2 * np.pi * np.bincount(bins, t)[keep] / counts[keep] / period
        basis = np.stack([np.ones_like(phase), np.cos(phase), np.sin(phase)], 1)
        shares.append(1 - _left(basis, means).var() / (means.var() or 1.0))
    return min(shares)


def _highest_peak(
    y: list, span: float, step: float, taken: np.ndarray, known: Sequence[float], lacking: bool
) -> tuple[float, float, float]:
    """The frequency of the highest peak, its log height and the log of what is significant.

    A peak's height is that over the smooth spectrum; where stamps are ``lacking``, that over red noise at the same
    stamps. There the periods ``known`` from the calendar, which are few, have a threshold of their own. Frequencies
    beside those ``taken`` aren't looked at; a height of minus infinity where that leaves none.
    """
    num_independent = int(0.48 * span / step)  # at half a step a sine and a cosine are one
    cycles = np.arange(3, 3 * num_independent + 1) / 3
    threshold = float(np.log(np.log(num_independent / FALSE_ALARM)))

    def allowed(f):
        return (f * span >= FEWEST_CYCLES) & (np.abs(f[:, None] - taken) >= SIDE_CYCLES / span).all(1)

    frequencies = (cycles / span)[allowed(cycles / span)]
    if not len(frequencies):
        return np.nan, -np.inf, 0.0
    if lacking:
        noises = [RedNoise(t, values, 1 / taken) for t, values in y]

        def height(f):
            return np.log(np.mean([noise.power(f) for noise in noises], 0) + 1e-12)

    else:
        rest, whole = _without(y, 1 / taken), cycles[::3] / span  # whole cycles over the span are nearly independent
        smooth = _smooth_spectrum(whole, _pooled_power(rest, whole))

        def height(f):
            return np.log(_pooled_power(rest, f)) - smooth(f)

    around = frequencies[np.argmax(height(frequencies))] + np.linspace(-0.5, 0.5, 51) / span
    heights = height(around)
    peak, highest = float(around[np.argmax(heights)]), float(heights.max())
    of_calendar = 1 / np.array(known)
    of_calendar = of_calendar[allowed(of_calendar) & (of_calendar <= frequencies[-1])]
    if highest < threshold and lacking and len(of_calendar):
        heights = height(of_calendar)
        peak, highest = float(of_calendar[np.argmax(heights)]), float(heights.max())
        threshold = float(np.log(np.log(len(of_calendar) / FALSE_ALARM)))
    return peak, highest, threshold


def _lacks_stamps(t: np.ndarray, step: float) -> bool:
    at = np.round((t - t.min()) / step)
    return len(np.unique(at)) < at.max() + 1


def _pooled_power(y: list, frequencies: np.ndarray) -> np.ndarray:
    """The Lomb-Scargle periodogram, the mean of all outputs, 1 on average for white noise.

    In blocks of frequencies: SciPy makes several arrays (time, frequency), of gigabytes where both are thousands.
    """
    blocks = np.array_split(2 * np.pi * frequencies, -(-len(frequencies) * max(len(t) for t, _ in y) // BLOCK))
    # Of one frequency SciPy gives a number.
    power = [np.concatenate([np.atleast_1d(lombscargle(t, values, block)) for block in blocks]) for t, values in y]
    return np.maximum(np.mean(power, axis=0), 1e-12)


def _smooth_spectrum(frequencies: np.ndarray, power: np.ndarray):
    """The log of the mean power, a parabola of log frequency, by least squares without the peaks.

    The log of an exponential variable of mean 1 has mean -.577; pooling over outputs that don't repeat each other
    brings it nearer zero, which makes the test a careful one.
    """
    x, z = np.log(frequencies), np.log(power)
    keep = np.ones(len(x), bool)
    for _ in range(10):
        degree = 2 if keep.sum() > 12 else 1
        if keep.sum() <= degree:  # a single frequency left: the line before says more
            break
        parabola = np.polynomial.Polynomial.fit(x[keep], z[keep], degree)
        keep = z - parabola(x) < 2.6  # of a thousand ordinates of noise hardly one
    return lambda f: parabola(np.log(f)) + 0.577
