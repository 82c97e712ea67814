"""Prophetverse, an output at a time: its default trend and engine (NUTS), and a Fourier term for each cycle.

It takes no missing cells: they are interpolated. The sd is that of its 90 % band's normal.
"""

import numpy as np
import pandas as pd
from prophetverse.effects.fourier import LinearFourierSeasonality
from prophetverse.sktime import Prophetverse
from scipy.stats import norm


def fit(train_inputs, train_y, test_inputs, dictionary):
    """Means and sds of y."""
    step = np.median(np.diff(train_inputs))
    day = pd.Period("2000-01-01", freq="D")
    index, new = (pd.PeriodIndex([day + round(t / step) for t in ts]) for ts in (train_inputs, test_inputs))
    periods = list(np.unique(dictionary["periods"]) / step)
    means, sds = [], []
    for column in train_y.T:
        y = pd.Series(column, index).interpolate(limit_direction="both").resample("D").interpolate()
        seasons = LinearFourierSeasonality(sp_list=periods, fourier_terms_list=[1] * len(periods), freq="D")
        model = Prophetverse(exogenous_effects=[("seasonality", seasons, None)])
        model.fit(y=y.to_frame("y"))
        means.append(model.predict(fh=new)["y"])
        band = model.predict_interval(fh=new, coverage=0.9)
        sds.append((band.iloc[:, 1] - band.iloc[:, 0]) / (2 * norm.isf(0.05)))
    return np.stack(means, 1), np.stack(sds, 1)
