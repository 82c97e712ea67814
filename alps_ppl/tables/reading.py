"""Files of series: CSV or Parquet as a DataFrame by time, or an error that names the row, the column and the cell."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.checks import output_names, short
from alps_ppl.tables.cells import column_numbers, decimal_sign, listed, read_file
from alps_ppl.tables.dates import column_dates, not_dates, read_times, without_hyphens

TIME_NAMES = ("t", "time", "date", "datetime", "timestamp")


def read_table(
    path: str | Path,
    *,
    time: str | None = None,
    outputs: Sequence[str] | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str = "utf-8-sig",
) -> pd.DataFrame:
    """A CSV or Parquet file of series: its outputs as floats, indexed by its times, sorted.

    Rows may come in any order; rows of one time are repeated observations. A missing cell is NaN: empty, NA and the
    like, "-", ".", or "?". Rows without any cell are skipped. A line break in a column's name is read as a space.
    ``table.attrs["left_out"]`` says which columns weren't read, and why.

    Parameters
    ----------
    path
        The file; Parquet if it ends in .parquet or .pq.
    time
        The column of times: numbers, or ISO 8601 dates. Left out, it is the only column that holds dates, or else the
        only one called t, time, date, datetime or timestamp.
    outputs
        The columns to read. Left out, every named column of numbers, but not one that is the time once more (a straight
        line of it), nor an empty or a constant one.
    separator
        Between columns. Left out, the one of comma, semicolon, tab and bar that splits the header into most cells.
    decimal
        The decimal sign. Left out, a comma where cells look like 3,5 and none looks like 3.5; else a period.
    encoding
        The file's encoding; UTF-8 may have a byte-order mark.

    Raises a ValueError that names the row and column, OSError where the file can't be opened.
    """
    path = Path(path)
    raw = read_file(path, separator, encoding)
    if raw.shape[1] == 1:
        raise ValueError(
            f"{path.name}: expected columns separated by {separator or ','!r}, got one, {short(raw.columns[0])}; give "
            "the separator"
        )
    raw = raw.dropna(how="all").reset_index(drop=True)
    if raw.empty:
        raise ValueError(f"{path.name}: expected a header and rows of values, got no rows")
    decimal = decimal or decimal_sign(raw)
    name = _time_column(path, raw, time, decimal)
    times = _times(path, name, raw[name], decimal)
    t = read_times(times).values
    left_out, columns = {}, {}
    for output in _columns(path, raw, name, outputs):
        values = column_numbers(raw[output], decimal)
        reason = None if outputs is not None else _reason_to_leave_out(raw[output], values, t)
        if reason:
            left_out[output] = reason
            continue
        _check_cells(path, raw[output], values, times)
        columns[output] = values
    if not columns:
        found = "; ".join(f"column {output!r}: {reason}" for output, reason in list(left_out.items())[:20])
        raise ValueError(
            f"{path.name}: expected at least one column of numbers that vary beside the times, got none: {found}"
        )
    table = pd.DataFrame(columns).set_axis(pd.Index(times, name=name)).sort_index(kind="stable")
    table.attrs["left_out"] = left_out
    return table


def read_cells(path: Path) -> pd.DataFrame:
    """A file's cells as they are written, numbers where a whole column is of numbers; the separator is found."""
    raw = read_file(path)
    decimal = decimal_sign(raw)
    numbers = {name: column_numbers(cells, decimal) for name, cells in raw.items()}
    return pd.DataFrame({name: raw[name] if np.isnan(values).any() else values for name, values in numbers.items()})


def _time_column(path: Path, raw: pd.DataFrame, time: str | None, decimal: str) -> str:
    names = list(raw.columns)
    if time is not None:
        if time not in names:
            raise ValueError(f"{path.name}: expected the column of times, {time!r}, among its columns {listed(names)}")
        return time
    for candidates in (
        [name for name in names if _holds_dates(raw[name], decimal)],
        [name for name in names if name.lower() in TIME_NAMES],
    ):
        if len(candidates) == 1:
            return candidates[0]
    raise ValueError(f"{path.name}: which column holds the times? Name one of {listed(names)}")


def _holds_dates(cells: pd.Series, decimal: str) -> bool:
    """By its first hundred cells: dates, and not the numbers that would pass for years."""
    first = cells.dropna().head(100)
    if pd.api.types.is_datetime64_any_dtype(first):
        return True
    return len(first) > 0 and bool(np.isnan(column_numbers(first, decimal)).all() and not not_dates(first).any())


def _times(path: Path, name: str, cells: pd.Series, decimal: str) -> Any:
    """Numbers or dates; an error where there are neither."""
    if cells.isna().any():
        row = int(np.argmax(cells.isna()))
        raise ValueError(f"{path.name}: expected a time in every row, got none in row {row + 1}; drop that row")
    values = column_numbers(cells, decimal)
    if np.isfinite(values).all():
        if without_hyphens(values):
            raise ValueError(
                f"{path.name}: column {name!r} looks like dates without hyphens, {cells.iloc[0]}; write them as "
                "2010-01-31"
            )
        return values
    try:
        return column_dates(cells)
    except (ValueError, TypeError):
        wrong = not_dates(cells)
        bad = np.isnan(values) if np.isfinite(values).sum() > (~wrong).sum() else wrong
        row = int(np.argmax(bad))
        raise ValueError(
            f"{path.name}: expected numbers or ISO 8601 dates, such as 2010-01-31 or 2010-01-31T18:00, in column "
            f"{name!r}, got {cells.iloc[row]!r} in row {row + 1}"
        ) from None


def _columns(path: Path, raw: pd.DataFrame, time: str, outputs: Sequence[str] | None) -> list[str]:
    names = [name for name in raw.columns if name != time]
    if outputs is None:
        return names
    unknown = [name for name in output_names(outputs) if name not in names]
    if unknown:
        raise ValueError(f"{path.name}: outputs: expected columns among {listed(names)}, got {short(unknown)}")
    return list(outputs)


def _reason_to_leave_out(cells: pd.Series, values: np.ndarray, t: np.ndarray) -> str | None:
    """Why a column that nobody asked for isn't an output, if it isn't."""
    present, seen = int(cells.notna().sum()), np.isfinite(values)
    if present == 0:
        return "it is empty"
    if seen.sum() < 0.5 * present:
        return "it holds no numbers"
    if not cells.name:
        return "it has no name"
    if len(values) > 1 and values[seen].min() == values[seen].max():
        return "it is constant"
    if seen.sum() > 3 and t[seen].std() > 0:
        correlation = np.corrcoef(t[seen], values[seen] / np.abs(values[seen]).max())[0, 1]
        if abs(correlation) > 1 - 1e-6:
            return "it is the time once more"
    return None


def _check_cells(path: Path, cells: pd.Series, values: np.ndarray, times: Any) -> None:
    bad = cells.notna().to_numpy() & ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad))
        got, hint = cells.iloc[row], ""
        if isinstance(got, str) and re.fullmatch(r"[-+]?\d*,\d+", got.strip()):
            hint = "; a decimal comma?"
        raise ValueError(
            f"{path.name}: expected finite numbers in column {cells.name!r}, got {short(got)} in row {row + 1} "
            f"(time {times[row]}){hint}"
        )
