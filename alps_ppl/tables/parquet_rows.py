"""``ParquetRows``: a Parquet file that is too long to hold, some row groups at a time, for ``sum_rows``."""

import copy
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from alps_ppl import checks
from alps_ppl.tables.cells import listed, suggestion
from alps_ppl.tables.data import Conversion
from alps_ppl.tables.dates import in_utc, numbers_since, read_times

ROWS_AT_A_TIME = 262_144


class ParquetRows:
    """A large Parquet file's rows, in the file's order: iterate for (inputs, y), (row,) and (row, output).

    Parameters
    ----------
    path
        The file. Only the rows of one step are in memory at a time.
    time
        The column of times: dates, which become hours since the first one, or days where the median step is a day or
        more; or numbers, which stay as they are.
    outputs
        The columns to read; left out, every other column of numbers.

    Raises a ValueError for a file, or columns, that aren't there or aren't these; OSError where it can't be opened.

    ``span`` are the first and the last time, ``num_rows`` the number of rows. ``units`` and ``time_unit`` ("hours",
    "days" or None) are those of predictions and times.
    """

    def __init__(self, path: str | Path, *, time: str, outputs: Sequence[str] | None = None):
        self.path, self.time = Path(path), time
        self._arrow = _pyarrow(self.path)
        with self._open() as file:
            schema = file.schema_arrow
            self.outputs = _outputs(self.path, schema, self._arrow, time, outputs)
            self.num_rows = file.metadata.num_rows
            self._groups = list(range(file.metadata.num_row_groups))
            if self.num_rows == 0:
                raise ValueError(f"{self.path.name}: expected rows, got none")
            kind = schema.field(time).type
            types = self._arrow.types
            are_dates = types.is_timestamp(kind) or types.is_date(kind)
            if not (are_dates or types.is_integer(kind) or types.is_floating(kind)):
                raise ValueError(f"{self.path.name}: expected dates or numbers in column {time!r}, got {kind}")
            self._set_times(file, are_dates)

    def part(self, index: int, count: int) -> "ParquetRows":
        """The row groups of process ``index`` of ``count``: every count-th one."""
        checks.whole_number("count", count)
        checks.whole_number("index", index, least=0)
        if index >= count:
            raise ValueError(f"index: expected a number below count, {count}, got {index}")
        if count > len(self._groups):
            raise ValueError(
                f"count: {self.path.name} has {len(self._groups)} row groups, too few for {count} processes; write it "
                "with smaller ones"
            )
        part = copy.copy(self)
        part._groups = self._groups[index::count]
        with self._open() as file:
            part.num_rows = sum(file.metadata.row_group(group).num_rows for group in part._groups)
        return part

    def __iter__(self) -> Iterator[tuple[Float[np.ndarray, " row"], Float[np.ndarray, "row output"]]]:
        row = 0
        with self._open() as file:
            columns = [self.time, *self.outputs]
            for batch in file.iter_batches(ROWS_AT_A_TIME, row_groups=self._groups, columns=columns):
                times = batch.column(self.time)
                if times.null_count:
                    empty = row + int(np.argmax(times.is_null().to_numpy(zero_copy_only=False)))
                    raise ValueError(f"{self.path.name}: expected a time in every row, got none in row {empty + 1:,}")
                y = np.column_stack(
                    [batch.column(name).cast("float64").to_numpy(zero_copy_only=False) for name in self.outputs]
                )
                row += len(y)
                yield self.to_inputs(times.to_pandas()), y

    def to_inputs(self, times: Any) -> Float[np.ndarray, " row"]:
        """Dates or numbers, as the file's, as a fit takes them."""
        return numbers_since(times, self._origin, self.time_unit)

    def conversion(self, loc: Float[np.ndarray, " output"], scale: Float[np.ndarray, " output"]) -> Conversion:
        """What takes predictions to the file's units: ``conversion(rows.loc, rows.scale).to_units(prediction)``."""
        label = self.time if self.time_unit is None else f"{self.time_unit} since {self._origin}"
        return Conversion(
            self.outputs, loc, scale, {}, label, [self.time], origin=self._origin, step=self.time_unit, log=()
        )

    def _open(self):
        try:
            # Buffers of its own would hold the whole file in the end.
            return self._arrow.parquet.ParquetFile(self.path, pre_buffer=False)
        except OSError:
            raise
        except Exception as error:  # pyarrow's own
            raise ValueError(f"{self.path.name}: expected a Parquet file, got {checks.short(str(error))}") from None

    def _set_times(self, file, are_dates: bool) -> None:
        """The span, from what row groups say of themselves or else from the column, and what dates are counted in."""
        paths = [file.metadata.schema.column(k).path for k in range(file.metadata.num_columns)]
        place = paths.index(self.time)  # nested columns have several leaves
        told = [file.metadata.row_group(group).column(place).statistics for group in self._groups]
        if all(one is not None and one.has_min_max for one in told):
            ends = [end for one in told for end in (one.min, one.max)]
        else:
            batches = [batch.column(0).to_pandas() for batch in file.iter_batches(ROWS_AT_A_TIME, columns=[self.time])]
            ends = [end for batch in batches for end in (batch.min(), batch.max())]
        self._origin, self.time_unit = None, None
        if are_dates:
            first = next(file.iter_batches(10_000, columns=[self.time])).column(0).to_pandas().dropna()
            if len(first) == 0:
                raise ValueError(f"{self.path.name}: expected a time in every row, got none in column {self.time!r}")
            ends = list(in_utc(ends))
            self._origin, self.time_unit = min(ends).isoformat(), read_times(first).unit
        low, high = self.to_inputs(pd.DatetimeIndex([min(ends), max(ends)]) if are_dates else [min(ends), max(ends)])
        self.span = float(low) + 0.0, float(high) + 0.0  # no -0

    def __repr__(self):
        return f"ParquetRows({self.path.name}, {self.num_rows:,} rows of {len(self.outputs)} outputs)"


def _pyarrow(path: Path) -> ModuleType:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{path.name}: reading Parquet needs pyarrow: pip install 'alps-ppl[parquet]'") from None
    return pyarrow


def _outputs(path: Path, schema, arrow: ModuleType, time: str, outputs: Sequence[str] | None) -> list[str]:
    # pandas keeps an index as a column of such a name.
    numeric = [
        field.name
        for field in schema
        if arrow.types.is_floating(field.type)
        or arrow.types.is_integer(field.type)
        or arrow.types.is_decimal(field.type)
    ]
    numeric = [name for name in numeric if not re.fullmatch(r"__index_level_\d+__", name)]
    if outputs is not None and time in outputs:
        raise ValueError(f"outputs: expected other columns than {time!r}, which is the time")
    for name in [time, *(outputs or [])]:
        if name not in schema.names:
            raise ValueError(
                f"{path.name}: there is no column {name!r}, only {listed(schema.names)}{suggestion(name, schema.names)}"
            )
        if name != time and name not in numeric:
            raise ValueError(f"{path.name}: expected numbers in column {name!r}, got {schema.field(name).type}")
    found = [name for name in numeric if name != time] if outputs is None else list(outputs)
    if not found:
        raise ValueError(f"{path.name}: expected columns of numbers besides {time!r}, got {listed(schema.names)}")
    return list(checks.output_names(found))
