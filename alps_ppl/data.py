"""``Data``: a table of series as read, what is held out of it, and its standardisation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float

from alps_ppl.model import numbers, output_names, short

# Of an output's largest cell, and one over it the smallest: sums of its squares are then numbers.
LARGEST = 1e150


@dataclass(frozen=True)
class Conversion:
    """From a table's times to a model's inputs, and from standardised outputs to the table's units.

    It is what a saved posterior keeps of its ``Data``. ``columns`` are the names of the inputs. Dates are ``step``
    ("hours" or "days") since ``origin``, durations are ``step``; both are None where times are numbers.
    """

    outputs: list[str]
    loc: Float[np.ndarray, " output"]
    scale: Float[np.ndarray, " output"]
    units: dict[str, str]
    input_label: str
    columns: list[str]
    origin: str | None = None
    step: str | None = None

    def to_inputs(self, times: Any) -> Float[np.ndarray, "time *column"]:
        """The model's inputs at times like those fitted: dates, durations or numbers, in any order.

        Raises a ValueError or TypeError for times of another kind, or that can't be read.
        """
        stamps = np.asarray(times)
        flat = stamps.reshape(-1)
        if self.step is None:
            return _finite(numbers("times", times), stamps, "times")
        if self.origin is None:
            try:
                hours = _hours(pd.to_timedelta(flat))
            except ValueError:
                raise TypeError(
                    f"times: expected durations, as those that were fitted, got {short(str(flat[0]))}"
                ) from None
        elif _are_dates(stamps):
            hours = _hours(_dates(flat, "times") - pd.Timestamp(self.origin))
        else:
            raise TypeError(f"times: expected dates, as those that were fitted, got {short(str(flat[0]))}")
        return _finite((hours / 24 if self.step == "days" else hours).reshape(stamps.shape), stamps, "times")

    def to_units(self, prediction: xr.Dataset) -> xr.Dataset:
        """A ``predict`` result for standardised outputs, in the table's units."""
        loc = xr.DataArray(self.loc, dims="output", coords={"output": self.outputs})
        scale = xr.DataArray(self.scale, dims="output", coords={"output": self.outputs})
        scaled = prediction * scale
        return scaled.assign({name: scaled[name] + loc for name in ("mean", "lower", "upper")}).assign_attrs(
            prediction.attrs
        )


