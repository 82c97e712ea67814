"""``Data``: a table of series as read, what is held out of it, and its standardisation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float

from alps_ppl.checks import by_time, finite_or_missing, numbers, output_names, short
from alps_ppl.tables.dates import numbers_since, read_times

# Of an output's largest value, and one over it the smallest: sums of its squares are then numbers.
LARGEST = 1e150


@dataclass(frozen=True)
class Conversion:
    """From a table's times to a model's inputs, and from standardised outputs to the table's units.

    It is what a file keeps of the ``Data`` beside a posterior.

    Parameters
    ----------
    outputs
        The outputs' names.
    loc, scale
        (output,) each output's observed training mean and sd, in its unit, or of its logarithm.
    units
        The unit of each output that has one.
    input_label
        What the inputs are, for figures.
    columns
        The names of the inputs' columns.
    origin
        The date from which inputs are counted, as ISO 8601 text; None where times weren't dates.
    step
        What they are counted in, "hours" or "days"; None where times are plain numbers.
    log
        The outputs that are modelled by their logarithm.
    """

    outputs: list[str]
    loc: Float[np.ndarray, " output"]
    scale: Float[np.ndarray, " output"]
    units: dict[str, str]
    input_label: str
    columns: list[str]
    origin: str | None = None
    step: str | None = None
    log: Sequence[str] = ()

    def to_inputs(self, times: Any) -> Float[np.ndarray, "time *column"]:
        """The model's inputs at times like those fitted: dates, durations or numbers, in any order.

        Raises a ValueError or TypeError for times of another kind, or that can't be read.
        """
        return numbers_since(times, self.origin, self.step)

    def to_units(self, prediction: xr.Dataset) -> xr.Dataset:
        """A ``predict`` result for standardised outputs, in the table's units.

        Where the logarithm is modelled, the mean and sd are those of a log-normal of the predicted mean and sd of the
        logarithm.

        Raises a ValueError unless its outputs are this table's.
        """
        outputs = [str(output) for output in prediction["output"].values]
        if outputs != self.outputs:  # xarray would keep what both have, none of them perhaps
            raise ValueError(
                f"prediction: expected this table's outputs, {short(self.outputs)}, got {short(outputs)}; "
                "give the model data.outputs"
            )
        coords = {"output": self.outputs}
        scaled = (prediction * xr.DataArray(self.scale, coords, ["output"])).assign_attrs(prediction.attrs)
        loc = xr.DataArray(self.loc, coords, ["output"])
        shifted = scaled.assign({name: scaled[name] + loc for name in ("mean", "lower", "upper")})
        if not self.log:
            return shifted
        log = xr.DataArray(np.isin(self.outputs, self.log), coords, ["output"])
        exp = np.exp(shifted.where(log, 0.0))  # of no number that isn't a logarithm
        variance = np.where(log, shifted["sd"], 0.0) ** 2
        mean = exp["mean"] * np.exp(variance / 2)
        found = {"mean": mean, "sd": mean * np.sqrt(np.expm1(variance)), "lower": exp["lower"], "upper": exp["upper"]}
        return shifted.assign({name: values.where(log, shifted[name]) for name, values in found.items()})


class Data:
    """A table of series: rows are times, columns are outputs. What model files and the command line use.

    Parameters
    ----------
    inputs
        (time,) or (time, column): numbers, dates or durations. Dates become hours since the first one, or days where
        the median step is a day or more. Durations become hours or days by the same rule, from zero.
    y
        (time, output) as read, in the outputs' units, NaN for a missing cell.
    outputs
        The outputs' names; a DataFrame's columns if left out (and no others).
    held_out
        Cells that the fit must not see, by the split's name: boolean arrays (time,) or (time, output). No cell may be
        in two splits. The split "test" is the one in ``summary.json``.
    input_label, units
        For figures: the horizontal axis, and each output's unit.
    log
        The outputs whose logarithm is modelled; their cells must be positive. ``loc``, ``scale`` and ``standardised``
        are then of the logarithm, and predictions come back in the outputs' units.

    Raises a ValueError or TypeError that names the argument, and the row and the output where it is one cell.

    ``inputs``, ``y``, ``outputs``, ``units`` and ``input_label`` are as above. ``split`` (time, output) says where each
    cell belongs: "train" or a name in ``held_out``. ``dates`` are the dates as passed, None if there were none.
    ``input_unit`` is "hours" or "days" where the inputs were dates or durations, None where they were plain numbers.
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
        log: Sequence[str] = (),
    ):
        times = read_times(inputs)
        self.inputs, self.dates, self.input_unit, self._origin = times.values, times.dates, times.unit, times.origin
        self.input_label = input_label or times.label
        self._columns = _column_names(inputs, self.inputs)
        _refuse_transposed(y)
        self.y = by_time("y", _cells(y), self.inputs)
        self.outputs = _names(y, self.y.shape[1], outputs)
        _check_sizes(self.y, self.outputs)
        self.units = dict(units or {})
        self.split = _splits(held_out or {}, self.y.shape, self.outputs)
        self.log = list(log)
        self._modelled = _logarithms(self.y, self.outputs, self.log)

    @cached_property
    def train(self) -> Bool[np.ndarray, "time output"]:
        """The observed cells that the fit sees."""
        return np.asarray((self.split == "train") & ~np.isnan(self.y))

    @cached_property
    def train_rows(self) -> Bool[np.ndarray, " time"]:
        """The rows with at least one training cell; a ValueError if there is none."""
        rows = np.asarray(self.train.any(axis=1))
        if not rows.any():
            raise ValueError("y: no cell is observed outside the held-out splits; nothing to fit")
        return rows

    @cached_property
    def loc(self) -> Float[np.ndarray, " output"]:
        """Each output's observed training mean, in its unit or of its logarithm (0 where nothing is observed)."""
        return np.where(self.train, self._modelled, 0.0).sum(0) / np.maximum(self.train.sum(0), 1)

    @cached_property
    def scale(self) -> Float[np.ndarray, " output"]:
        """Each output's observed training sd, in its unit (1 where that is zero, or no cell is observed)."""
        squares = np.where(self.train, self._modelled - self.loc, 0.0) ** 2
        sd = np.sqrt(squares.sum(0) / np.maximum(self.train.sum(0), 1))
        round_off = 1e-12 * np.abs(self.loc)
        return np.where(sd > round_off, sd, 1.0)

    @cached_property
    def standardised(self) -> Float[np.ndarray, "time output"]:
        """All of ``y`` or its logarithm, held-out cells too, centred by ``loc`` and divided by ``scale``."""
        return (self._modelled - self.loc) / self.scale

    @cached_property
    def train_inputs(self) -> Float[np.ndarray, "time *column"]:
        """The inputs of ``train_rows``."""
        return self.inputs[self.train_rows]

    @cached_property
    def train_y(self) -> Float[np.ndarray, "time output"]:
        """The standardised training cells of ``train_rows``, NaN elsewhere."""
        return np.where(self.train, self.standardised, np.nan)[self.train_rows]

    @cached_property
    def conversion(self) -> Conversion:
        """What predictions at other times need of this table: it is saved beside a posterior."""
        origin = None if self._origin is None else self._origin.isoformat()
        return Conversion(
            self.outputs,
            self.loc,
            self.scale,
            self.units,
            self.input_label,
            self._columns,
            origin,
            self.input_unit,
            self.log,
        )

    def to_units(self, prediction: xr.Dataset) -> xr.Dataset:
        """``conversion.to_units``: a ``predict`` result for standardised outputs, in the table's units."""
        return self.conversion.to_units(prediction)

    def __repr__(self):
        observed = ~np.isnan(self.y)
        splits = {str(name): int(observed[self.split == name].sum()) for name in np.unique(self.split)}
        return f"Data({len(self.inputs)} times, {len(self.outputs)} outputs, observed cells by split {splits})"


