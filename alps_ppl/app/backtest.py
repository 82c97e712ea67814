"""Rolling origins: what a model would have forecast from earlier ends of a table, and how its gates move."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Array
from scipy.stats import norm
from tqdm.auto import tqdm

from alps_ppl import checks
from alps_ppl.app.baselines import as_prediction, other_forecasts, simple_forecasts
from alps_ppl.app.run import fingerprint, versions
from alps_ppl.checkpoints import replacing
from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.model.alps import ALPS
from alps_ppl.results.backtests import INTERVAL, OURS, Backtest
from alps_ppl.results.inclusion import inclusion_table
from alps_ppl.results.prediction import cdf, log_density, predictive, summarise
from alps_ppl.tables.data import Data
from alps_ppl.tables.dates import read_times
from alps_ppl.tables.spikes import spikes, without_spikes
from alps_ppl.tables.splitting import last_rows

# Fewer rows before the first origin say nothing.
FEWEST_ROWS = 10
Model = ALPS | Callable[[Data], ALPS]


class Window(NamedTuple):
    """Rows before an origin, and those up to the end of what is forecast from it."""

    train: int
    end: int


def backtest(
    table: pd.DataFrame,
    model: Model,
    horizon: str | float,
    *,
    rng_key: Array,
    origins: int = 8,
    time_unit: str | None = None,
    log: Sequence[str] = (),
    drop_spikes: bool = False,
    others: bool = True,
    folder: str | Path | None = None,
    progress_bar: bool = True,
    **settings: Any,
) -> Backtest:
    """Fit a model by Gibbs sampling up to each of several origins, and score its forecasts of what comes next.

    The last origin's forecast ends with the table, and each one before ends where the next begins. All fits are of one
    shape, cells after an origin being missing, so that the sampler compiles once. Beside the model stand the simple
    forecasts, the last value and the value a cycle before, and where statsforecast is installed its AutoARIMA and
    AutoETS, of one output at a time.

    Parameters
    ----------
    table
        Outputs by time, as ``read_table`` gives them.
    model
        An ``ALPS``, or a function that makes one of the ``Data`` before the first origin: a model file's ``model``.
    horizon
        A duration such as "2d" in calendar time, a number in the unit of the times, or a share of the rows.
    rng_key
        A JAX key.
    origins
        How many.
    time_unit, log
        As in ``split_table``.
    drop_spikes
        Whether cells that stand out of their neighbours, as far as an origin's fit sees them, are missing in it. All
        that is observed is scored.
    others
        Whether to fit statsforecast's models where they are installed.
    folder
        Where every origin's result is kept; a run that was killed goes on from there.
    progress_bar
        Whether to show one, over the origins.
    settings
        Of ``fit_gibbs``: num_warmup, num_samples, num_chains, ...

    Raises a ValueError or TypeError for bad input before the first fit, or where the table is too short.
    """
    checks.whole_number("origins", origins)
    checks.prng_key(rng_key)
    checks.instance("table", table, pd.DataFrame, "a pandas.DataFrame of outputs by time, as read_table gives it")
    if not (isinstance(model, ALPS) or callable(model)):
        raise TypeError(f"model: expected an alps_ppl.ALPS, or a function that makes one, got {checks.short(model)}")
    log = [log] if isinstance(log, str) else list(log)
    table = table.sort_index(kind="stable")
    table.attrs = {}  # pandas compares them, and those of read_table are tables themselves
    found = windows(table, horizon, origins, time_unit)
    first = _data(table, found[0], log, drop_spikes)
    built = model if isinstance(model, ALPS) else model(first)
    checks.instance("model", built, ALPS, "an alps_ppl.ALPS, or a function that makes one")
    if list(built.outputs) != first.outputs:
        raise ValueError(f"model: expected the table's outputs {first.outputs}, got {list(built.outputs)}")
    kept = settings | {"others": others, "log": log, "drop_spikes": drop_spikes}
    identity = fingerprint(built, first.inputs, table.to_numpy(float), kept, rng_key, versions())
    parts = []
    for k, window in enumerate(tqdm(found, desc="Origins", disable=not progress_bar, unit="fit")):
        path = None if folder is None else Path(folder) / f"origin_{k + 1}_of_{origins}.json"
        part = None if path is None else _kept(path, identity, window)
        if part is None:
            key = jax.random.fold_in(rng_key, k)
            data = _data(table, window, log, drop_spikes)
            so_far = _data(table.iloc[: window.end], window, log, drop_spikes)
            part = _one(data, so_far, window, built, key, others, settings)
            if path is not None:
                _keep(path, identity, window, part)
        parts.append(part)
    return Backtest(*(pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True)))


def windows(table: pd.DataFrame, horizon: str | float, origins: int, time_unit: str | None = None) -> list[Window]:
    """The rows of each origin's fit and forecast, of a sorted table, the earliest first."""
    found: list[Window] = []
    rest = table
    while len(found) < origins:
        times = read_times(rest.index)
        test = last_rows("horizon", horizon, rest.index, times.values, times.unit or time_unit)
        train = len(rest) - int(test.sum())
        if not found and (not test.any() or train < FEWEST_ROWS):
            raise ValueError(
                f"horizon: expected a part of the table's {len(table)} rows that leaves {FEWEST_ROWS} before it, got "
                f"{horizon!r}, {int(test.sum())} rows"
            )
        if train < FEWEST_ROWS or not test.any():
            raise ValueError(
                f"origins: expected at most {len(found)} of a horizon of {horizon!r}, with {FEWEST_ROWS} rows before "
                f"the first, in a table of {len(table)} rows, got {origins}"
            )
        found.append(Window(train, len(rest)))
        rest = rest.iloc[:train]
    return found[::-1]