class Data:
    """A table of series: rows are times, columns are outputs; what model files and the command line use.

    Parameters
    ----------
    inputs
        (time,) or (time, column) numbers, or dates: those become hours since the first one, or days where
        the median step is a day or more. Durations become hours or days by the same rule, from zero.
    y
        (time, output) as read, in the file's units, NaN for a missing cell.
    outputs
        The outputs' names; a DataFrame's columns if left out (and no others).
    held_out
        Cells that the fit must not see, by the split's name, as a boolean array (time,) or (time, output);
        no cell may be in two splits.
        The split "test" is the one in ``summary.json``.
    input_label, units
        For figures: the horizontal axis, and each output's unit.

    ``train_y`` is centred and scaled by each output's observed training mean ``loc`` and sd ``scale`` (1 for an
    output that is constant or has no training cell); ``train_inputs`` are the rows with at least one training cell.
    ``dates`` are the dates as passed, in the shape of ``inputs``; None if the inputs weren't dates. ``input_unit`` is
    "hours" or "days" where the inputs were dates or durations, None where they were plain numbers.
    """

    def __init__(
        self,
        inputs: Any,
        y: Any,
        *,
        outputs: Sequence[str] | None = None,
        held_out: Mapping[str, Any] | None = None,
        input_label: str | None = None,
        units: Mapping[str, str] | None = None,
    ):
        self.inputs, self.dates, label, self._origin, self.input_unit = _numeric_inputs(inputs)
        self.input_label = input_label or label
        self._columns = _column_names(inputs, self.inputs)
        self.y = _cells(y)
        if self.y.ndim == 1:
            self.y = self.y[:, None]
        if self.y.ndim != 2 or len(self.y) != len(self.inputs):
            raise ValueError(
                f"y: expected shape (time, output) with {len(self.inputs)} times, as in inputs of shape "
                f"{self.inputs.shape}, got {self.y.shape}; rows are times, columns are outputs"
            )
        num_outputs = self.y.shape[1]
        columns = [str(column) for column in getattr(y, "columns", range(1, num_outputs + 1))]
        self.outputs = list(columns if outputs is None else output_names(outputs))
        if len(self.outputs) != num_outputs or len(set(self.outputs)) < num_outputs:
            raise ValueError(f"outputs: expected {num_outputs} different names, got {self.outputs}")
        named = hasattr(y, "columns") and not isinstance(y.columns, pd.RangeIndex)
        if named and self.outputs != columns:
            raise ValueError(
                f"outputs: expected the columns of y in their order, {short(columns)}, got {short(self.outputs)}; "
                "leave outputs out, or pass y.to_numpy() to give the columns other names"
            )
        if np.isinf(self.y).any():
            row, column = np.argwhere(np.isinf(self.y))[0]
            raise ValueError(
                f"y: expected finite numbers or NaN (a missing cell), got {self.y[row, column]} in row {row}, "
                f"output {self.outputs[column]!r}"
            )
        _check_sizes(self.y, self.outputs)
        self.units = dict(units or {})
        self.split = _splits(held_out or {}, self.y.shape, self.outputs)

    @property
    def train(self) -> Bool[np.ndarray, "time output"]:
        """The observed cells that the fit sees."""
        return np.asarray((self.split == "train") & ~np.isnan(self.y))

    @property
    def train_rows(self) -> Bool[np.ndarray, " time"]:
        """The rows with at least one training cell."""
        rows = np.asarray(self.train.any(axis=1))
        if not rows.any():
            raise ValueError("y: no cell is observed outside the held-out splits; nothing to fit")
        return rows

    @property
    def loc(self) -> Float[np.ndarray, " output"]:
        """Each output's observed training mean, in its unit (0 where nothing is observed)."""
        count = self.train.sum(0)
        return np.where(self.train, self.y, 0.0).sum(0) / np.maximum(count, 1)

    @property
    def scale(self) -> Float[np.ndarray, " output"]:
        """Each output's observed training sd, in its unit (1 where that is zero)."""
        count = np.maximum(self.train.sum(0), 1)
        sd = np.sqrt((np.where(self.train, self.y - self.loc, 0.0) ** 2).sum(0) / count)
        round_off = 1e-12 * np.abs(self.loc)
        return np.where(sd > round_off, sd, 1.0)

    @property
    def standardised(self) -> Float[np.ndarray, "time output"]:
        """All of ``y``, held-out cells too, centred and scaled."""
        return (self.y - self.loc) / self.scale

    @property
    def train_inputs(self) -> np.ndarray:
        """The inputs of ``train_rows``."""
        return self.inputs[self.train_rows]

    @property
    def train_y(self) -> Float[np.ndarray, "time output"]:
        """The standardised training cells of ``train_rows``, NaN elsewhere."""
        return np.where(self.train, self.standardised, np.nan)[self.train_rows]

    @property
    def conversion(self) -> Conversion:
        """What predictions at other times need of this table: it is saved beside a posterior."""
        origin = None if self._origin is None else self._origin.isoformat()
        return Conversion(
            self.outputs, self.loc, self.scale, self.units, self.input_label, self._columns, origin, self.input_unit
        )

    def to_units(self, prediction: xr.Dataset) -> xr.Dataset:
        """A ``predict`` result for standardised outputs, in the file's units.

        Raises a ValueError unless its outputs are this table's.
        """
        outputs = [str(output) for output in prediction["output"].values]
        if outputs != self.outputs:  # xarray would keep what both have, none of them perhaps
            raise ValueError(
                f"prediction: expected this table's outputs, {short(self.outputs)}, got {short(outputs)}; "
                "give the model data.outputs"
            )
        return self.conversion.to_units(prediction)

    def __repr__(self):
        observed = ~np.isnan(self.y)
        splits = {str(name): int(observed[self.split == name].sum()) for name in np.unique(self.split)}
        return f"Data({len(self.inputs)} times, {len(self.outputs)} outputs, observed cells by split {splits})"


def _cells(y: Any) -> np.ndarray:
    """``y`` as numbers; of a DataFrame an error names the column."""
    try:
        return numbers("y", y)
    except TypeError:
        for name, column in y.items() if isinstance(y, pd.DataFrame) else ():
            try:
                numbers("y", column)
            except TypeError:
                wrong = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
                got = short((wrong if len(wrong) else column).iloc[0])
                raise TypeError(
                    f"y: expected numbers in column {str(name)!r}, got {got}; turn it into numbers or leave it out"
                ) from None
        raise


def _check_sizes(y: np.ndarray, outputs: Sequence[str]) -> None:
    """A ValueError where squares would overflow or underflow."""
    largest = np.where(np.isnan(y), 0.0, np.abs(y)).max(0, initial=0.0)
    for name, size in zip(outputs, largest, strict=True):
        if size > LARGEST or 0 < size < 1 / LARGEST:
            raise ValueError(
                f"y: expected values whose squares are numbers, got up to {size:.3g} in output {name!r}; rescale it, "
                f"e.g. divide it by {size:.0e}"
            )


