"""Dates and durations as numbers: hours since the first date, or days where the median step is a day or more.

Dates are ISO 8601 text, or what Python, NumPy or pandas have for dates. An hour is an hour across a change of clocks:
dates with a time zone are counted in UTC, and those without one as if they were.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from alps_ppl.checks import every_time, numbers, short, time_shape


class Times(NamedTuple):
    """Times as numbers, and what they were.

    ``unit`` is "hours" or "days" where they were dates or durations, else None. ``dates``, as passed, and ``origin``,
    the first of them, are None unless they were dates.
    """

    values: Float[np.ndarray, "time *column"]
    label: str
    unit: str | None = None
    origin: pd.Timestamp | None = None
    dates: np.ndarray | None = None


def read_times(inputs: Any) -> Times:
    """``Data``'s inputs, (time,) or (time, column): dates, durations or numbers.

    Raises a ValueError or TypeError for other shapes, what is none of the three, and a missing time.
    """
    if isinstance(inputs, pd.PeriodIndex):
        inputs = inputs.to_timestamp()
    stamps = np.asarray(inputs)
    time_shape("inputs", stamps.shape)
    flat = stamps.reshape(-1)
    if _are_dates(stamps):
        dates = _read_dates(flat, "inputs")
        origin = dates.min()
        values, unit = _hours_or_days(dates - origin)
        times = Times(values, f"{unit} since {origin:%Y-%m-%d %H:%M}", unit, origin, stamps)
    elif pd.api.types.infer_dtype(flat) in ("timedelta", "timedelta64"):
        values, unit = _hours_or_days(pd.to_timedelta(flat))
        times = Times(values, unit, unit)
    else:
        times = Times(numbers("inputs", inputs), str(getattr(inputs, "name", None) or "t"))
    times = times._replace(values=times.values.reshape(stamps.shape))
    every_time("inputs", times.values, stamps)
    return times


def numbers_since(times: Any, origin: str | None, unit: str | None) -> Float[np.ndarray, "time *column"]:
    """Later times, of any shape, as ``read_times`` has given those of ``origin`` and ``unit``.

    Dates where there is an ``origin`` (the date that is zero, as ISO 8601 text, in UTC or without a zone), durations
    where there is only a ``unit`` ("hours" or "days"), numbers where there is neither. A TypeError for times of another
    kind, a ValueError for a missing one.
    """
    if isinstance(times, pd.PeriodIndex):
        times = times.to_timestamp()
    stamps = np.asarray(times)
    flat = stamps.reshape(-1)
    if unit is None:
        values = numbers("times", times)
    else:
        # pandas takes numbers for nanoseconds.
        if flat.dtype.kind in "biuf" if origin is None else not _are_dates(stamps):
            kind = "durations" if origin is None else "dates"
            raise TypeError(f"times: expected {kind}, as those that were fitted, got {short(str(flat[0]))}")
        since = pd.to_timedelta(flat) if origin is None else _read_dates(flat, "times") - pd.Timestamp(origin)
        values = (_hours(since) / (24 if unit == "days" else 1)).reshape(stamps.shape)
    every_time("times", values, stamps)
    return values


def in_utc(cells: Any) -> pd.DatetimeIndex:
    """ISO 8601 dates, those without a zone as if in UTC; a ValueError or TypeError where a cell is none."""
    return pd.DatetimeIndex(pd.to_datetime(cells, format="ISO8601", utc=True))


def not_dates(cells: Any) -> Bool[np.ndarray, " time"]:
    """The cells that are no ISO 8601 dates, missing ones among them."""
    return np.asarray(pd.isna(pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)))


def _are_dates(stamps: np.ndarray) -> bool:
    """Text counts: what isn't a date among it is an error that says so."""
    flat = stamps.reshape(-1)
    kind = pd.api.types.infer_dtype(flat.astype(object) if stamps.dtype.kind in "UT" else flat)
    return kind in ("string", "date", "datetime", "datetime64")


def _read_dates(flat: np.ndarray, name: str) -> pd.DatetimeIndex:
    try:
        return in_utc(flat)
    except (TypeError, ValueError):
        row = int(np.argmax(not_dates(flat)))
        raise TypeError(
            f"{name}: expected numbers or ISO 8601 dates, got {short(str(flat[row]))} in row {row}"
        ) from None


def _hours(durations: pd.TimedeltaIndex) -> np.ndarray:
    return np.asarray(durations / pd.Timedelta(hours=1))


def _hours_or_days(durations: pd.TimedeltaIndex) -> tuple[np.ndarray, str]:
    hours = _hours(durations)
    steps = np.diff(np.unique(hours[~np.isnan(hours)]))
    days = steps.size > 0 and np.median(steps) >= 24
    return (hours / 24, "days") if days else (hours, "hours")
