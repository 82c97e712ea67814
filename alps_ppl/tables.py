"""Tables from files: a CSV or Parquet file of series as a DataFrame by time, and its last stretch or its future."""

import csv
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.data import Data
from alps_ppl.grammar import duration
from alps_ppl.model import short

# Besides what pandas takes for a missing cell: an empty cell, NA, N/A, NaN, null and the like.
MISSING = ["-", "--", ".", "?"]
MOST_AHEAD = 100_000
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

    ``time`` is the column of times: numbers, or ISO 8601 dates. Left out, it is the only column that holds dates, or
    else the only one called t, time, date, datetime or timestamp. Rows may come in any order; rows of one time are
    repeated observations.
    ``outputs`` are the columns to read; left out, every column of numbers, but not one that is the time once more
    (a straight line of it), nor an empty or a constant one. ``table.attrs["left_out"]`` says which columns
    weren't read, and why.
    A missing cell is NaN: empty, NA and the like, "-", ".", or "?"; rows without any cell are skipped.

    ``separator`` is found from the header (comma, semicolon, tab or bar) and ``decimal`` from the cells unless given.
    Raises a ValueError that names the row and column, OSError where the file can't be opened.
    """
    path = Path(path)
    raw = _read_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _read_csv(path, separator, encoding)
    if raw.shape[1] == 1:
        raise ValueError(
            f"{path.name}: expected columns separated by {separator or ','!r}, got one, {short(raw.columns[0])}; give "
            "the separator"
        )
    raw = raw.dropna(how="all").reset_index(drop=True)
    if raw.empty:
        raise ValueError(f"{path.name}: expected a header and rows of values, got no rows")
    decimal = decimal or _decimal(raw)
    name = _time_column(path, raw, time, decimal)
    times = _times(path, name, raw[name], decimal)
    chosen = _columns(path, raw, name, outputs)
    left_out, columns = {}, {}
    for output in chosen:
        values = _numbers(raw[output], decimal)
        reason = None if outputs is not None else _reason_to_leave_out(raw[output], values, times)
        if reason:
            left_out[output] = reason
            continue
        _check_cells(path, output, raw[output], values, times)
        columns[output] = values
    if not columns:
        found = "; ".join(f"column {output!r}: {reason}" for output, reason in list(left_out.items())[:20])
        raise ValueError(
            f"{path.name}: expected at least one column of numbers that vary beside the times, got none: {found}"
        )
    table = pd.DataFrame(columns).set_axis(pd.Index(times, name=name)).sort_index(kind="stable")
    table.attrs["left_out"] = left_out
    return table


def split_table(
    table: pd.DataFrame,
    *,
    hold_out: str | float | None = None,
    forecast: str | float | None = None,
    time_unit: str | None = None,
) -> Data:
    """``Data`` of a table by time, its last ``hold_out`` held out as "test" and ``forecast`` beyond its end to predict.

    Both are durations such as "2d", numbers in the unit of the times, or, of ``hold_out``, a share such as "10%" of the
    rows. The rows ahead, at the table's median step, have no observed cell; their split is "forecast". ``time_unit`` is
    that of times that are plain numbers.
    """
    table = table.sort_index(kind="stable")
    measured = Data(table.index, table)
    unit = measured.input_unit or time_unit
    t, n = measured.inputs, len(table)
    held_out = {}
    if hold_out is not None:
        test = _last(hold_out, t, unit)
        if test.all() or not test.any():
            raise ValueError(
                f"hold_out: expected some of the {n} rows, but not all, got {hold_out!r}, {test.sum()} rows"
            )
        held_out["test"] = test
    if forecast is not None:
        stamps = _ahead(forecast, table.index, t, unit)
        rows = pd.DataFrame(np.nan, index=stamps, columns=table.columns)
        held_out = {split: np.append(mask, np.zeros(len(rows), bool)) for split, mask in held_out.items()}
        held_out["forecast"] = np.arange(n + len(rows)) >= n
        table = pd.DataFrame(
            np.concatenate([table.to_numpy(), rows]), table.index.append(stamps), table.columns
        ).rename_axis(table.index.name)
    label = f"{table.index.name or 't'} [{time_unit}]" if time_unit and not measured.input_unit else None
    return Data(table.index, table, held_out=held_out, input_label=label)


def read_cells(path: Path) -> pd.DataFrame:
    """A CSV file's cells as they are written, numbers where a whole column is of numbers; the separator is found."""
    raw = _read_csv(path, None, "utf-8-sig")
    decimal = _decimal(raw)
    numbers = {name: _numbers(cells, decimal) for name, cells in raw.items()}
    return raw.assign(**{name: values for name, values in numbers.items() if not np.isnan(values).any()})


