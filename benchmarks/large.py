"""``large``: many times: a million of ten outputs in bounded memory, and twenty thousand of a rough latent."""

import json
import resource
import sys

import numpy as np
import numpyro
from tinygp import kernels

import alps_ppl as alps
from benchmarks.gibbs import sweeps
from benchmarks.timing import fresh, progress, show

MARK_GIB = 2.0
PERIODS = (3.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0)
# times, outputs, warm-up, draws
SIZES = {"low rank": (1_000_000, 10, 500, 1_000), "Markov": (20_000, 3, 5, 10)}


def simulated(num_times: int, num_outputs: int) -> np.ndarray:
    """Waves of periods 7, 17 and 23 in noise, (time, output), made in pieces."""
    rng = np.random.default_rng(0)
    H = rng.normal(size=(3, num_outputs))
    y = np.empty((num_times, num_outputs))
    for piece in np.array_split(np.arange(num_times), max(1, num_times // 50_000)):
        waves = np.sin(2 * np.pi * piece[:, None] / (7.0, 17.0, 23.0))
        y[piece] = waves @ H + 0.5 * rng.normal(size=(len(piece), num_outputs))
    y[rng.integers(0, num_times, 1_000), 0] = np.nan
    return y


def measure(name: str) -> dict:
    """A whole fit of four vectorized chains; memory is this process's peak."""
    numpyro.enable_x64()
    num_times, num_outputs, num_warmup, num_samples = SIZES[name]
    inputs, y = np.arange(float(num_times)), simulated(num_times, num_outputs)
    covariances = {f"T={T:g}": alps.linear_periodic(T) for T in PERIODS}
    covariances["drift"] = kernels.ExpSquared(scale=num_times / 20) if name == "low rank" else kernels.Exp(scale=96.0)
    model = alps.ALPS(covariances, num_outputs, noise_variance=0.25)
    row = sweeps(model, inputs, y, num_warmup=num_warmup, num_samples=num_samples)
    return {
        "latents": name,
        "times": num_times,
        "outputs": num_outputs,
        **{name: row[name] for name in ("sweeps", "fit [s]", "ms / sweep and chain")},
        "peak memory [GiB]": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30,
    }


def run():
    """A fresh process for each, since a process's peak memory never falls."""
    rows = []
    for name, (num_times, *_) in SIZES.items():
        progress(f"{num_times:,} times, {name}")
        rows.append(json.loads(fresh("-m", "benchmarks.large", name)))
    show(
        "large: many times, fit_gibbs with four chains, 64-bit",
        rows,
        f"mark: a million times and ten outputs in {MARK_GIB:g} GiB; measured {rows[0]['peak memory [GiB]']:.2f}",
        "fit: with the features, the statistics and compilation",
    )


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