def _data(table: pd.DataFrame, window: Window, log: list[str], drop_spikes: bool) -> Data:
    if drop_spikes:
        past = table.iloc[: window.train]
        table = pd.concat([without_spikes(past, spikes(past)), table.iloc[window.train :]])
    row = np.arange(len(table))
    held_out = {"test": (row >= window.train) & (row < window.end), "later": row >= window.end}
    return Data(table.index, table, held_out=held_out, log=log)


def _one(
    data: Data, so_far: Data, window: Window, model: ALPS, rng_key: Array, others: bool, settings: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Cells and gates of one origin; ``so_far`` are the rows up to what is forecast."""
    rows = slice(window.train, window.end)
    y = np.where(data.train, data.standardised, np.nan)
    fit = fit_gibbs(model, data.inputs, y, rng_key=rng_key, progress_bar=False, **settings)
    observed, draws = data.standardised[rows], predictive(fit, data.inputs[rows])
    ours = summarise(draws, interval=INTERVAL), -log_density(draws, observed), cdf(draws, observed)
    found = {OURS: ours}
    forecasts = simple_forecasts(so_far, model) | (other_forecasts(so_far, model) if others else {})
    for name, (mean, sd) in forecasts.items():
        mean, sd = mean[rows], sd[rows]
        prediction = as_prediction(data, mean, sd, INTERVAL)
        found[name] = prediction, -norm.logpdf(observed, mean, sd), norm.cdf(observed, mean, sd)
    frames = [_cells(data, rows, name, *forecast) for name, forecast in found.items()]
    of_gates = inclusion_table({"gibbs": fit})
    gates = pd.DataFrame({"process": of_gates.latent, "probability": of_gates.probability, "r_hat": of_gates.r_hat})
    parts = pd.concat(frames, ignore_index=True), gates
    for frame in parts:
        frame.insert(0, "origin", _times(data)[window.train - 1])
    return parts


def _times(data: Data) -> np.ndarray:
    return data.inputs if data.dates is None else np.asarray(pd.Index(data.dates).astype(str))


def _cells(data: Data, rows: slice, name: str, prediction: xr.Dataset, nlpd: Any, pit: Any) -> pd.DataFrame:
    """A row per observed cell of ``rows``, from a prediction of standardised outputs there."""
    row, column = np.nonzero(~np.isnan(data.y[rows]) & data.train.any(0))  # without a past there is no scale
    in_units = data.to_units(prediction)
    error = data.standardised[rows] - prediction["mean"].to_numpy()
    return pd.DataFrame(
        {
            "forecast": name,
            "time": _times(data)[rows][row],
            "output": np.array(data.outputs)[column],
            "observed": data.y[rows][row, column],
            **{part: in_units[part].to_numpy()[row, column] for part in ("mean", "sd", "lower", "upper")},
            "error": error[row, column],
            "nlpd": nlpd[row, column],
            "pit": pit[row, column],
        }
    )


def _kept(path: Path, identity: str, window: Window) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """What an earlier run left of this origin, if it was the same run."""
    try:
        kept = json.loads(path.read_text())
        if kept["identity"] != [identity, *window]:
            return None
        return pd.DataFrame(kept["cells"]), pd.DataFrame(kept["gates"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(path: Path, identity: str, window: Window, parts: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells, gates = (frame.to_dict("list") for frame in parts)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"identity": [identity, *window], "cells": cells, "gates": gates}))
