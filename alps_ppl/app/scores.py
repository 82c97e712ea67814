"""How well every observed cell was met: squared errors and log densities, of the fits and of other predictions."""

import numpy as np
import pandas as pd
from scipy.stats import norm

from alps_ppl.app.baselines import as_prediction, simple_forecasts
from alps_ppl.app.errors import BadInput
from alps_ppl.app.problem import Outcome, Problem
from alps_ppl.tables.data import Data


def of_fits(outcome: Outcome) -> pd.DataFrame:
    """A row per engine and observed cell; see ``of_cells``."""
    data = outcome.problem.data
    frames = [
        of_cells(
            data,
            engine,
            fitted.prediction["mean"].to_numpy(),
            fitted.log_density,
            data.to_units(fitted.prediction)["mean"].to_numpy(),
        )
        for engine, fitted in outcome.fitted.items()
    ]
    return pd.concat(frames, ignore_index=True)


def of_baselines(problem: Problem) -> list[pd.DataFrame]:
    """A table per baseline; see ``of_cells``. Raises BadInput for one of another shape.

    They are the model file's, in the outputs' units, and the simple forecasts of whatever is held out. Where an output
    is modelled by its logarithm, a baseline's density is that of the log-normal of its mean and sd.
    """
    data, frames = problem.data, []
    pairs = simple_forecasts(data, problem.model)
    for name, pair in (problem.baselines() if problem.baselines else {}).items():
        try:
            mean, sd = (np.broadcast_to(np.asarray(values, float), data.y.shape) for values in pair)
        except (TypeError, ValueError) as error:
            raise BadInput(f"baselines(): {name!r}: expected (mean, sd), {data.y.shape} each: {error}") from error
        pairs[name] = _standardised(data, mean, sd)
    for name, (mean, sd) in pairs.items():
        in_units = data.to_units(as_prediction(data, mean, sd, 0.9))["mean"].to_numpy()
        frames.append(of_cells(data, name, mean, norm.logpdf(data.standardised, mean, sd), in_units))
    return frames


def _standardised(data: Data, mean: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    log = np.isin(data.outputs, data.log)
    if (log & ~(mean > 0)).any():
        raise BadInput(f"baselines(): expected positive means of {', '.join(data.log)}, whose logarithm is modelled")
    variance = np.log1p((sd / np.where(log, mean, 1.0)) ** 2)  # the log-normal's of this mean and sd
    mean = np.where(log, np.log(np.where(log, mean, 1.0)) - variance / 2, mean)
    return (mean - data.loc) / data.scale, np.where(log, np.sqrt(variance), sd) / data.scale


def of_cells(
    data: Data, engine: str, mean: np.ndarray, log_density: np.ndarray, mean_in_units: np.ndarray
) -> pd.DataFrame:
    """Per observed cell the squared error and minus the log density in training sds, and both in the file's units.

    ``mean`` and ``log_density`` (time, output) are of standardised outputs.
    """
    row, column = np.nonzero(~np.isnan(data.y))
    log = np.isin(data.outputs, data.log)
    # A density in the file's units is divided by what a training sd is there: of a logarithm, the value times it.
    in_units = np.log(data.scale * np.where(log, np.where(log, data.y, 1.0), 1.0)) - log_density
    return pd.DataFrame(
        {
            "engine": engine,
            "split": data.split[row, column],
            "output": np.array(data.outputs)[column],
            "squared_error": (data.standardised - mean)[row, column] ** 2,
            "nlpd": -log_density[row, column],
            "squared_error_in_units": (data.y - mean_in_units)[row, column] ** 2,
            "nlpd_in_units": in_units[row, column],
        }
    )


def by_split(data: Data, cells: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """{split: {engine: {rmse, nlpd}}}, in training sds; NaN where a split has no observed cell."""
    averaged = _averaged(cells, ["split", "engine"])
    splits = dict.fromkeys(map(str, data.split.ravel()))
    averaged = averaged.reindex(pd.MultiIndex.from_product([splits, cells.engine.unique()]))
    return {split: averaged.loc[split].to_dict("index") for split in splits}


def by_output(data: Data, cells: pd.DataFrame) -> pd.DataFrame:
    """Per engine, split and output the rmse and nlpd in the file's units."""
    in_units = cells.assign(squared_error=cells.squared_error_in_units, nlpd=cells.nlpd_in_units)
    table = _averaged(in_units, ["engine", "split", "output"])
    table["unit"] = [data.units.get(o, "as in the file") for o in table.index.get_level_values("output")]
    return table.reset_index()


def _averaged(cells: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    table = cells.groupby(by, sort=False)[["squared_error", "nlpd"]].mean()
    table.insert(0, "rmse", np.sqrt(table.pop("squared_error")))
    return table


def lost(cells: pd.DataFrame, smaller: pd.DataFrame) -> pd.DataFrame:
    """Per engine and split, the mean log density per cell that a smaller model has less, over the same cells."""
    parts = []
    for engine in smaller.engine.unique():
        before, after = (frame[frame.engine == engine] for frame in (cells, smaller))
        parts.append(after[["engine", "split"]].assign(lost=after.nlpd.to_numpy() - before.nlpd.to_numpy()))
    found = pd.concat(parts).groupby(["engine", "split"], sort=False).lost.agg(lost="mean", se="sem").reset_index()
    held_out = found[found.split != "train"]
    return found if held_out.empty else held_out
