"""A column of times as files have it: numbers, dates in several notations, or numbers that stand for dates."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from alps_ppl.checks import short
from alps_ppl.tables.dates import in_utc, not_dates
from alps_ppl.tables.durations import UNITS
from alps_ppl.tables.number_format import NumberFormat, column_numbers

# Day, month and year, or month and day first; a period between them is German, and so on, and has the day first.
DAY_MONTH_YEAR = re.compile(
    r"\s*(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:[ T,]+(\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm])?))?\s*"
)
# Periods as text: weeks, quarters and months of a year.
PERIODS = {
    re.compile(r"\s*(\d{4})[- ]?W(\d{1,2})\s*", re.I): lambda year, week: _week(year, week),
    re.compile(r"\s*(\d{4})[- ]?Q(\d)\s*", re.I): lambda year, quarter: pd.Timestamp(year, 3 * quarter - 2, 1),
    re.compile(r"\s*(\d{4})[- ]?M(\d{1,2})\s*", re.I): lambda year, month: pd.Timestamp(year, month, 1),
}
# Since 1970, of times from 2000 to 2100.
UNIX = {"s": 1e0, "ms": 1e3, "us": 1e6, "ns": 1e9}
YEARS_OF_UNIX = (946_684_800, 4_102_444_800)
# Days since these dates, by what a column of them is called: Julian ones from 1950 to 2100, spreadsheets' likewise.
JULIAN, SPREADSHEET = r"julian|\bjd\b", r"date|datum|fecha|excel|serial"
JULIAN_DAYS, SPREADSHEET_DAYS = (2_433_282, 2_488_070), (18_264, 73_051)
# Of numbers such as 202053, this part at least has a number above 12 if they are weeks.
FEWEST_WEEKS = 0.2


class Stamps(NamedTuple):
    """Times, numbers or a DatetimeIndex, and what to say of how they were read."""

    times: Any
    notes: tuple[str, ...] = ()


def read_stamps(
    cells: pd.Series, form: NumberFormat, *, date_format: str | None = None, time_zone: str | None = None
) -> Stamps:
    """The times of a column without missing cells.

    ``date_format`` is that of ``datetime.strptime``; ``time_zone`` is where the wall clock of stamps with an offset is,
    by its IANA name. Raises a ValueError that names a cell and its row.
    """
    name = str(cells.name)
    if date_format is not None:
        return _zoned(_formatted(cells, date_format), cells, time_zone)
    values = column_numbers(cells, form)
    if np.isfinite(values).all():
        numbers = _of_numbers(values, name)
        if time_zone is not None:
            if not (isinstance(numbers.times, pd.DatetimeIndex) and "Unix" in numbers.notes[0]):
                raise ValueError(f"time_zone: column {name!r} has no stamps with an offset; leave it out")
            wall = _zone(numbers.times.tz_localize("UTC"), time_zone)
            return Stamps(wall, (numbers.notes[0].replace(", in UTC.", f", on the clock in {time_zone}."),))
        return numbers
    if (found := _of_periods(cells)) is not None:
        if time_zone is not None:
            raise ValueError(f"time_zone: column {name!r} has no stamps with an offset; leave it out")
        return found
    if (dates := _day_month_year(cells)) is not None:
        return _zoned(dates, cells, time_zone)
    try:
        dates = pd.DatetimeIndex(cells) if pd.api.types.is_datetime64_any_dtype(cells) else in_utc(cells)
    except (ValueError, TypeError):
        wrong = not_dates(cells)
        bad = np.isnan(values) if np.isfinite(values).sum() > (~wrong).sum() else wrong
        row = int(np.argmax(bad))
        raise ValueError(
            "expected numbers or ISO 8601 dates, such as 2010-01-31 or 2010-01-31T18:00, in column "
            f"{name!r}, got {cells.iloc[row]!r} in row {row + 1}; a date_format says how others are written"
        ) from None
    return _zoned(dates, cells, time_zone)


def holds_dates(cells: pd.Series, form: NumberFormat) -> bool:
    """Whether a column's first hundred cells are dates, and not numbers that would pass for years."""
    first = cells.dropna().head(100)
    if pd.api.types.is_datetime64_any_dtype(first):
        return True
    if not len(first) or not np.isnan(column_numbers(first, form)).all():
        return False
    texts = [str(cell) for cell in first]
    written = [DAY_MONTH_YEAR, *PERIODS]
    return not not_dates(first).any() or any(all(pattern.fullmatch(text) for text in texts) for pattern in written)


