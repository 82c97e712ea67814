"""Cells that stand out of their neighbours: spikes, which Gaussian noise can't say.

A spike of ten sds weighs as much as a hundred ordinary cells: it widens the bands of all others and hides processes.
"""

import numpy as np
import pandas as pd

# How many cells of an output, in the order of time, make the median that a cell is compared with, itself among them.
WINDOW = 9
# So many robust sds from where its neighbours point a cell stands out: of a million Gaussian cells none does.
LIMIT = 8.0
# With more steps of 0 than the first part values are rounded, and a sd is a usual step at least; with more than the
# second they are held, or it rains now and then.
OFTEN, MOSTLY = 0.25, 0.5
# So many usual steps take a sd's place then.
STEPS_OF_A_SD = 125.0
# From a median absolute deviation to the sd of a Gaussian.
ROBUST = 1.4826
# An output with more of them than this part has something else: seasons of storms, say, or rain.
MOST = 0.05
# Of so many spikes at least, whose gaps are multiples of one gap in so large a part, they are a process: a pulse a day.
FEWEST_IN_STEP, PART_IN_STEP = 4, 0.75
COLUMNS = ["time", "output", "value", "robust_sds"]


def spikes(table: pd.DataFrame) -> pd.DataFrame:
    """The spikes of a table by time: a row per cell with its time, output, value, and by how many robust sds it is off.

    A cell is compared with where its neighbours point: the middle of the two that are k cells before and after, k from
    one to four, and on either side the next one and the line through the next two. The differences have a robust sd
    each, from their median absolute deviation. A cell stands out that is eight of them off, and off the median of its
    nine neighbours by three quarters as much: a step, or a spike beside it, makes no spike. Of an output without
    negative cells it stands out of their logarithms, too, a usual step added: swings may grow with the level.

    An output of which more than 5 % stands out has none, nor has one whose spikes come in step.
    """
    found = []
    for name in table.columns:
        column = table[name].dropna().sort_index(kind="stable")
        if len(column) < 3 * WINDOW:
            continue
        off = _off(column)
        stands_out = np.abs(off) > LIMIT
        if (column >= 0).all() and stands_out.any():
            stands_out &= np.abs(_off(np.log(column + _usual_step(column)), steps_of_a_sd=1.0)) > LIMIT
        at = np.flatnonzero(stands_out)
        if len(at) <= MOST * len(column) and not _come_in_step(at):
            found += [(column.index[k], name, float(column.iloc[k]), float(off[k])) for k in at]
    return pd.DataFrame(found, columns=COLUMNS)


def _off(column: pd.Series, steps_of_a_sd: float = STEPS_OF_A_SD) -> np.ndarray:
    """By how many robust sds each cell stands out, 0 where its neighbours' median doesn't bear it out."""
    left = (column - column.rolling(WINDOW, center=True, min_periods=(WINDOW + 1) // 2).median()).to_numpy()
    shifted = {k: column.shift(k) for k in range(-(WINDOW // 2), WINDOW // 2 + 1)}
    pointed = [0.5 * (shifted[k] + shifted[-k]) for k in range(1, WINDOW // 2 + 1)]
    pointed += [where for k in (-1, 1) for where in (shifted[k], 2 * shifted[k] - shifted[2 * k])]
    step, ties = _usual_step(column), (np.diff(column) == 0).mean()
    off = np.zeros(len(column))
    for where in pointed:
        difference = (column - where).fillna(0.0).to_numpy()
        borne_out = (np.abs(left) >= 0.75 * np.abs(difference)) & (np.sign(left) == np.sign(difference))
        sd = _robust_sd(difference)
        if ties > MOSTLY or sd < 1e-9 * step:
            sd = steps_of_a_sd * step
        elif ties > OFTEN:
            sd = max(sd, step)
        sds = np.where(borne_out, difference / sd, 0.0)
        off = np.where(np.abs(sds) > np.abs(off), sds, off)
    return off


def _usual_step(column: pd.Series) -> float:
    """The median size of the steps from cell to cell that aren't 0."""
    steps = np.abs(np.diff(column))
    return float(np.median(steps[steps > 0])) if steps.any() else np.inf


def _robust_sd(values: np.ndarray) -> float:
    return float(ROBUST * np.median(np.abs(values - np.median(values))))


def _come_in_step(at: np.ndarray) -> bool:
    """Whether most gaps between the spikes, but those within a run, are multiples of one that half of them are."""
    gaps = np.diff(at)
    gaps = gaps[gaps > WINDOW // 2]
    if len(gaps) < FEWEST_IN_STEP - 1:
        return False
    usual = np.bincount(gaps).argmax()
    return bool((gaps == usual).mean() >= 0.5 and (gaps % usual == 0).mean() >= PART_IN_STEP)


def without_spikes(table: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """The table with these cells missing."""
    kept = table.copy()
    for output, rows in cells.groupby("output", sort=False):
        cells_of = pd.MultiIndex.from_arrays([table.index, table[output]])
        kept.loc[cells_of.isin(list(zip(rows.time, rows.value, strict=True))), output] = np.nan
    kept.attrs = dict(table.attrs)
    return kept
