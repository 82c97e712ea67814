"""``alps-ppl predict``: a saved posterior's predictions at the times of a table."""

from pathlib import Path

import numpy as np
import pandas as pd

from alps_ppl.app.outputs import cell_labels, moments
from alps_ppl.results.files import load, load_conversion
from alps_ppl.results.prediction import predict
from alps_ppl.tables.data import Conversion


def predict_table(path: Path, table: pd.DataFrame, *, interval: float) -> pd.DataFrame:
    """Predictions of a posterior that ``alps-ppl run`` wrote, in the units of the table that was fitted.

    The times are the only columns of ``table``, or those named as the ones that were fitted; ``interval`` is the
    probability of lower to upper. Raises a ValueError or TypeError for other times.
    """
    posterior, conversion = load(path), load_conversion(path)
    if conversion is None:
        raise ValueError(f"{path}: expected a file that alps-ppl run wrote, got one without the table's units")
    times = _times(table, conversion)
    inputs = conversion.to_inputs(times)
    prediction = conversion.to_units(predict(posterior, inputs, interval=interval))
    cells = cell_labels(None if conversion.origin is None else times, inputs, conversion.outputs)
    return pd.DataFrame({**cells, **moments(prediction)})


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
