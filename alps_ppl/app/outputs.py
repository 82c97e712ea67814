"""What a run writes to ``--out`` besides the posteriors: tables, ``summary.json`` and figures."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl.app import figures, scores
from alps_ppl.app.problem import Fitted, Outcome
from alps_ppl.app.report.run_folder import BACKTEST, BACKTEST_FIGURES
from alps_ppl.results.cycles import cycles
from alps_ppl.results.engines import compare_engines, largest_differences
from alps_ppl.results.fits import OF_A_FAMILY
from alps_ppl.results.inclusion import log_joint_r_hat, worst_convergence
from alps_ppl.results.innovations import innovation_checks, suspicious
from alps_ppl.results.outliers import LIGHT, cell_weights
from alps_ppl.results.scales import interchangeable, scales
from alps_ppl.results.shares import variance_shares
from alps_ppl.tables.data import Data

TABLES = ("inclusion.csv", "predictions.csv", "scores.csv", "comparison.csv", "variance_shares.csv", "cycles.csv")
# Only where the model has what they are of.
SOME_TABLES = ("scales.csv", "interchangeable.csv", "outliers.csv", "innovations.csv")
POSTERIORS = ("posterior_svi.nc", "posterior_vb.nc", "posterior_gibbs.nc")
FILES = (*TABLES, *SOME_TABLES, *BACKTEST, *POSTERIORS, "summary.json", "report.html")


def clear(out: Path) -> None:
    """Remove what an earlier run wrote into the folder: what is there must be of one run."""
    for name in (*FILES, *(f"figures/{figure}.png" for figure in (*figures.NAMES, *BACKTEST_FIGURES))):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "pruned", ignore_errors=True)


def write(outcome: Outcome, cells: pd.DataFrame, about: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write the tables, ``summary.json`` and the figures of an outcome; returns the summary.

    ``cells`` are the scores of every observed cell, the baselines' too. ``about``: how it was made, the versions among
    that, for the summary. ``out`` has a folder ``figures``.
    """
    data, predictions = outcome.problem.data, outcome.predictions
    outcome.table[["latent", "engine", "probability", "mcse", "prior"]].to_csv(out / "inclusion.csv", index=False)
    frames = [prediction_frame(data, engine, prediction) for engine, prediction in predictions.items()]
    pd.concat(frames).to_csv(out / "predictions.csv", index=False)
    scores.by_output(data, cells).to_csv(out / "scores.csv", index=False)
    variance_shares(outcome.trees).to_csv(out / "variance_shares.csv", index=False)
    cycles(outcome.trees).to_csv(out / "cycles.csv", index=False)
    light = _light_cells(outcome)
    standing_out = outcome.problem.spikes if light is None else light
    left = innovation_checks(outcome.fitted["gibbs"].fit) if "gibbs" in outcome.fitted else None
    some = scales(outcome.trees), interchangeable(outcome.trees), standing_out, left
    for name, table in zip(SOME_TABLES, some, strict=True):
        if table is not None and len(table):
            table.to_csv(out / name, index=False)
    summary, comparison = _summary(outcome, cells, about), None
    if light is not None:
        summary["data"]["light_cells"] = len(light)
    if left is not None:
        summary["gibbs"]["suspicious_innovations"] = suspicious(left).to_dict("records")
    if len(outcome.fitted) == 2:
        comparison = compare_engines(outcome.trees, predictions)
        comparison.to_csv(out / "comparison.csv", index=False)
        summary["largest_differences"] = largest_differences(comparison)
    (out / "summary.json").write_text(json.dumps(_plain(summary), indent=2, default=str) + "\n")
    figures.draw(outcome, comparison, out / "figures")
    return summary


def _light_cells(outcome: Outcome) -> pd.DataFrame | None:
    """The cells of little weight in the file's units, where noise is Student's and Gibbs was run."""
    if outcome.problem.model.tails is None or "gibbs" not in outcome.fitted:
        return None
    data = outcome.problem.data
    weights = np.full(data.y.shape, np.nan)
    weights[data.train_rows] = cell_weights(outcome.fitted["gibbs"].fit)
    times = cell_labels(data.dates, data.inputs, data.outputs)
    cells = pd.DataFrame(times | {"value": data.y.ravel(), "weight": weights.ravel()})
    return cells[cells.weight < LIGHT].sort_values("weight", kind="stable")


def prediction_frame(data: Data, engine: str, prediction: xr.Dataset) -> pd.DataFrame:
    """A row per cell, in the file's units, of ``predict``'s result for standardised outputs at all of the inputs."""
    cells = cell_labels(data.dates, data.inputs, data.outputs) | {"engine": engine, "observed": data.y.ravel()}
    return pd.DataFrame({"split": data.split.ravel(), **cells, **moments(data.to_units(prediction))})


def cell_labels(dates: Any, inputs: np.ndarray, outputs: list[str]) -> dict[str, np.ndarray]:
    """The times and the output of each cell, row by row; ``dates`` and ``inputs`` (time,) or (time, column)."""
    found: dict[str, np.ndarray] = {}
    for name, values in (("date", dates), ("input", inputs)):
        if values is not None:
            by_column = np.asarray(values).reshape(len(values), -1).T
            names = [name] if len(by_column) == 1 else [f"{name}_{k}" for k in range(len(by_column))]
            found |= {key: np.repeat(column, len(outputs)) for key, column in zip(names, by_column, strict=True)}
    return found | {"output": np.tile(outputs, len(inputs))}


def moments(prediction: xr.Dataset) -> dict[str, np.ndarray]:
    """Mean, sd and band of each cell, row by row."""
    return {name: prediction[name].to_numpy().ravel() for name in ("mean", "sd", "lower", "upper")}


def _summary(outcome: Outcome, cells: pd.DataFrame, about: dict[str, Any]) -> dict[str, Any]:
    problem, data = outcome.problem, outcome.problem.data
    by_split = scores.by_split(data, cells)
    interval = next(iter(outcome.predictions.values())).attrs["interval"]
    summary: dict[str, Any] = {"seed": outcome.seed, "model_file": problem.name, **about}
    summary["data"] = {"input_label": data.input_label, "units": data.units, "interval": interval}
    if problem.spikes is not None and len(problem.spikes):
        summary["data"]["spikes"] = len(problem.spikes)
        summary["data"]["spikes_are_missing"] = problem.spikes_are_missing
    summary["settings"] = {engine: problem.settings(engine) for engine in outcome.fitted}
    for engine, fitted in outcome.fitted.items():
        summary[engine] = {"seconds": round(fitted.seconds, 2)}
        summary[engine] |= {"learnt": outcome.learnt} if engine == "svi" and outcome.learnt else {}
        summary[engine] |= _diagnostics(engine, fitted, outcome.table)
        summary[engine] |= by_split.get("test", {}).get(engine, {"rmse": None, "nlpd": None})
    summary["scores_unit"] = "rmse: training sds of each output; nlpd: nats per cell, outputs in training sds"
    return summary | {"scores": by_split}


def _diagnostics(engine: str, fitted: Fitted, table: pd.DataFrame) -> dict[str, float]:
    if engine in OF_A_FAMILY:
        return {"elbo": fitted.fit.elbo}
    max_rhat, min_ess = worst_convergence(table, engine)
    alone = fitted.tree["posterior"].sizes["chain"] == 1  # nothing to compare it with
    return {"max_rhat": max_rhat, "min_ess": min_ess, "lp_rhat": np.nan if alone else log_joint_r_hat(fitted.tree)}


def _plain(value: Any) -> Any:
    """NaN has no place in JSON: null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
