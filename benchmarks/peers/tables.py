"""The data: what a peer is given, and what only the parent knows."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

import alps_ppl as alps
from models import noisy_mixture, nyc_weather

DATA = Path(__file__).parents[2] / "models" / "data"


class Table(NamedTuple):
    """One table, standardised by its training cells.

    ``train_y`` (time, output) has NaN for a missing cell. ``dictionary`` says which processes are on offer, in JSON's
    types: ``periods``, ``memories`` (Matérn-1/2 lengthscales), ``white``, ``copies`` of each period, whether each
    output has a memory of its own, and the InverseGamma prior of the ``noise``. The parent keeps ``y`` (test time,
    output), NaN where a cell isn't held out, ``truth``, the noiseless y or y itself, and ``is_on``, the truth of each
    period's gate.
    """

    train_inputs: np.ndarray
    train_y: np.ndarray
    test_inputs: np.ndarray
    dictionary: dict
    y: np.ndarray
    truth: np.ndarray
    is_on: dict[float, bool]

    def write(self, path: Path):
        """What a peer may see, as ``.npz``."""
        arrays = {name: getattr(self, name) for name in ("train_inputs", "train_y", "test_inputs")}
        np.savez(path, dictionary=json.dumps(self.dictionary), **arrays)


def _table(data: alps.Data, dictionary: dict, on: tuple, truth: np.ndarray | None = None) -> Table:
    held = (data.split != "train") & ~np.isnan(data.y)
    rows, new = data.train.any(1), held.any(1)
    y = np.where(held, data.standardised, np.nan)[new]
    return Table(
        data.inputs[rows],
        np.where(data.train, data.standardised, np.nan)[rows],
        data.inputs[new],
        {"periods": [], "memories": [], "white": 0, "copies": 1, "own_memory": False} | dictionary,
        y,
        y if truth is None else ((truth - data.loc) / data.scale)[new],
        {period: period in on for period in dictionary["periods"]},
    )


def mixture(seed: int) -> Table:
    """The paper's noisy mixture, of which the last 50 of 200 times are held out."""
    data = noisy_mixture.data(seed)
    dictionary = {"periods": list(noisy_mixture.OFFERED.values()), "noise": (2.0, 0.2)}
    return _table(data, dictionary, noisy_mixture.TRUE_PERIODS, noisy_mixture.simulate(seed)["f"])


def weather(seed: int) -> Table:
    """New York's weather with the model file's splits: six days of everything, a day of one output; one data set."""
    dictionary = {
        "periods": list(nyc_weather.PERIODS.values()),
        "memories": list(nyc_weather.MEMORIES),
        "white": 2,
        "copies": 2,
        "own_memory": True,
        "noise": (1.0, 0.2),
    }
    return _table(nyc_weather.data(), dictionary, (24.0, 12.0))


def currencies(seed: int) -> Table:
    """Ten monthly exchange rates, the last tenth held out; cycles that nobody expects, two of them decoys."""
    table = alps.read_table(DATA / "fed_fx_monthly_1994_2010.csv", time="date")
    dictionary = {
        "periods": [365.25, 182.625, 240.0, 130.0],
        "memories": [3652.5, 365.25],
        "copies": 2,
        "own_memory": True,
        "noise": (1.0, 0.2),
    }
    return _table(alps.split_table(table, hold_out="10%"), dictionary, ())


TABLES = {"noisy mixture": mixture, "New York": weather, "currencies": currencies}
