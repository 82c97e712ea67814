"""``many``: a thousand tables of 200 rows, ten outputs and eight cycles, by ``fit_many`` in a process for each core."""

from time import perf_counter

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd

import alps_ppl as alps
from benchmarks.timing import progress, show

TABLES, ROWS, OUTPUTS = 1_000, 200, 10
PERIODS = (5.0, 8.0, 12.0, 17.0, 24.0, 31.0, 47.0, 168.0)


def model(data):
    """What the workers import."""
    latents = {f"{period:g} h": alps.linear_periodic(period) for period in PERIODS}
    return alps.ALPS(latents, data.outputs, noise_variance=dist.InverseGamma(2.0, 0.2))


def table(seed):
    """The daily cycle in four of five tables, noise, and two cells of a hundred missing."""
    rng = np.random.default_rng(seed)
    t = np.arange(float(ROWS))
    wave = np.sin(2 * np.pi * t / 24 + rng.uniform(0, 6))[:, None] * rng.normal(size=OUTPUTS)
    y = (seed % 5 > 0) * wave + rng.normal(size=(ROWS, OUTPUTS))
    y[rng.uniform(size=y.shape) < 0.02] = np.nan
    return pd.DataFrame(y, t, [f"y{i}" for i in range(OUTPUTS)])


def run():
    """Seconds of all, their workers' start and compilation with them; and what they found."""
    tables = {f"table {seed}": table(seed) for seed in range(TABLES)}
    progress(f"{TABLES} tables")
    begin = perf_counter()
    found = alps.fit_many(tables, model, rng_key=jax.random.key(0), progress_bar=False)
    seconds = perf_counter() - begin
    is_there = np.array([int(name.split()[1]) % 5 > 0 for name in found.table])
    on = found.probability > 0.9
    daily = found.latent == "24 h"
    row = {"tables": TABLES, "seconds": seconds, "ms a table": 1e3 * seconds / TABLES}
    row |= {"daily found": (on & daily & is_there).sum() / (daily & is_there).sum()}
    row |= {"false": (on & ~(daily & is_there)).sum() / (~(daily & is_there)).sum()}
    show(f"many: {ROWS} rows, {OUTPUTS} outputs, {len(PERIODS)} processes, a process a core", [row])
