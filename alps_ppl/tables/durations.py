"""Lengths of time as text, such as 24h or 10y, and as numbers in the unit of a table's times."""

import re

import numpy as np

# In hours. A year is 365.25 days, a month a twelfth of it.
DURATIONS = {
    "ns": 1 / 3.6e12,
    "us": 1 / 3.6e9,
    "ms": 1 / 3.6e6,
    "s": 1 / 3600,
    "min": 1 / 60,
    "h": 1.0,
    "d": 24.0,
    "w": 168.0,
    "mo": 8766 / 12,
    "y": 8766.0,
}
UNITS = {
    "ns": "nanoseconds",
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "min": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
    "mo": "months",
    "y": "years",
}
# A number without a sign, as a regular expression.
NUMBER = r"(?>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"


def unit_name(unit: str | None) -> str | None:
    """The short name, "h" for "h", "hours" or "hour"; None for None; a ValueError for anything else."""
    if unit is None:
        return None
    for short_name, name in UNITS.items():
        if unit in (short_name, name, name[:-1]):
            return short_name
    raise ValueError(f"unit: expected one of {', '.join(UNITS.values())}, got {unit!r}")


def duration(text: str | float, unit: str | None = None) -> float:
    """The length of ``"4d"`` in ``unit``; a number as it is.

    Raises a ValueError for anything else, and for a duration where ``unit`` is None.

    >>> duration("36h", "days")
    1.5
    """
    match = re.fullmatch(rf"\s*({NUMBER})\s?([A-Za-z]*)\s*", str(text))
    if match is None or not np.isfinite(float(match[1])):
        raise ValueError(f"expected a duration such as 24h or 4d, or a finite number, got {text!r}")
    number, suffix = float(match[1]), match[2]
    unit = unit_name(unit)
    if not suffix:
        return number
    if suffix not in DURATIONS:
        raise ValueError(f"unknown unit {suffix!r} of time; known are {', '.join(DURATIONS)}")
    if unit is None:
        raise ValueError(
            f"{str(text).strip()!r} is a duration, but the inputs are plain numbers; give a number in their own unit, "
            "or say what that unit is (time_unit, on the command line --time-unit)"
        )
    return float(f"{number * DURATIONS[suffix] / DURATIONS[unit]:.15g}")  # 7.7, not 7.699999999999999


def period_name(period: float, unit: str | None) -> str:
    """A period for people, such as "24 h" or "1 y"; the number alone where times have no unit."""
    value, suffix = _in_best_unit(period, unit)
    return f"{value:.4g} {suffix}".strip()


def duration_text(value: float, unit: str | None) -> str:
    """A length of time as the grammar of covariances takes it, such as "24h", to six digits."""
    number, suffix = _in_best_unit(value, unit)
    return f"{number:.6g}{suffix}"


def rounded(value: float, unit: str | None) -> float:
    """``value`` to two digits of the unit that reads best, given again in ``unit``."""
    number, suffix = _in_best_unit(value, unit)
    return duration(f"{float(f'{number:.1e}')}{suffix}", unit)


def _in_best_unit(value: float, unit: str | None) -> tuple[float, str]:
    """Years from nine tenths of a year on, days from two days on, else hours, minutes or seconds."""
    unit = unit_name(unit)
    if unit is None:
        return value, ""
    hours = value * DURATIONS[unit]
    for suffix, least in (("y", 0.9), ("d", 2.0), ("h", 1.0), ("min", 1.0)):
        if hours / DURATIONS[suffix] >= least * (1 - 1e-9):
            return hours / DURATIONS[suffix], suffix
    return hours / DURATIONS["s"], "s"