def _formatted(cells: pd.Series, date_format: str) -> pd.DatetimeIndex:
    if not re.search("%[YyGcx]", date_format):
        raise ValueError(f"date_format: expected one with a year, such as '%d/%m/%Y', got {date_format!r}")
    dates = pd.to_datetime(cells.astype(str).str.strip(), format=date_format, errors="coerce", utc="%z" in date_format)
    if (bad := np.asarray(pd.isna(dates))).any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"expected dates of the format {date_format!r} in column {cells.name!r}, got {short(cells.iloc[row])} in "
            f"row {row + 1}"
        )
    return pd.DatetimeIndex(dates)


def _zoned(dates: pd.DatetimeIndex, cells: pd.Series, time_zone: str | None) -> Stamps:
    """Dates without a zone as they are; with offsets on one clock: the wall clock's, the one offset's, or UTC."""
    offsets = _offsets(cells) if dates.tz is not None else set()
    if not offsets:
        if time_zone is not None:
            raise ValueError(
                f"time_zone: column {cells.name!r} has stamps without an offset, which are on one clock already; leave "
                "it out"
            )
        return Stamps(dates.tz_localize(None))
    if time_zone is not None:
        return Stamps(_zone(dates, time_zone), (f"The times are those of the wall clock in {time_zone}.",))
    if len(offsets) == 1:
        return Stamps(dates.tz_convert(pd.Timestamp(str(cells.iloc[0])).tz))
    shown = " and ".join(sorted(offsets)[:3])
    note = (
        f"The times have several offsets, {shown}, and are counted in UTC: a daily cycle of the wall clock then jumps "
        "when clocks change. A time zone keeps the wall clock: --time-zone Europe/London, say."
    )
    return Stamps(dates, (note,))


def _zone(dates: pd.DatetimeIndex, time_zone: str) -> pd.DatetimeIndex:
    try:
        return dates.tz_convert(time_zone).tz_localize(None)
    except Exception:  # zoneinfo's own, pandas', or pytz'
        raise ValueError(f"time_zone: expected a name such as Europe/London, got {time_zone!r}") from None


def _offsets(cells: pd.Series) -> set[str]:
    """Those of the stamps; a ValueError where some have one and others don't."""
    if isinstance(cells.dtype, pd.DatetimeTZDtype):
        return {str(cells.dt.tz)}
    found = cells.astype(str).str.extract(r"[T ]\d.*?(Z|[-+]\d\d(?::?\d\d)?)\s*$", expand=False)
    if found.notna().any() and found.isna().any():
        row = int(np.argmax(found.isna()))
        raise ValueError(
            f"expected an offset in every stamp of column {cells.name!r} or in none, got {cells.iloc[row]!r} in "
            f"row {row + 1}"
        )
    return {"+00:00" if offset == "Z" else offset for offset in found.dropna().unique()}


def _day_month_year(cells: pd.Series) -> pd.DatetimeIndex | None:
    """31.12.2024, 31/12/2024 or 12/31/2024, with a time or not; None where cells are something else."""
    found = [DAY_MONTH_YEAR.fullmatch(str(cell)) for cell in cells]
    if not all(found):
        return None
    first, second = (np.array([int(match[k]) for match in found if match]) for k in (1, 3))
    day_first = bool((first > 12).any()) or {match[2] for match in found if match} == {"."}
    if not day_first and not (second > 12).any():
        raise ValueError(
            f"expected dates of which the day can be told from the month in column {cells.name!r}, got "
            f"{str(cells.iloc[0])!r}; give a date_format, '%d/%m/%Y' or '%m/%d/%Y' (--date-format)"
        )
    day, month = (first, second) if day_first else (second, first)
    texts = [
        f"{match[4]}-{m:02d}-{d:02d} {match[5] or '00:00'}"
        for match, d, m in zip(found, day, month, strict=True)
        if match
    ]
    dates = pd.to_datetime(pd.Series(texts), format="mixed", errors="coerce")
    if (bad := np.asarray(pd.isna(dates))).any():
        row = int(np.argmax(bad))
        raise ValueError(f"expected dates in column {cells.name!r}, got {short(cells.iloc[row])} in row {row + 1}")
    return pd.DatetimeIndex(dates)


