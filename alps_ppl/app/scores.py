"""How well every observed cell was met: squared errors and log densities, of the fits and of other predictions."""

import numpy as np
import pandas as pd
from scipy.stats import norm

from alps_ppl.app.baselines import simple_forecasts
from alps_ppl.app.errors import BadInput
from alps_ppl.app.problem import Outcome, Problem
from alps_ppl.tables.data import Data


def of_fits(outcome: Outcome) -> pd.DataFrame:
    """A row per engine and observed cell; see ``of_cells``."""
    data = outcome.problem.data
    frames = [
        of_cells(data, engine, fitted.prediction["mean"].to_numpy(), fitted.log_density)
        for engine, fitted in outcome.fitted.items()
    ]
    return pd.concat(frames, ignore_index=True)


def of_baselines(problem: Problem) -> list[pd.DataFrame]:
    """A table per baseline; see ``of_cells``. Raises BadInput for one of another shape.

    They are the model file's, and the simple forecasts of whatever is held out.
    """
    data, frames = problem.data, []
    given = problem.baselines() if problem.baselines else {}
    for name, pair in (simple_forecasts(data, problem.model) | dict(given)).items():
        try:
            mean, sd = (np.broadcast_to(np.asarray(values, float), data.y.shape) for values in pair)
        except (TypeError, ValueError) as error:
            raise BadInput(f"baselines(): {name!r}: expected (mean, sd), {data.y.shape} each: {error}") from error
        mean, sd = (mean - data.loc) / data.scale, sd / data.scale
        frames.append(of_cells(data, name, mean, norm.logpdf(data.standardised, mean, sd)))
    return frames


def of_cells(data: Data, engine: str, mean: np.ndarray, log_density: np.ndarray) -> pd.DataFrame:
    """Per observed cell the squared error and minus the log density in training sds; ``scale`` is that sd.

    ``mean`` and ``log_density`` (time, output) are of standardised outputs.
    """
    row, column = np.nonzero(~np.isnan(data.y))
    return pd.DataFrame(
        {
            "engine": engine,
            "split": data.split[row, column],
            "output": np.array(data.outputs)[column],
            "squared_error": (data.standardised - mean)[row, column] ** 2,
            "nlpd": -log_density[row, column],
            "scale": data.scale[column],
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
    # Errors times the training sd, densities divided by it.
    in_units = cells.assign(squared_error=cells.squared_error * cells.scale**2, nlpd=cells.nlpd + np.log(cells.scale))
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