def _numeric_inputs(inputs: Any):
    """The inputs as numbers, the dates if they were dates, their label, the first date, and "hours" or "days"."""
    label = str(getattr(inputs, "name", None) or "t")
    try:
        stamps = np.asarray(inputs)
    except ValueError:
        raise TypeError(f"inputs: expected as many columns in every row, got {short(inputs)}") from None
    if stamps.ndim not in (1, 2) or stamps.size == 0:
        raise ValueError(f"inputs: expected shape (time,) or (time, column), got {stamps.shape}")
    flat, dates, origin, step = stamps.reshape(-1), None, None, None
    if _are_dates(stamps):
        times = _dates(flat, "inputs")
        origin, dates = times.min(), stamps
        values, step = _hours_or_days(times - origin)
        label = f"{step} since {origin:%Y-%m-%d %H:%M}"
    elif pd.api.types.infer_dtype(flat) in ("timedelta", "timedelta64"):
        values, step = _hours_or_days(pd.to_timedelta(flat))
        label = step
    else:
        values = numbers("inputs", inputs)
    return _finite(values.reshape(stamps.shape), stamps, "inputs"), dates, label, origin, step


def _column_names(inputs: Any, values: np.ndarray) -> list[str]:
    """The inputs' own names; those of ``predictions.csv`` where several have none."""
    count = values.shape[1] if values.ndim == 2 else 1
    names = [str(c) for c in getattr(inputs, "columns", [getattr(inputs, "name", None) or "t"])]
    return names if len(names) == count else [f"input_{k}" for k in range(count)]


def _are_dates(stamps: np.ndarray) -> bool:
    flat = stamps.reshape(-1)
    kind = pd.api.types.infer_dtype(flat.astype(object) if stamps.dtype.kind in "UT" else flat)
    return kind in ("string", "date", "datetime", "datetime64")


def _no_date(cell: Any) -> bool:
    try:
        return bool(pd.isna(pd.to_datetime(cell, format="ISO8601", utc=True)))
    except (TypeError, ValueError):
        return True


def _dates(flat: np.ndarray, name: str) -> pd.DatetimeIndex:
    """Time zones: hours are hours."""
    try:
        return pd.to_datetime(flat, format=None if flat.dtype.kind == "M" else "ISO8601", utc=True)
    except (TypeError, ValueError):
        wrong = next((row for row, cell in enumerate(flat) if _no_date(cell)), 0)
        raise TypeError(
            f"{name}: expected numbers or ISO 8601 dates, got {short(str(flat[wrong]))} in row {wrong}"
        ) from None


def _finite(values: np.ndarray, stamps: np.ndarray, name: str) -> np.ndarray:
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise ValueError(f"{name}: expected a time in every row, got {stamps[row]} in row {row}; drop that row")
    return values


def _hours(durations: pd.TimedeltaIndex) -> np.ndarray:
    return np.asarray(durations / pd.Timedelta(hours=1))


def _hours_or_days(durations: pd.TimedeltaIndex) -> tuple[np.ndarray, str]:
    hours = _hours(durations)
    steps = np.diff(np.unique(hours[~np.isnan(hours)]))
    days = steps.size > 0 and np.median(steps) >= 24
    return (hours / 24, "days") if days else (hours, "hours")


def _splits(held_out: Mapping[str, Any], shape: tuple[int, int], outputs: Sequence[str]) -> np.ndarray:
    split = np.full(shape, "train", dtype=object)
    for name, cells in held_out.items():
        mask = np.asarray(cells)
        if name == "train" or mask.dtype != bool:
            raise ValueError(
                f"held_out[{name!r}]: expected a boolean array under another name than 'train', got {mask.dtype} values"
            )
        if mask.shape not in (shape[:1], shape):
            raise ValueError(
                f"held_out[{name!r}]: expected a boolean array of shape {shape[:1]} or {shape}, got {mask.shape}"
            )
        mask = np.broadcast_to(mask.reshape(len(mask), -1), shape)
        twice = mask & (split != "train")
        if twice.any():
            row, column = np.argwhere(twice)[0]
            raise ValueError(
                f"held_out[{name!r}]: expected splits that don't overlap, but row {row} of output {outputs[column]!r} "
                f"is in {split[row, column]!r} too; leave it out of one of them"
            )
        split[mask] = name
    return split.astype(str)