def _of_periods(cells: pd.Series) -> Stamps | None:
    for pattern, start in PERIODS.items():
        found = [pattern.fullmatch(str(cell)) for cell in cells]
        if all(found):
            return Stamps(_starts(cells, [(int(m[1]), int(m[2])) for m in found if m], start))
    return None


def _starts(
    cells: pd.Series, parts: list[tuple[int, int]], start: Callable[[int, int], pd.Timestamp]
) -> pd.DatetimeIndex:
    dates = []
    for row, (year, number) in enumerate(parts):
        try:
            dates.append(start(year, number))
        except ValueError:
            raise ValueError(
                f"expected weeks, months or quarters of a year in column {cells.name!r}, got {short(cells.iloc[row])} "
                f"in row {row + 1}"
            ) from None
    return pd.DatetimeIndex(dates)


def _week(year: int, week: int) -> pd.Timestamp:
    return pd.Timestamp.fromisocalendar(year, week, 1)


def _of_numbers(values: np.ndarray, name: str) -> Stamps:
    """Numbers as they are, or the dates that they stand for, which is said."""
    whole = bool((values == np.round(values)).all())
    year, rest = values // 100, values % 100
    if whole and len(set(values)) > 1 and ((year >= 1800) & (year < 2200)).all() and ((rest >= 1) & (rest <= 53)).all():
        beyond = rest > 12
        is_weeks = beyond.mean() > FEWEST_WEEKS or bool(re.search("week|woche|semaine|kw", name, re.I))
        if beyond.any() and not is_weeks:
            row = int(np.argmax(beyond))
            raise ValueError(f"expected months of a year in column {name!r}, got {values[row]:.0f} in row {row + 1}")
        parts = list(zip(year.astype(int).tolist(), rest.astype(int).tolist(), strict=True))
        start = _week if is_weeks else lambda y, m: pd.Timestamp(y, m, 1)
        what = "weeks (ISO 8601)" if is_weeks else "months"
        dates = _starts(pd.Series(values.astype(int), name=name), parts, start)
        return Stamps(dates, (f"Column {name!r}: {values[0]:.0f} and the like are read as {what} of a year.",))
    month, day = values // 100 % 100, values % 100
    if (
        whole
        and ((values >= 18000101) & (values < 22000101) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)).all()
    ):
        dates = pd.to_datetime(pd.Series(values.astype(int).astype(str)), format="%Y%m%d", errors="coerce")
        if not dates.isna().any():
            note = f"Column {name!r}: {values[0]:.0f} and the like are read as dates, YYYYMMDD."
            return Stamps(pd.DatetimeIndex(dates), (note,))
    of_unit = {unit: (values >= YEARS_OF_UNIX[0] * n) & (values < YEARS_OF_UNIX[1] * n) for unit, n in UNIX.items()}
    first = next((unit for unit, rows in of_unit.items() if rows[0]), None)
    if first is not None and np.any(list(of_unit.values()), 0).all():
        if not of_unit[first].all():
            row = int(np.argmin(of_unit[first]))
            got = f"{values[0]:.0f} in row 1 and {values[row]:.0f} in row {row + 1}"
            raise ValueError(f"expected Unix times of one unit in column {name!r}, got {got}")
        note = f"Column {name!r}: {values[0]:.10g} and the like are read as Unix times in {UNITS[first]}, in UTC."
        microseconds = np.round(values / UNIX[first] * 1e6).astype("int64")
        return Stamps(pd.DatetimeIndex(microseconds.astype("datetime64[us]")), (note,))
    for pattern, (low, high), origin, what in (
        (JULIAN, JULIAN_DAYS, "julian", "Julian dates"),
        (SPREADSHEET, SPREADSHEET_DAYS, "1899-12-30", "a spreadsheet's days since 1899-12-30"),
    ):
        if re.search(pattern, name, re.I) and ((values >= low) & (values < high)).all():
            dates = pd.to_datetime(values, unit="D", origin=origin).round("ms")
            return Stamps(pd.DatetimeIndex(dates), (f"Column {name!r}: numbers are read as {what}.",))
    return Stamps(values)
