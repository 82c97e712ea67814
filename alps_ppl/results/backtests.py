"""What a backtest found: forecasts from several earlier ends of a table, and the gates at each."""

from typing import NamedTuple

import numpy as np
import pandas as pd

INTERVAL = 0.9
# Among the forecasts, that of the model.
OURS = "alps_ppl"


class Backtest(NamedTuple):
    """What ``backtest`` found.

    ``cells``: a row per origin, forecast and observed cell after it: ``origin`` is the last time that the fit saw,
    ``time``, ``output``, ``observed``, ``mean``, ``sd``, ``lower`` and ``upper`` (90 %) are in the table's units;
    ``error`` and ``nlpd`` in training sds, ``pit`` is the probability that the forecast gave to values up to the
    observed one. ``gates``: a row per origin and process, with its ``probability`` and ``r_hat``.
    """

    cells: pd.DataFrame
    gates: pd.DataFrame

    @property
    def scores(self) -> pd.DataFrame:
        """A row per forecast, the best first: rmse and nlpd (training sds), and what part its 50 and 90 % bands hold.

        ``lowest`` and ``highest`` are the smallest and the largest part that the 90 % band holds at one origin.
        """
        cells = self.cells.assign(
            half=(self.cells.pit - 0.5).abs() < 0.25, inside=(self.cells.pit - 0.5).abs() < INTERVAL / 2
        )
        by = cells.groupby("forecast", sort=False)
        of_origin = cells.groupby(["forecast", "origin"], sort=False).inside.mean().groupby("forecast", sort=False)
        table = pd.DataFrame(
            {
                "rmse": np.sqrt(by.error.apply(lambda error: (error**2).mean())),
                "nlpd": by.nlpd.mean(),
                "in 50 %": by.half.mean(),
                "in 90 %": by.inside.mean(),
                "lowest": of_origin.min(),
                "highest": of_origin.max(),
                "cells": by.size(),
            }
        )
        return table.sort_values("rmse")


def by_origin(gates: pd.DataFrame) -> pd.DataFrame:
    """The probability of each process, a row, at each origin, a column by its name; of ``Backtest.gates``."""
    wide = gates.pivot_table(index="process", columns="origin", values="probability", sort=False)
    return wide.rename(columns=lambda origin: f"{origin:g}" if isinstance(origin, float) else str(origin))
