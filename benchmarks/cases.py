"""Problems for the samplers: many outputs with duplicate latents, thirteen inputs, and latents that can stand in."""

from pathlib import Path

import numpy as np
import pandas as pd
from tinygp import kernels

import alps_ppl as alps

BOSTON = Path(__file__).parents[1] / "models" / "data" / "boston_housing.csv"


def noisy_mixture() -> tuple[alps.ALPS, np.ndarray, np.ndarray]:
    """Paper, 4.2: three periods of nine, two of them offered twice, in nine outputs; noise on the latents."""
    rng = np.random.default_rng(0)
    t = np.arange(150.0)
    phase = rng.uniform(0, 2 * np.pi, 3)
    x = np.sqrt(2) * np.sin(2 * np.pi * t[:, None] / [7, 17, 23] + phase) + 0.5 * rng.normal(size=(150, 3))
    H = np.concatenate([np.eye(3), rng.normal(size=(6, 3))])
    periods = {"3": 3, "7a": 7, "7b": 7, "11": 11, "13": 13, "17": 17, "19": 19, "23a": 23, "23b": 23}
    covariances = {f"T={name}": alps.linear_periodic(period) for name, period in periods.items()}
    return alps.ALPS(covariances, 9, noise_variance=0.25), t, x @ H.T


def boston() -> tuple[alps.ALPS, np.ndarray, np.ndarray]:
    """Paper, 4.3: a latent for each of thirteen standardised columns, 404 rows, one output."""
    table = pd.read_csv(BOSTON)
    rows = np.random.default_rng(0).permutation(len(table))[:404]
    table = (table - table.iloc[rows].mean()) / table.iloc[rows].std(ddof=0)
    columns = table.columns.drop("medv")
    covariances = {name: alps.on_column(kernels.ExpSquared(scale=1.0), k) for k, name in enumerate(columns)}
    model = alps.ALPS(covariances, noise_variance=0.2)
    return model, table[columns].to_numpy()[rows], table[["medv"]].to_numpy()[rows]


def stand_ins() -> tuple[alps.ALPS, np.ndarray, np.ndarray]:
    """One output, forty times, eight flexible covariances of nearby lengthscales and periods."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 8, 40)
    covariances = {f"lengthscale {scale}": kernels.ExpSquared(scale=scale) for scale in (0.5, 1.0, 2.0, 4.0)}
    periods = (1.0, 1.4, 2.0, 3.0)
    covariances |= {f"period {T}": kernels.ExpSineSquared(scale=T, gamma=2.0) for T in periods}
    K = np.asarray(covariances["lengthscale 1.0"](t, t) + covariances["period 2.0"](t, t))
    y = np.linalg.cholesky(K + 1e-8 * np.eye(40)) @ rng.normal(size=40) + 0.2 * rng.normal(size=40)
    return alps.ALPS(covariances, noise_variance=0.04), t, y[:, None]


CASES = {"noisy mixture": noisy_mixture, "Boston": boston, "stand-ins": stand_ins}
