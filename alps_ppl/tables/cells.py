"""A file's cells as they are written: CSV or Parquet, text still, and a column of it as numbers."""

import csv
import difflib
import re
import warnings
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path

import pandas as pd

from alps_ppl.checks import short
from alps_ppl.tables.dates import not_dates

# Besides what pandas takes for a missing cell: an empty cell, NA, N/A, NaN, null and the like.
MISSING = ["-", "--", ".", "?"]
SEPARATORS = ",;\t|"


def read_file(path: Path, separator: str | None = None, encoding: str = "utf-8-sig") -> pd.DataFrame:
    """A CSV file's rows as text, NaN where a cell is missing, or a Parquet file's as pandas reads it."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path)
    try:
        separator, header = _header(path, separator, encoding)
        _check_header(path, header)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            # As text: what isn't a number is then an error that names its place.
            table = pd.read_csv(
                path, sep=separator, encoding=encoding, dtype=object, na_values=MISSING, skipinitialspace=True,
                index_col=False, low_memory=False,
            )  # fmt: skip
    except (UnicodeError, LookupError) as error:
        raise ValueError(f"{path.name}: {error}; save it as UTF-8, or name its encoding, e.g. cp1252") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, csv.Error) as error:
        reason = str(error).strip()
        raise ValueError(f"{path.name}: expected as many cells in every row as in the header: {reason}") from None
    if len(header) != table.shape[1]:
        raise ValueError(
            f"{path.name}: expected a name for each of {table.shape[1]} columns in the first row, got {short(header)}; "
            "write them without quotes and line breaks"
        )
    table = table.set_axis(header, axis=1)
    table.attrs["separator"] = separator
    return table


def _header(path: Path, separator: str | None, encoding: str) -> tuple[str, list[str]]:
    """The separator that splits the first row into most cells, and these."""
    found = {}
    for sign in [separator] if separator else SEPARATORS:
        with path.open(newline="", encoding=encoding) as file:
            lines = dropwhile(lambda line: not line.strip(), (line.lstrip("\ufeff") for line in file))
            row = next(csv.reader(lines, delimiter=sign, skipinitialspace=True), [])
            found[sign] = [_on_one_line(cell) for cell in row]
    best = max(found, key=lambda sign: len(found[sign]))
    return best, found[best]


def _on_one_line(name: str) -> str:
    """A column's name is text for tables and figures: a line break in it, as spreadsheets have them, is a space."""
    return " ".join(filter(None, (line.strip() for line in name.splitlines())))


def _check_header(path: Path, header: list[str]) -> None:
    if not header:
        raise ValueError(f"{path.name}: expected a header and rows of values, got an empty file")
    _check_names(path, header)
    number = r"[-+]?\d*[.,]?\d+(?:[eE][-+]?\d+)?"
    if all(re.fullmatch(number, name) or not not_dates([name])[0] for name in header):
        raise ValueError(f"{path.name}: expected a line with the columns' names first, got {short(header)}")


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
    names = [_on_one_line(str(name)) for name in table.columns]
    _check_names(path, names)
    return table.set_axis(names, axis=1)


def _check_names(path: Path, names: list[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"{path.name}: expected column names that differ, got {short(twice)} more than once; name or delete them"
        )


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first twenty."""
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def suggestion(name: str, names: Sequence[str]) -> str:
    """What may have been meant by a name that isn't there, for the end of a message."""
    near = difflib.get_close_matches(name.lower(), [str(other).lower() for other in names], n=1, cutoff=0.6)
    meant = next((str(other) for other in names if near and str(other).lower() == near[0]), None)
    return f"; did you mean {meant!r}?" if meant else ""
