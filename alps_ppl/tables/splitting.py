"""A table's last stretch, held out as a test, and the times ahead of its end, to predict."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool

from alps_ppl.tables.data import Data
from alps_ppl.tables.dates import read_times
from alps_ppl.tables.horizons import ahead, length_of, shifted


def split_table(
    table: pd.DataFrame,
    *,
    hold_out: str | float | None = None,
    forecast: str | float | None = None,
    time_unit: str | None = None,
    log: Sequence[str] = (),
) -> Data:
    """``Data`` of a table by time, its last stretch held out as "test" and times ahead of its end as "forecast".

    Parameters
    ----------
    table
        Outputs by time, as ``read_table`` gives them; its rows may be in any order.
    hold_out
        How much of the table's end to hold out: a duration such as "2d" in calendar time, a number in the unit of the
        times, or a share such as "10%" of the rows. None: nothing.
    forecast
        How far ahead of the table's end to predict: a duration or a number. The rows ahead are at the table's median
        step or in its rhythm (business days, months, hours of trade) up to there, and have no observed cell. None: no
        rows.
    time_unit
        The unit of times that are plain numbers, such as "years"; without it a duration is an error for them.
    log
        The outputs whose logarithm is modelled; see ``Data``.

    Raises a ValueError that names the argument.
    """
    table = table.sort_index(kind="stable")
    times, n = read_times(table.index), len(table)
    unit = times.unit or time_unit
    held_out = {}
    if hold_out is not None:
        test = last_rows("hold_out", hold_out, table.index, times.values, unit)
        if test.all() or not test.any():
            raise ValueError(
                f"hold_out: expected some of the {n} rows, but not all, got {hold_out!r}, {test.sum()} rows"
            )
        held_out["test"] = test
    if forecast is not None:
        stamps = ahead("forecast", forecast, table.index, times.values, unit)
        rows = pd.DataFrame(np.nan, index=stamps, columns=table.columns)
        held_out = {split: np.append(mask, np.zeros(len(rows), bool)) for split, mask in held_out.items()}
        held_out["forecast"] = np.arange(n + len(rows)) >= n
        table = pd.DataFrame(
            np.concatenate([table.to_numpy(), rows]), table.index.append(stamps), table.columns
        ).rename_axis(table.index.name)
    label = f"{table.index.name or 't'} [{time_unit}]" if time_unit and not times.unit else None
    return Data(table.index, table, held_out=held_out, input_label=label, log=log)


def last_rows(
    name: str, length: str | float, index: pd.Index, t: np.ndarray, unit: str | None
) -> Bool[np.ndarray, " time"]:
    """Which rows of a sorted table are within a length of its end; a ValueError that starts with ``name``.

    A length is ``split_table``'s ``hold_out``; ``t`` are the times as numbers in ``unit``.
    """
    share = re.fullmatch(r"\s*(\d+\.?\d*)\s?%\s*", str(length))
    if share:
        return np.arange(len(t)) >= (1 - float(share[1]) / 100) * len(t)
    in_units = length_of(name, length, unit)
    if isinstance(index, pd.DatetimeIndex) and in_units >= 0:
        return np.asarray(index > shifted(index, length, unit, -1))
    return t > t[-1] - in_units
