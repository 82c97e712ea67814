"""``Data``: a table of series as read, what is held out of it, and its standardisation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float


class Data:
    """A table of series: rows are times, columns are outputs; what model files and the command line use.

    Parameters
    ----------
    inputs
        (time,) or (time, column) numbers, or dates: those become hours since the first one, or days where
        the median step is a day or more.
    y
        (time, output) as read, in the file's units, NaN for a missing cell.
    outputs
        The outputs' names; a DataFrame's columns if left out.
    held_out
        Cells that the fit must not see, by the split's name, as a boolean array (time,) or (time, output).
        The split "test" is the one in ``summary.json``.
    input_label, units
        For figures: the horizontal axis, and each output's unit.

    ``train_y`` is centred and scaled by each output's observed training mean ``loc`` and sd ``scale`` (1 for an
    output that is constant or has no training cell); ``train_inputs`` are the rows with at least one training cell.
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
        self.inputs, label = _numeric_inputs(inputs)
        self.input_label = input_label or label
        if outputs is None:
            outputs = getattr(y, "columns", None)
        try:
            self.y = np.array(np.ma.filled(y, np.nan) if isinstance(y, np.ma.MaskedArray) else y, float)
        except (TypeError, ValueError):
            raise TypeError(
                "y: expected a table of numbers, NaN where a cell is missing; some aren't numbers"
            ) from None
        if self.y.ndim == 1:
            self.y = self.y[:, None]
        if self.y.ndim != 2 or len(self.y) != len(self.inputs):
            raise ValueError(
                f"y: expected shape (time, output) with {len(self.inputs)} times, as in inputs of shape "
                f"{self.inputs.shape}, got {self.y.shape}; rows are times, columns are outputs"
            )
        num_outputs = self.y.shape[1]
        self.outputs = [str(o) for o in (range(1, num_outputs + 1) if outputs is None else outputs)]
        if len(self.outputs) != num_outputs or len(set(self.outputs)) < num_outputs:
            raise ValueError(f"outputs: expected {num_outputs} different names, got {self.outputs}")
        if np.isinf(self.y).any():
            row, column = np.argwhere(np.isinf(self.y))[0]
            raise ValueError(
                f"y: expected finite numbers or NaN (a missing cell), got {self.y[row, column]} in row {row}, "
                f"output {self.outputs[column]!r}"
            )
        self.units = dict(units or {})
        self.split = _splits(held_out or {}, self.y.shape)

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

    def to_units(self, prediction: xr.Dataset) -> xr.Dataset:
        """A ``predict`` result for standardised outputs, in the file's units."""
        loc = xr.DataArray(self.loc, dims="output", coords={"output": self.outputs})
        scale = xr.DataArray(self.scale, dims="output", coords={"output": self.outputs})
        scaled = prediction * scale
        return scaled.assign({name: scaled[name] + loc for name in ("mean", "lower", "upper")}).assign_attrs(
            prediction.attrs
        )

    def __repr__(self):
        splits = {str(name): int((self.split == name).sum()) for name in np.unique(self.split)}
        return f"Data({len(self.inputs)} times, {len(self.outputs)} outputs, cells by split {splits})"


def _numeric_inputs(inputs: Any) -> tuple[np.ndarray, str]:
    label = str(getattr(inputs, "name", None) or "t")
    values = np.asarray(inputs)
    if values.size and values.dtype.kind in "OUT":  # dates as text or as Python objects
        try:
            dates = pd.to_datetime(values.reshape(-1), format="ISO8601", utc=True)  # time zones: hours are hours
            values = np.asarray(dates.tz_localize(None)).reshape(values.shape)
        except (TypeError, ValueError):
            raise TypeError(f"inputs: expected numbers or ISO 8601 dates, got {str(values.flat[0])!r}") from None
    if values.dtype.kind == "M":
        first = values.min()
        hours = (values - first) / np.timedelta64(1, "h")
        steps = np.diff(np.unique(hours))
        days = steps.size > 0 and np.median(steps) >= 24
        unit = "days" if days else "hours"
        return hours / 24 if days else hours, f"{unit} since {pd.Timestamp(first):%Y-%m-%d %H:%M}"
    try:
        values = values.astype(float)
    except (TypeError, ValueError):
        raise TypeError(f"inputs: expected numbers or dates, got {values.dtype} values") from None
    if values.ndim not in (1, 2) or values.size == 0:
        raise ValueError(f"inputs: expected shape (time,) or (time, column), got {values.shape}")
    return values, label


def _splits(held_out: Mapping[str, Any], shape: tuple[int, int]) -> np.ndarray:
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
        split[mask if mask.ndim == 2 else np.broadcast_to(mask[:, None], shape)] = name
    return split.astype(str)
