"""Cells that stand out of their neighbours: spikes, which Gaussian noise can't say.

A spike of ten sds weighs as much as a hundred ordinary cells: it widens the bands of all others and hides processes.
"""

import numpy as np
import pandas as pd

# How many cells of an output, in the order of time, make the median that a cell is compared with, itself among them.
WINDOW = 9
# By so many robust sds of what is left over a spike stands out: of a million Gaussian cells none does.
LIMIT = 8.0
# From a median absolute deviation to the sd of a Gaussian.
ROBUST = 1.4826
# An output with more of them than this part has something else: seasons of storms, say, or rain.
MOST = 0.05
COLUMNS = ["time", "output", "value", "robust_sds"]


def spikes(table: pd.DataFrame) -> pd.DataFrame:
    """The spikes of a table by time: a row per cell with its time, output, value, and by how many robust sds it is off.

    A cell is compared with the median of nine neighbours of its output. The difference is taken in robust sds, from the
    median absolute deviation of all such differences or, where that is larger, of the steps from cell to cell: from
    eight of them a cell stands out. An output of which more than 5 % stands out, or whose deviation is 0, has none.
    """
    found = []
    for name in table.columns:
        column = table[name].dropna().sort_index(kind="stable")
        if len(column) < 3 * WINDOW:
            continue
        middle = column.rolling(WINDOW, center=True, min_periods=(WINDOW + 1) // 2).median()
        left = (column - middle).to_numpy()
        # On a slope a cell is its neighbours' median itself, and differences from it say too little of the noise.
        scale = max(_robust_sd(left), _robust_sd(np.diff(column)) / np.sqrt(2))
        off = np.abs(left) / scale if scale > 0 else np.zeros(len(left))
        if 0 < (off > LIMIT).mean() <= MOST:
            at = np.flatnonzero(off > LIMIT)
            found += [(column.index[k], name, float(column.iloc[k]), float(left[k] / scale)) for k in at]
    return pd.DataFrame(found, columns=COLUMNS)


def _robust_sd(values: np.ndarray) -> float:
    return float(ROBUST * np.median(np.abs(values - np.median(values))))


def without_spikes(table: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """The table with these cells missing."""
    kept = table.copy()
    for output, rows in cells.groupby("output", sort=False):
        cells_of = pd.MultiIndex.from_arrays([table.index, table[output]])
        kept.loc[cells_of.isin(list(zip(rows.time, rows.value, strict=True))), output] = np.nan
    kept.attrs = dict(table.attrs)
    return kept
