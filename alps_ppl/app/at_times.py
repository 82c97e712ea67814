"""``alps-ppl predict``: a saved posterior's predictions at the times of a table."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.app.outputs import cell_labels, moments
from alps_ppl.results.files import load, load_conversion
from alps_ppl.results.prediction import predict
from alps_ppl.tables.data import Conversion
from alps_ppl.tables.horizons import ahead


def predict_table(
    path: Path, table: pd.DataFrame | None, *, interval: float, horizon: str | None = None, wide: bool = False
) -> pd.DataFrame:
    """Predictions of a posterior that ``alps-ppl run`` wrote, in the units of the table that was fitted.

    The times are the only columns of ``table``, or those named as the ones that were fitted; without a table they are
    those that go on from the last fitted one up to ``horizon``. ``interval`` is the probability of lower to upper.
    ``wide``: a row per time, with columns such as "u mean", in the place of one per time and output. Raises a
    ValueError or TypeError for other times.
    """
    posterior, conversion = load(path), load_conversion(path)
    if conversion is None:
        raise ValueError(f"{path}: expected a file that alps-ppl run wrote, got one without the table's units")
    times = _ahead(posterior.inputs, conversion, str(horizon)) if table is None else _times(table, conversion)
    inputs = conversion.to_inputs(times)
    prediction = conversion.to_units(predict(posterior, inputs, interval=interval))
    cells = cell_labels(None if conversion.origin is None else times, inputs, conversion.outputs)
    frame = pd.DataFrame({**cells, **moments(prediction)})
    if not wide:
        return frame
    labels = [name for name in cells if name != "output"]
    by_time = [rows.drop(columns="output").reset_index(drop=True) for _, rows in frame.groupby("output", sort=False)]
    named = [
        rows.drop(columns=labels).add_prefix(f"{output} ")
        for output, rows in zip(conversion.outputs, by_time, strict=True)
    ]
    return pd.concat([by_time[0][labels], *named], axis=1)


def _ahead(inputs: Any, conversion: Conversion, horizon: str) -> np.ndarray:
    t = np.asarray(inputs, float)
    if t.ndim > 1:
        raise ValueError(
            f"horizon: expected a fit of one column of times, got one of {t.shape[1]}; give a table of times"
        )
    unit = conversion.step
    if conversion.origin is None:
        return np.asarray(ahead("horizon", horizon, pd.Index(np.sort(t)), t, unit))
    origin = pd.Timestamp(conversion.origin).tz_localize(None)  # UTC, or no zone at all
    index = pd.DatetimeIndex(origin + np.sort(t) * pd.Timedelta(1, unit)).round("us")
    stamps = pd.DatetimeIndex(ahead("horizon", horizon, index, t, unit))
    are_days = bool((stamps == stamps.normalize()).all())
    return np.array([f"{stamp:%Y-%m-%d}" if are_days else str(stamp) for stamp in stamps])


def _times(table: pd.DataFrame, conversion: Conversion) -> np.ndarray:
    wanted = conversion.columns
    names = [str(column).strip() for column in table.columns]
    named = set(wanted) <= set(names)
    if not named and len(names) != len(wanted):
        raise ValueError(f"expected a column for the times, {', '.join(wanted)}, got {', '.join(names)}")
    if not named and any(_is_time(name, conversion) for name in names):
        raise ValueError(f"expected a line with the columns' names first, e.g. {', '.join(wanted)}, got {names[0]}")
    table = table.set_axis(names, axis=1)
    times = (table[wanted] if named else table).to_numpy()
    return times[:, 0] if len(wanted) == 1 else times


def _is_time(name: str, conversion: Conversion) -> bool:
    """Whether a column's name is a time itself: the file has no header."""
    try:
        conversion.to_inputs(np.array([float(name) if conversion.step is None else name]))
    except (TypeError, ValueError):
        return False
    return True
