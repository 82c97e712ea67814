"""Files of series: CSV or Parquet as a DataFrame by time, or an error that names the row, the column and the cell."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.checks import output_names, short
from alps_ppl.tables.cells import listed, read_file, suggestion
from alps_ppl.tables.dates import read_times
from alps_ppl.tables.number_format import NumberFormat, column_numbers, number_format
from alps_ppl.tables.spikes import spikes, without_spikes
from alps_ppl.tables.stamps import holds_dates, read_stamps

TIME_NAMES = ("t", "time", "date", "datetime", "timestamp", "yyyymm", "yyyymmdd", "yearmonth", "yearweek", "yyyyww")


def read_table(
    path: str | Path,
    *,
    time: str | None = None,
    outputs: Sequence[str] | None = None,
    id: str | None = None,
    target: str | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    date_format: str | None = None,
    time_zone: str | None = None,
    drop_spikes: bool = False,
    encoding: str = "utf-8-sig",
) -> pd.DataFrame:
    """A CSV or Parquet file of series: its outputs as floats, indexed by its times, sorted.

    Rows may come in any order; rows of one time are repeated observations, unless they are the same in all columns. A
    missing cell is NaN: empty, NA and the like, "-", ".", or "?". Rows without any cell are skipped. A line break in a
    column's name is read as a space.
    ``table.attrs["left_out"]`` says which columns weren't read, and why, and ``table.attrs["notes"]`` what was read
    otherwise than as it stands: numbers that stand for dates, signs that group thousands.

    Parameters
    ----------
    path
        The file; Parquet if it ends in .parquet or .pq.
    time
        The column of times: numbers, or dates. Dates are ISO 8601 text; day, month and year where one can tell them
        apart (31.12.2024, 12/31/2024); weeks, months and quarters (2024-W05, 2024M01, 2024Q1, 202401); Unix times; and
        Julian dates or a spreadsheet's days in a column whose name says so. Left out, it is the only column that holds
        dates, or else the
        only one called t, time, date, datetime or timestamp.
    outputs
        The columns to read. Left out, every named column of numbers, but not one that is the time once more (a straight
        line of it), nor an empty or a constant one.
    id, target
        Of a long table, with a row per output and time: the column that names the output, and that of its values.
    separator
        Between columns. Left out, the one of comma, semicolon, tab and bar that splits the header into most cells.
    decimal
        The decimal sign. Left out, a comma where cells look like 3,5 and none looks like 3.5; else a period.
    thousands
        The sign that groups thousands, "" for none. Left out, it is found where cells leave no doubt, and where they do
        an error names one. Spaces and apostrophes are found in any case.
    date_format
        How dates are written, as in ``datetime.strptime``: "%d/%m/%Y".
    time_zone
        Of stamps with an offset: where the clock on the wall is whose times count, as "Europe/London". Left out, those
        of one offset stay as they are, and others are counted in UTC.
    drop_spikes
        Whether cells that stand out of their neighbours are read as missing; ``table.attrs["spikes"]`` lists them in
        any case, the dropped ones too.
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
    attrs, raw = raw.attrs, raw.dropna(how="all").reset_index(drop=True)
    raw.attrs = attrs
    if raw.empty:
        raise ValueError(f"{path.name}: expected a header and rows of values, got no rows")
    try:
        form = number_format(raw, decimal, thousands)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    notes = _grouped_note(raw, form) if thousands is None and decimal is None else []
    name = _time_column(path, raw, time, form)
    if id is not None or target is not None:
        raw = _wide(path, raw, name, id, target, outputs)
    if raw[name].isna().any():
        row = int(np.argmax(raw[name].isna()))
        raise ValueError(f"{path.name}: expected a time in every row, got none in row {row + 1}; drop that row")
    try:
        stamps = read_stamps(raw[name], form, date_format=date_format, time_zone=time_zone)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    times = stamps.times
    t = read_times(times).values
    left_out, columns = {}, {}
    for output in _columns(path, raw, name, outputs):
        values = column_numbers(raw[output], form)
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
    # Fitted as two observations, a row that is there twice would say that an output has hardly any noise.
    twice = table.reset_index().duplicated().to_numpy() & table.notna().any(axis=1).to_numpy()
    if twice.any():
        rows = "row says what another says and is" if twice.sum() == 1 else "rows say what others say and are"
        notes = [*notes, f"{twice.sum()} {rows} left out: the same time and the same values."]
        table = table[~twice]
    found = spikes(table)
    table.attrs |= {"left_out": left_out, "notes": [*notes, *stamps.notes], "spikes": found}
    return without_spikes(table, found) if drop_spikes else table


