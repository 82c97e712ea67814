"""The folder that ``alps-ppl run`` wrote, read back."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import xarray as xr

from alps_ppl.app.errors import BadInput
from alps_ppl.results.files import conversion_of
from alps_ppl.tables.data import Conversion

KEYS = ("model_file", "versions", "settings", "scores")
# An output may be called "NA" or "1", a date be a year.
TEXT = dict.fromkeys(("output", "split", "engine", "unit", "date"), str)


# What ``alps-ppl backtest`` writes: scores, gates, cells.
BACKTEST = ("backtest_scores.csv", "backtest_gates.csv", "backtest_cells.csv")

BACKTEST_FIGURES = ("backtest_gates", "backtest_calibration", "backtest_forecasts")


class RunFolder(NamedTuple):
    """What a run found. ``name``: the model file's, or the folder's where that file is one of ``alps-ppl fit``.

    ``trees`` are by engine, opened but not read. ``backtest`` has the tables of a backtest, if there was one.
    """

    name: str
    summary: dict[str, Any]
    predictions: pd.DataFrame
    scores: pd.DataFrame
    trees: dict[str, xr.DataTree]
    conversion: Conversion | None = None
    backtest: list[pd.DataFrame] | None = None

    @property
    def interval(self) -> float:
        """The probability of a band."""
        return self.summary.get("data", {}).get("interval", 0.9)


def read(folder: Path) -> RunFolder:
    """The files of a run. Raises BadInput with what is missing or can't be read."""
    if not folder.is_dir():
        raise BadInput(f"DIR: expected a folder that alps-ppl run wrote, got {str(folder)!r}, which isn't a folder")
    summary = _read(folder / "summary.json", lambda path: json.loads(path.read_text(encoding="utf-8")))
    lacking = [key for key in KEYS if not isinstance(summary, dict) or not summary.get(key)]
    if lacking:
        raise BadInput(f"{folder / 'summary.json'}: expected a run's summary, but it has no {', no '.join(lacking)}")
    stem = Path(str(summary["model_file"])).stem
    open_tree = partial(xr.open_datatree, engine="h5netcdf")
    trees = {engine: _read(folder / f"posterior_{engine}.nc", open_tree) for engine in summary["settings"]}
    return RunFolder(
        folder.resolve().name if stem == "model" else stem,
        summary,
        _table(folder / "predictions.csv", ("split", "output", "engine", "observed", "mean", "lower", "upper")),
        _table(folder / "scores.csv", ("engine", "split", "output", "rmse", "unit")),
        trees,
        next((found for tree in trees.values() if (found := conversion_of(tree))), None),
        [pd.read_csv(folder / name) for name in BACKTEST] if (folder / BACKTEST[0]).is_file() else None,
    )


def _table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    numbers = {name: [""] for name in ("observed", "rmse", "nlpd")}  # elsewhere an empty cell or "NA" is a text
    table = _read(path, lambda path: pd.read_csv(path, dtype=TEXT, keep_default_na=False, na_values=numbers))
    missing = [name for name in columns if name not in table]
    if missing or len(table) == 0:
        raise BadInput(f"{path}: expected rows of {', '.join(columns)}, got {len(table)} of {', '.join(table)}")
    return table


def _read(path: Path, how: Callable[[Path], Any]) -> Any:
    if not path.is_file():
        raise BadInput(
            f"DIR: expected a folder that alps-ppl run wrote, but {str(path.parent)!r} has no {path.name}; run the "
            "model file again, to the end"
        )
    try:
        return how(path)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: can't be read: {type(error).__name__}: {error}") from error