def _refuse_transposed(y: Any) -> None:
    """A table whose columns are dates is one of rows by output; where both are as many, nothing else would tell."""
    columns = getattr(y, "columns", None)
    if isinstance(columns, (pd.DatetimeIndex, pd.PeriodIndex)):
        raise ValueError(f"y: its columns are dates, {short(str(columns[0]))} first; pass y.T, rows being times")


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


def _names(y: Any, count: int, outputs: Sequence[str] | None) -> list[str]:
    columns = [str(column) for column in getattr(y, "columns", range(1, count + 1))]
    names = list(output_names(columns if outputs is None else outputs))
    if len(names) != count:
        raise ValueError(f"outputs: expected {count} names, as y has columns, got {short(names)}")
    if hasattr(y, "columns") and not isinstance(y.columns, pd.RangeIndex) and names != columns:
        raise ValueError(
            f"outputs: expected the columns of y in their order, {short(columns)}, got {short(names)}; "
            "leave outputs out, or pass y.to_numpy() to give the columns other names"
        )
    return names


def _check_sizes(y: np.ndarray, outputs: Sequence[str]) -> None:
    finite_or_missing(y, outputs)
    largest = np.where(np.isnan(y), 0.0, np.abs(y)).max(0, initial=0.0)
    for name, size in zip(outputs, largest, strict=True):
        if size > LARGEST or 0 < size < 1 / LARGEST:
            raise ValueError(
                f"y: expected values whose squares are numbers, got up to {size:.3g} in output {name!r}; rescale it, "
                f"e.g. divide it by {size:.0e}"
            )


def _logarithms(y: np.ndarray, outputs: Sequence[str], log: Sequence[str]) -> np.ndarray:
    """``y`` with the logarithms of some outputs in their place."""
    if unknown := [name for name in log if name not in outputs]:
        raise ValueError(f"log: expected some of the outputs {short(list(outputs))}, got {short(unknown[0])}")
    chosen = np.isin(outputs, log)
    wrong = (y <= 0) & chosen
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"log: expected positive values in output {outputs[column]!r}, whose logarithm is modelled, got "
            f"{y[row, column]:g} in row {row}; leave it out of log"
        )
    return np.where(chosen, np.log(np.where(chosen, y, 1.0)), y)


def _column_names(inputs: Any, values: np.ndarray) -> list[str]:
    """The inputs' own names; those of ``predictions.csv`` where several have none."""
    count = values.shape[1] if values.ndim == 2 else 1
    names = [str(c) for c in getattr(inputs, "columns", [getattr(inputs, "name", None) or "t"])]
    return names if len(names) == count else [f"input_{k}" for k in range(count)]


def _splits(held_out: Mapping[str, Any], shape: tuple[int, int], outputs: Sequence[str]) -> np.ndarray:
    split = np.full(shape, "train", dtype=object)
    for name, cells in held_out.items():
        mask = np.asarray(cells)
        if name == "train" or mask.dtype != bool or mask.shape not in (shape[:1], shape):
            raise ValueError(
                f"held_out[{name!r}]: expected a boolean array of shape {shape[:1]} or {shape} under another name than "
                f"'train', got {mask.dtype} values of shape {mask.shape}"
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