def _grouped_note(raw: pd.DataFrame, form: NumberFormat) -> list[str]:
    """What to say where a comma or a period might have been meant otherwise: 1,185."""
    doubtful = set(form.thousands) & {",", "."} | ({","} if form.decimal == "," else set())
    for name, cells in raw.items():
        for cell in cells.head(1000):
            if isinstance(cell, str) and any(sign in cell for sign in doubtful):
                number = column_numbers(pd.Series([cell]), form)[0]
                if np.isfinite(number):
                    return [f"Column {name!r}: {cell.strip()} and the like are read as {number:g}."]
    return []


def _wide(
    path: Path, raw: pd.DataFrame, time: str, id: str | None, target: str | None, outputs: Sequence[str] | None
) -> pd.DataFrame:
    """A row per time from a row per output and time; what is there twice has a row of its own."""
    if len({id, target, time}) < 3:
        raise ValueError(
            f"{path.name}: id, target: expected two columns beside that of the times, {time!r}, got {id!r}, {target!r}"
        )
    for option, column in (("id", id), ("target", target)):
        if column is None or column not in raw.columns:
            hint = "" if column is None else suggestion(column, raw.columns)
            raise ValueError(
                f"{path.name}: {option}: expected the column of a long table's "
                f"{'names' if option == 'id' else 'values'} among {listed(list(raw.columns))}, got {column!r}{hint}"
            )
    names = raw[id].astype(str).str.strip()
    if time in set(names):
        raise ValueError(f"{path.name}: id: expected names other than that of the times, {time!r}; rename one of them")
    if unknown := [name for name in outputs or () if name not in set(names)]:
        known = list(dict.fromkeys(names))
        raise ValueError(f"{path.name}: outputs: expected columns among {listed(known)}, got {short(unknown)}")
    if raw[id].isna().any():
        raise ValueError(
            f"{path.name}: id: expected a name in every row, got none in row {int(raw[id].isna().argmax()) + 1}"
        )
    repeated = raw.groupby([names, time], dropna=False, sort=False).cumcount()
    long = pd.DataFrame({"time": raw[time], "again": repeated, "name": names, "value": raw[target]})
    order = [str(name) for name in (outputs or names.unique())]
    wide = long[long.name.isin(order)].pivot(index=["time", "again"], columns="name", values="value")
    wide = wide.reindex(columns=[name for name in order if name in wide.columns])
    return wide.reset_index("time").reset_index(drop=True).rename(columns={"time": time}).rename_axis(None, axis=1)


def read_cells(path: Path) -> pd.DataFrame:
    """A file's cells as they are written, numbers where a whole column is of numbers; the separator is found."""
    raw = read_file(path)
    form = number_format(raw)
    numbers = {name: column_numbers(cells, form) for name, cells in raw.items()}
    found = {name: raw[name] if np.isnan(values).any() else values for name, values in numbers.items()}
    for name, cells in raw.items():
        if holds_dates(cells, form) and not cells.isna().any():
            found[name] = read_stamps(cells, form).times
    return pd.DataFrame(found)


def _time_column(path: Path, raw: pd.DataFrame, time: str | None, form: NumberFormat) -> str:
    names = list(raw.columns)
    if time is not None:
        if time not in names:
            hint = suggestion(time, names)
            raise ValueError(
                f"{path.name}: expected the column of times, {time!r}, among its columns {listed(names)}{hint}"
            )
        return time
    for candidates in (
        [name for name in names if holds_dates(raw[name], form)],
        [name for name in names if name.lower() in TIME_NAMES],
    ):
        if len(candidates) == 1:
            return candidates[0]
    raise ValueError(f"{path.name}: which column holds the times? Name one of {listed(names)}")


def _columns(path: Path, raw: pd.DataFrame, time: str, outputs: Sequence[str] | None) -> list[str]:
    names = [name for name in raw.columns if name != time]
    if outputs is None:
        return names
    unknown = [name for name in output_names(outputs) if name not in names]
    if unknown:
        hint = suggestion(unknown[0], names)
        raise ValueError(f"{path.name}: outputs: expected columns among {listed(names)}, got {short(unknown)}{hint}")
    return list(outputs)


def _reason_to_leave_out(cells: pd.Series, values: np.ndarray, t: np.ndarray) -> str | None:
    """Why a column that nobody asked for isn't an output, if it isn't."""
    present, seen = int(cells.notna().sum()), np.isfinite(values)
    if present == 0:
        return "it is empty"
    if seen.sum() < 0.5 * present:
        row = int(np.argmax(cells.notna().to_numpy() & ~seen))
        return f"most of its cells are no numbers, such as {short(cells.iloc[row])} in row {row + 1}"
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