def _read_csv(path: Path, separator: str | None, encoding: str) -> pd.DataFrame:
    try:
        with path.open(newline="", encoding=encoding) as file:
            lines = (line for line in file if line.strip())
            first = next(lines, "")
            separator = separator or max(",;\t|", key=re.sub(r'"[^"]*"', "", first).count)
            header = [cell.strip() for cell in next(csv.reader([first], delimiter=separator), [])]
        _check_header(path, header)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            # As text: what isn't a number is then an error that names its place.
            table = pd.read_csv(
                path, sep=separator, encoding=encoding, dtype=str, na_values=MISSING, skipinitialspace=True,
                index_col=False, low_memory=False,
            )  # fmt: skip
    except UnicodeError:
        name = "UTF-8" if encoding == "utf-8-sig" else encoding
        raise ValueError(
            f"{path.name}: expected text in {name}, got bytes that aren't; save it as UTF-8, or name its encoding, "
            "e.g. cp1252"
        ) from None
    except LookupError:
        raise ValueError(f"encoding: expected the name of one, e.g. utf-8 or cp1252, got {encoding!r}") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, csv.Error) as error:
        raise ValueError(f"{path.name}: expected as many cells in every row as in the header: {error}") from None
    return table.set_axis(header, axis=1)


def _check_header(path: Path, header: list[str]) -> None:
    if not header:
        raise ValueError(f"{path.name}: expected a header and rows of values, got an empty file")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(f"{path.name}: expected column names that differ, got {short(twice)} more than once")
    if all(re.fullmatch(r"[-+]?\d*[.,]?\d+(?:[eE][-+]?\d+)?", name) for name in header):
        raise ValueError(f"{path.name}: expected the columns' names in the first row, got numbers, {short(header)}")


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        table = pd.read_parquet(path)
    except ImportError:
        raise ValueError(f"{path.name}: reading Parquet needs pyarrow; install it, or save the table as CSV") from None
    except OSError:
        raise
    except Exception as error:  # pyarrow's own
        raise ValueError(f"{path.name}: expected a Parquet file, got {short(str(error))}") from None
    if not isinstance(table.index, pd.RangeIndex):
        table = table.reset_index()
    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        raise ValueError(f"{path.name}: expected column names that differ, got {short(names)}")
    return table.set_axis(names, axis=1)


