"""Forecasts to score a fit beside: the last value, the value a cycle before, and those of statsforecast."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float
from scipy.stats import norm

from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import period_of
from alps_ppl.tables.data import Data
from alps_ppl.tables.durations import period_name
from alps_ppl.tables.proposals import is_decoy

# A cycle before is looked for within this part of it.
NEAR = 0.05
# Fewer steps a cycle aren't one to look back on.
FEWEST_STEPS = 2
# A season of more rows takes statsforecast minutes.
MOST_SEASON = 24


def simple_forecasts(data: Data, model: ALPS) -> dict[str, tuple[Float[np.ndarray, "time output"], np.ndarray]]:
    """(mean, sd) of every cell by name, of standardised outputs; nothing where no observed cell is held out.

    "the last value" is an output's last one that was fitted before a cell; "24 h before", for the shortest and the
    longest period that the model names, the last fitted one a whole number of cycles before. The sd is that of the same
    forecast's errors on the training cells, one step or cycle ahead. Where there is no value to look back on, mean and
    sd are those of all training cells.
    """
    held_out = (data.split != "train") & ~np.isnan(data.y)
    if data.inputs.ndim > 1 or not held_out.any():
        return {}
    t, steps = data.inputs, np.diff(np.unique(data.inputs))
    found = {"the last value": _forecast(data, 0.0)}
    periods = named_periods(model)
    usable = [p for p in periods if p >= FEWEST_STEPS * np.median(steps) and p <= np.ptp(t[data.train_rows]) / 2]
    for period in dict.fromkeys([*usable[:1], *usable[-1:]]):
        found[f"{period_name(period, data.input_unit)} before"] = _forecast(data, period)
    return found


def as_prediction(data: Data, mean: np.ndarray, sd: np.ndarray, interval: float) -> xr.Dataset:
    """A (mean, sd) of ``simple_forecasts`` with a normal's band, as ``predict`` gives them."""
    half = norm.isf((1 - interval) / 2) * sd
    values = {"mean": mean, "sd": sd, "lower": mean - half, "upper": mean + half}
    return xr.Dataset({k: (("time", "output"), v) for k, v in values.items()}, {"output": data.outputs})


def named_periods(model: ALPS) -> list[float]:
    """The known periods of the model's cycles, without those of decoys, which nobody suspects."""
    named = {
        name: period_of(covariance)
        for name, covariance in zip(model.copy_of, model.covariances, strict=True)
        if name not in model.unknown_scales and not is_decoy(name)
    }
    return sorted({period for period in named.values() if period})


def other_forecasts(data: Data, model: ALPS) -> dict[str, tuple[Float[np.ndarray, "time output"], np.ndarray]]:
    """``simple_forecasts``'s (mean, sd) of AutoARIMA and AutoETS at the rows after the last that was fitted.

    Nothing where statsforecast isn't installed. The season is the shortest period that the model names, in rows, up to
    24 of them. They take no missing cells, so theirs are interpolated.
    """
    if find_spec("statsforecast") is None:
        return {}
    from statsforecast.models import AutoARIMA, AutoETS

    rows = np.flatnonzero(data.train_rows)
    ahead = np.arange(rows[-1] + 1, len(data.inputs))
    season = round(min(named_periods(model), default=0) / np.median(np.diff(np.unique(data.inputs))))
    season = season if 2 <= season <= MOST_SEASON else 1
    found = {}
    for kind in (AutoARIMA, AutoETS):
        mean, sd = np.zeros(data.y.shape), np.ones(data.y.shape)
        for i in range(len(data.outputs)):
            y = pd.Series(np.where(data.train[:, i], data.standardised[:, i], np.nan)[: rows[-1] + 1])
            y = y.interpolate().loc[y.first_valid_index() :].to_numpy()
            if len(y) and len(ahead):
                mean[ahead, i], sd[ahead, i] = statsforecast(kind(season_length=season), y, len(ahead))
        found[kind.__name__] = mean, sd
    return found


def statsforecast(model: Any, y: np.ndarray, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds of a model of statsforecast, ``horizon`` steps after y; the sds from its 90 % band, a normal's."""
    found = model.forecast(y, horizon, level=[90])
    sd = (np.asarray(found["hi-90"]) - np.asarray(found["lo-90"])) / (2 * norm.isf(0.05))
    return np.asarray(found["mean"]), np.maximum(sd, 1e-6)


def _forecast(data: Data, period: float) -> tuple[np.ndarray, np.ndarray]:
    mean, sd = np.zeros(data.y.shape), np.ones(data.y.shape)
    for i in range(len(data.outputs)):
        seen = data.train[:, i]
        order = np.argsort(data.inputs[seen], kind="stable")
        t, y = data.inputs[seen][order], data.standardised[seen, i][order]
        if not len(t):
            continue
        place = _place(t, data.inputs, period)
        mean[:, i] = np.where(place >= 0, y[place], 0.0)
        before = _place(t, t, period)
        errors = (y - y[before])[before >= 0]
        if len(errors) > 1 and errors.std() > 0:
            sd[place >= 0, i] = errors.std()
    return mean, sd


def _place(t: np.ndarray, times: np.ndarray, period: float) -> np.ndarray:
    """Which of the sorted ``t`` each time looks back on, -1 for none."""
    if period == 0:
        return np.searchsorted(t, times, side="left") - 1
    cycles = np.maximum(1, np.ceil((times - t[-1]) / period - NEAR))
    target = times - cycles * period
    after = np.minimum(np.searchsorted(t, target), len(t) - 1)
    before = np.maximum(after - 1, 0)
    near = np.where(np.abs(t[before] - target) <= np.abs(t[after] - target), before, after)
    return np.where(np.abs(t[near] - target) <= NEAR * period, near, -1)
