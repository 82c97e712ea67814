"""Hourly weather at three New York airports, July 2013: which cycles and which memory are behind 15 series?

The file (``models/data/README.md``) has 744 hours of temperature, dew point, humidity, wind and pressure at
EWR, JFK and LGA; 2.6 % of its cells are missing, and stay missing. Held out: the last 144 hours of everything
("test", a forecast) and one day of JFK's temperature in the middle ("gap").

On offer are a 24 h and a 12 h cycle, and two decoys of 17 h and 31 h that no weather has. Each has two copies, so that
every series has its own amplitude and peak time. Four memories of 200, 96, 24 and 8 hours and two white noises are for
what the airports share, and a memory of its own is for what a series does alone. The noise is learnt. A dictionary
short of memories gives their work to a decoy: with two, none of a series' own and little noise, the 31 h cycle is on.

Outputs are standardised by their training mean and sd, so that H has prior variance 1. The memories have full rank on
600 hours but a Markov form, so that a Gibbs sweep takes some 60 ms a chain.
"""

import warnings
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, StationaryKernelMixin, WhiteKernel
from tinygp import kernels

import alps_ppl as alps

FILE = Path(__file__).parent / "data" / "nyc_weather_2013_07.csv"
UNITS = {"temp": "°F", "dewp": "°F", "humid": "%", "wind_speed": "mph", "pressure": "hPa"}
PERIODS = {"24 h": 24.0, "12 h": 12.0, "17 h (decoy)": 17.0, "31 h (decoy)": 31.0}
MEMORIES = (200.0, 96.0, 24.0, 8.0)  # hours
FORECAST_HOURS = 144
GAP_OUTPUT, GAP_HOURS = "temp_jfk", slice(288, 312)


def data() -> alps.Data:
    """The table, with the last six days and one day of one output held out."""
    table = pd.read_csv(FILE)
    y = table.drop(columns=["date", "t"])
    forecast = np.arange(len(y)) >= len(y) - FORECAST_HOURS
    gap = np.zeros(y.shape, bool)
    gap[GAP_HOURS, y.columns.get_loc(GAP_OUTPUT)] = True
    return alps.Data(
        table["date"],
        y,
        held_out={"test": forecast, "gap": gap},
        units={name: UNITS[name.rsplit("_", 1)[0]] for name in y.columns},
    )


def model(data: alps.Data) -> alps.ALPS:
    """Four cycles, two of them decoys, four Matern-1/2 processes and two white ones; and each output's own memory."""
    cycles = {name: alps.linear_periodic(period) for name, period in PERIODS.items()}
    memories = {f"memory {scale:g} h": kernels.Exp(scale=scale) for scale in MEMORIES}
    noises = {f"shared noise {n}": alps.white() for n in (1, 2)}
    return alps.ALPS(
        cycles | memories | noises,
        data.outputs,
        copies=dict.fromkeys(cycles, 2),
        private_memory=alps.private_memory(data.train_inputs),
        noise_variance=dist.InverseGamma(1.0, 0.2),
    )


SVI = {"num_inducing": 60, "num_steps": 4_000, "learning_rate": 0.01}
GIBBS = {"num_warmup": 500, "num_samples": 700, "num_chains": 2}


class Cosine(StationaryKernelMixin, Kernel):
    """The linear-periodic covariance for scikit-learn, of a fixed period."""

    def __init__(self, period: float = 1.0):
        self.period = period

    def __call__(self, X, Y=None, eval_gradient=False):
        """The Gram matrix, and an empty gradient: nothing here is learnt."""
        K = np.cos(2 * np.pi * (X - (X if Y is None else Y).T) / self.period)
        return (K, np.empty((*K.shape, 0))) if eval_gradient else K

    def diag(self, X):
        """The variances."""
        return np.ones(len(X))


def baselines(data: alps.Data) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean and sd, in the file's units: the training mean, the hour-of-day mean, a GP per output."""
    train = np.where(data.train, data.y, np.nan)
    mean = np.broadcast_to(np.nanmean(train, axis=0), train.shape)
    sd = np.broadcast_to(np.nanstd(train, axis=0), train.shape)

    hour = data.inputs.astype(int) % 24
    by_hour = pd.DataFrame(train).groupby(hour).mean().to_numpy()[hour]
    by_hour_sd = np.broadcast_to(np.nanstd(train - by_hour, axis=0), train.shape)

    return {"training mean": (mean, sd), "hour-of-day mean": (by_hour, by_hour_sd), "GP per output": _gps(data)}


def _gps(data: alps.Data) -> tuple[np.ndarray, np.ndarray]:
    """Scikit-learn's GP for each output: the cycles and two memories; variances and noise of highest likelihood."""
    memories = [Matern(scale, length_scale_bounds="fixed", nu=0.5) for scale in (96.0, 12.0)]
    shapes = [*memories, *(Cosine(period) for period in PERIODS.values())]
    first, *others = (ConstantKernel(0.3, (1e-6, 1e2)) * shape for shape in shapes)
    covariance = sum(others, start=first) + WhiteKernel(0.1, (1e-4, 1e1))
    t = data.inputs[:, None]
    mean, sd = np.empty(data.y.shape), np.empty(data.y.shape)
    for i in range(len(data.outputs)):
        seen = data.train[:, i]
        with warnings.catch_warnings():
            # A variance at its lower bound: the likelihood drops that covariance, as it should a decoy.
            warnings.simplefilter("ignore", ConvergenceWarning)
            gp = GaussianProcessRegressor(covariance).fit(t[seen], data.standardised[seen, i])
        mean[:, i], sd[:, i] = gp.predict(t, return_std=True)
    return data.loc + data.scale * mean, data.scale * sd
