"""A table's last stretch, held out as a test, and the times ahead of its end, to predict."""

import re
import warnings

import numpy as np
import pandas as pd

from alps_ppl.tables.data import Data
from alps_ppl.tables.dates import read_times
from alps_ppl.tables.durations import duration

MOST_AHEAD = 100_000


def split_table(
    table: pd.DataFrame,
    *,
    hold_out: str | float | None = None,
    forecast: str | float | None = None,
    time_unit: str | None = None,
) -> Data:
    """``Data`` of a table by time, its last stretch held out as "test" and times ahead of its end as "forecast".

    Parameters
    ----------
    table
        Outputs by time, as ``read_table`` gives them; its rows may be in any order.
    hold_out
        How much of the table's end to hold out: a duration such as "2d", a number in the unit of the times, or a share
        such as "10%" of the rows. None: nothing.
    forecast
        How far ahead of the table's end to predict: a duration or a number. The rows ahead are at the table's median
        step, or its calendar's (months, say), and have no observed cell. None: no rows.
    time_unit
        The unit of times that are plain numbers, such as "years"; without it a duration is an error for them.

    Raises a ValueError that names the argument.
    """
    table = table.sort_index(kind="stable")
    times, n = read_times(table.index), len(table)
    unit = times.unit or time_unit
    held_out = {}
    if hold_out is not None:
        test = _last(hold_out, times.values, unit)
        if test.all() or not test.any():
            raise ValueError(
                f"hold_out: expected some of the {n} rows, but not all, got {hold_out!r}, {test.sum()} rows"
            )
        held_out["test"] = test
    if forecast is not None:
        stamps = _ahead(forecast, table.index, times.values, unit)
        rows = pd.DataFrame(np.nan, index=stamps, columns=table.columns)
        held_out = {split: np.append(mask, np.zeros(len(rows), bool)) for split, mask in held_out.items()}
        held_out["forecast"] = np.arange(n + len(rows)) >= n
        table = pd.DataFrame(
            np.concatenate([table.to_numpy(), rows]), table.index.append(stamps), table.columns
        ).rename_axis(table.index.name)
    label = f"{table.index.name or 't'} [{time_unit}]" if time_unit and not times.unit else None
    return Data(table.index, table, held_out=held_out, input_label=label)


def _last(hold_out: str | float, t: np.ndarray, unit: str | None) -> np.ndarray:
    share = re.fullmatch(r"\s*(\d+\.?\d*)\s?%\s*", str(hold_out))
    if share:
        return np.arange(len(t)) >= (1 - float(share[1]) / 100) * len(t)
    return t > t[-1] - _length("hold_out", hold_out, unit)


def _ahead(forecast: str | float, index: pd.Index, t: np.ndarray, unit: str | None) -> pd.Index:
    """The stamps ahead of the last one, at the median step."""
    steps = np.diff(np.unique(t))
    if not len(steps):
        raise ValueError("forecast: expected at least two different times, whose step is that of the forecast")
    step = float(np.median(steps))
    length = _length("forecast", forecast, unit) / step
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


def _length(name: str, value: str | float, unit: str | None) -> float:
    try:
        return duration(value, unit)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
