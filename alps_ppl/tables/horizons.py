"""The stamps ahead of a table's last one, up to a horizon in calendar time, in the table's own rhythm."""

import re
import warnings
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.tables.durations import NUMBER, duration

MOST_AHEAD = 100_000
# A rhythm of the week is learnt from at least so many of them.
FEWEST_WEEKS = 2.0
DAY = pd.Timedelta(1, "D")
LONG = {"d": "days", "h": "hours"}
WEEK = 7 * DAY
# Months, quarters and years by their median step in days.
CALENDAR_STEPS = {1: (27, 32), 3: (89, 93), 12: (360, 370)}


def ahead(name: str, horizon: str | float, index: pd.Index, t: np.ndarray, unit: str | None) -> pd.Index:
    """The stamps after the last of ``index`` and up to ``horizon`` from there.

    A table of dates goes on in its rhythm: that which pandas finds (business days, month ends), steps of a month, a
    quarter or a year, or its median step without the days and the times of the day or of the week that it never has.
    ``t`` are the dates as numbers in ``unit``, or the times themselves. Raises a ValueError that starts with ``name``.
    """
    steps = np.diff(np.unique(t))
    if not len(steps):
        raise ValueError(f"{name}: expected at least two different times, whose step is that of the forecast")
    step = float(np.median(steps))
    length = length_of(name, horizon, unit)
    if not isinstance(index, pd.DatetimeIndex):
        _check(name, horizon, length / step, f"{step:g}")
        return pd.Index(index[-1] + step * np.arange(1, max(1, int(length / step + 1e-9)) + 1))
    _check(name, horizon, length / step, f"{step:g} {LONG.get(unit or '', unit or '')}".strip())
    end, of_step = shifted(index, horizon, unit), step * pd.Timedelta(1, unit)
    stamps = _stamps(index, end, of_step)
    # A day after a Friday of business days is none of them: then it is the next that there is.
    return stamps if len(stamps) else _stamps(index, end + max(WEEK, 2 * of_step), of_step)[:1]


def shifted(index: pd.DatetimeIndex, horizon: str | float, unit: str | None, sign: int = 1) -> pd.Timestamp:
    """A horizon after the last stamp, or with a sign of -1 before it; months and years are the calendar's.

    In a table of the last days of months, or of their last business days, a month later is the last such day.
    """
    stamp, days = index[-1], index.normalize().unique()[-2:]
    match = re.fullmatch(rf"\s*({NUMBER})\s?(mo|y)\s*", str(horizon))
    if match and float(match[1]).is_integer():
        months = pd.DateOffset(months=sign * int(float(match[1])) * (12 if match[2] == "y" else 1))
        for end_of_month in (pd.offsets.MonthEnd(), pd.offsets.BMonthEnd()):
            if len(days) == 2 and all(map(end_of_month.is_on_offset, days)):
                return stamp.replace(day=1) + months + end_of_month
        return stamp + months
    return stamp + sign * duration(horizon, unit) * pd.Timedelta(1, unit)


def length_of(name: str, value: str | float, unit: str | None) -> float:
    """A duration or a number in the times' unit; a ValueError that starts with ``name``."""
    try:
        return duration(value, unit)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check(name: str, horizon: Any, count: float, step: str) -> None:
    if not 0.9 < count < MOST_AHEAD:
        raise ValueError(f"{name}: expected from one step, {step} here, to {MOST_AHEAD:,} of them, got {horizon!r}")


def _stamps(index: pd.DatetimeIndex, end: pd.Timestamp, step: pd.Timedelta) -> pd.DatetimeIndex:
    distinct, last = index.unique().sort_values(), index.max()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas 3: of the kind of result, which is as good in any
        frequency = pd.infer_freq(distinct) if len(distinct) > 2 else None
    if frequency is not None:
        found = pd.date_range(last, end, freq=frequency)
        return found[found > last]
    for months, (low, high) in CALENDAR_STEPS.items():
        if low * DAY <= step <= high * DAY:
            at_ends = bool(distinct.is_month_end.all())
            offsets = [pd.DateOffset(months=months * k) for k in range(1, 1 + int((end - last) / (27 * DAY)))]
            found = pd.DatetimeIndex([last + offset for offset in offsets])
            found = found + pd.offsets.MonthEnd(0) if at_ends else found
            return found[found <= end]
    found = pd.DatetimeIndex(last + step * np.arange(1, int((end - last) / step + 1e-9) + 1))
    if step > DAY:
        return found
    if step < DAY and (of_day := _candidates(distinct, last, end)) is not None:
        return of_day
    seen = set(distinct.day_of_week) if distinct[-1] - distinct[0] >= FEWEST_WEEKS * WEEK else set(range(7))
    return found[np.isin(found.day_of_week, list(seen))]


def _candidates(distinct: pd.DatetimeIndex, last: pd.Timestamp, end: pd.Timestamp) -> pd.DatetimeIndex | None:
    """The times of each coming day that such a day had; None where the times of days aren't a few that repeat."""
    times = distinct - distinct.normalize()
    counts = pd.Series(times).value_counts()
    num_days = distinct.normalize().nunique()
    regular = counts[counts >= 0.2 * num_days].index
    if num_days < 3 or counts[regular].sum() < 0.9 * len(distinct):
        return None
    days = pd.date_range(last.normalize(), end.normalize(), freq="D")
    if distinct[-1] - distinct[0] >= FEWEST_WEEKS * WEEK:
        days = days[np.isin(days.day_of_week, list(set(distinct.day_of_week)))]
    found = pd.DatetimeIndex(sorted(day + time for day in days for time in regular))
    return found[(found > last) & (found <= end)]