def _decimal(raw: pd.DataFrame) -> str:
    """A comma where cells look like 3,5 and none looks like 3.5; else a period."""
    cells = pd.unique(raw.select_dtypes(["object", "string"]).to_numpy(object).ravel())
    text = [str(cell).strip() for cell in cells if isinstance(cell, str)]
    commas = any(re.fullmatch(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?", cell) for cell in text)
    periods = any(re.fullmatch(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?", cell) for cell in text)
    return "," if commas and not periods else "."


def _numbers(cells: pd.Series, decimal: str) -> np.ndarray:
    """Floats, NaN where a cell is missing or no number."""
    if pd.api.types.is_bool_dtype(cells) or pd.api.types.is_datetime64_any_dtype(cells):
        return np.full(len(cells), np.nan)
    if pd.api.types.is_numeric_dtype(cells):
        return cells.to_numpy(float, na_value=np.nan)
    return np.array([_number(cell, decimal) for cell in cells], float)


def _number(cell: Any, decimal: str) -> float:
    """To the last digit, which pandas' own parser isn't; NaN for what is no number."""
    if isinstance(cell, str):
        cell = cell.replace("_", "no number").replace(decimal, ".")
    try:
        return float(cell)
    except (TypeError, ValueError):
        return np.nan


def _time_column(path: Path, raw: pd.DataFrame, time: str | None, decimal: str) -> str:
    names = list(raw.columns)
    if time is not None:
        if time not in names:
            raise ValueError(f"{path.name}: expected the column of times, {time!r}, among its columns {_listed(names)}")
        return time
    for candidates in (
        [name for name in names if _holds_dates(raw[name], decimal)],
        [name for name in names if name.lower() in TIME_NAMES],
    ):
        if len(candidates) == 1:
            return candidates[0]
    raise ValueError(f"{path.name}: which column holds the times? Name one of {_listed(names)}")


def _holds_dates(cells: pd.Series, decimal: str) -> bool:
    present = cells.dropna()
    if pd.api.types.is_datetime64_any_dtype(present):
        return True
    if len(present) == 0 or not np.isnan(_numbers(present.head(100), decimal)).all():
        return False
    return bool(pd.to_datetime(present.head(100), format="ISO8601", errors="coerce", utc=True).notna().all())


def _times(path: Path, name: str, cells: pd.Series, decimal: str) -> Any:
    """Numbers or dates; an error where there are neither."""
    if cells.isna().any():
        row = int(np.argmax(cells.isna()))
        raise ValueError(f"{path.name}: expected a time in every row, got none in row {row + 1}; drop that row")
    if pd.api.types.is_datetime64_any_dtype(cells):
        return pd.DatetimeIndex(cells)
    values = _numbers(cells, decimal)
    if np.isfinite(values).all():
        if _written_as_dates(values):
            raise ValueError(
                f"{path.name}: column {name!r} looks like dates without hyphens, {cells.iloc[0]}; write them as "
                "2010-01-31"
            )
        return values
    try:
        dates = pd.DatetimeIndex(pd.to_datetime(cells, format="ISO8601", utc=True))
        offset = cells.astype(str).str.contains(r"[T ].*(?:Z|[-+]\d\d(?::?\d\d)?)$").any()
        return dates if offset else dates.tz_localize(None)
    except (ValueError, TypeError):
        parsed = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
        bad = np.isnan(values) if np.isfinite(values).sum() > parsed.notna().sum() else np.asarray(parsed.isna())
        row = int(np.argmax(bad)) if bad.any() else 0
        raise ValueError(
            f"{path.name}: expected numbers or ISO 8601 dates, such as 2010-01-31 or 2010-01-31T18:00, in column "
            f"{name!r}, got {cells.iloc[row]!r} in row {row + 1}"
        ) from None


def _written_as_dates(values: np.ndarray) -> bool:
    month, day = values // 100 % 100, values % 100
    return bool(((values >= 18000101) & (values < 22000101) & (month >= 1) & (month <= 12) & (day <= 31)).all())


def _columns(path: Path, raw: pd.DataFrame, time: str, outputs: Sequence[str] | None) -> list[str]:
    names = [name for name in raw.columns if name != time]
    if outputs is None:
        return names
    if isinstance(outputs, str):
        raise TypeError(f"outputs: expected a list of names, got the string {outputs!r}")
    unknown = [str(name) for name in outputs if name not in names]
    if unknown or not len(outputs) or len(set(outputs)) < len(outputs):
        got = short(unknown or list(outputs))
        raise ValueError(f"{path.name}: outputs: expected different columns among {_listed(names)}, got {got}")
    return list(outputs)


def _reason_to_leave_out(cells: pd.Series, values: np.ndarray, times: Any) -> str | None:
    """Why a column that nobody asked for isn't an output, if it isn't."""
    present, numbers = int(cells.notna().sum()), int(np.isfinite(values).sum())
    if present == 0:
        return "it is empty"
    if numbers < 0.5 * present:
        return "it holds no numbers"
    seen = np.isfinite(values)
    if len(values) > 1 and values[seen].min() == values[seen].max():
        return "it is constant"
    t = np.asarray(times if isinstance(times, np.ndarray) else (times - times.min()) / pd.Timedelta(hours=1))
    if seen.sum() > 3 and t[seen].std() > 0:
        correlation = np.corrcoef(t[seen], values[seen] / np.abs(values[seen]).max())[0, 1]
        if abs(correlation) > 1 - 1e-6:
            return "it is the time once more"
    return None


def _check_cells(path: Path, output: str, cells: pd.Series, values: np.ndarray, times: Any) -> None:
    bad = cells.notna().to_numpy() & ~np.isfinite(values)
    if bad.any():
        row = int(np.argmax(bad))
        got, hint = cells.iloc[row], ""
        if isinstance(got, str) and re.fullmatch(r"[-+]?\d*,\d+", got.strip()):
            hint = "; a decimal comma?"
        raise ValueError(
            f"{path.name}: expected finite numbers in column {output!r}, got {short(got)} in row {row + 1} "
            f"(time {times[row]}){hint}"
        )


def _last(hold_out: str | float, t: np.ndarray, unit: str | None) -> np.ndarray:
    share = re.fullmatch(r"\s*(\d+\.?\d*)\s?%\s*", str(hold_out))
    if share:
        return np.arange(len(t)) >= (1 - float(share[1]) / 100) * len(t)
    return t > t[-1] - _positive("hold_out", hold_out, unit)


def _ahead(forecast: str | float, index: pd.Index, t: np.ndarray, unit: str | None) -> pd.Index:
    """The stamps ahead of the last one, at the median step."""
    steps = np.diff(np.unique(t))
    if not len(steps):
        raise ValueError("forecast: expected at least two different times, whose step is that of the forecast")
    step = float(np.median(steps))
    length = _positive("forecast", forecast, unit) / step
    if not 0.9 < length < MOST_AHEAD:
        raise ValueError(
            f"forecast: expected from one step, {step:g} here, to {MOST_AHEAD:,} of them, got {forecast!r}"
        )
    count = max(1, int(length + 1e-9))
    if isinstance(index, pd.DatetimeIndex):
        distinct = index.unique()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas 3: of the kind of result, which is as good in any
            frequency = pd.infer_freq(distinct) if len(distinct) > 2 else None
        if frequency is not None:  # months and years aren't all of one length
            count = max(1, round(length)) if step > 27 * (24 if unit == "hours" else 1) else count
            return pd.date_range(distinct[-1], periods=count + 1, freq=frequency)[1:]
        steps_ahead = pd.to_timedelta(step * np.arange(1, count + 1), unit="h" if unit == "hours" else "D")
        return pd.DatetimeIndex(index[-1] + steps_ahead)
    return pd.Index(index[-1] + step * np.arange(1, count + 1))


def _positive(name: str, value: str | float, unit: str | None) -> float:
    try:
        length = -1.0 if str(value).strip().startswith("-") else duration(value, unit)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if length <= 0:
        raise ValueError(f"{name}: expected a positive duration, got {value!r}")
    return length


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
