"""Where a line over times has to end: at an outage."""

from typing import Any

import numpy as np

# Steps of a table of weekdays are up to three times the shortest; of times at random, a quarter is longer than most.
LONG = 4.0


def with_gaps(time: Any, *values: Any) -> list[np.ndarray]:
    """Sorted times and what is drawn along them (time, ...), with a NaN in the middle of each gap, where lines end.

    A gap is a step that is more than four times as long as the 75 % quantile of all steps.
    """
    time = np.asarray(time)
    steps = np.diff(time)
    forward = steps[steps > steps.dtype.type(0)]
    long = LONG * np.quantile(forward.astype(float), 0.75, method="lower") if len(forward) else np.inf
    at = np.flatnonzero(steps.astype(float) > long) + 1
    middle = time[at - 1] + steps[at - 1] / 2
    return [np.insert(time, at, middle), *(np.insert(np.asarray(v, float), at, np.nan, axis=0) for v in values)]
