"""64-bit for all tests (float32 has tests of its own), one BLAS thread, one compilation cache."""

import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("MPLBACKEND", "Agg")

import json
import sys

import jax
import numpy as np
import numpyro
import pytest
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.cli import main

numpyro.enable_x64()

# Small sizes compile more than they compute: code that isn't optimised is there in less than half the time.
UNOPTIMISED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
if jax.__version_info__ < (0, 11):  # 0.12 doesn't know the flag, and XLA stops at what it doesn't know
    UNOPTIMISED["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()


def pytest_configure(config):
    """The quick tests, and the processes that they start, run unoptimised code."""
    if config.option.markexpr == "not slow":
        jax.config.update("jax_disable_most_optimizations", True)
        os.environ.update(UNOPTIMISED)


@pytest.fixture
def unoptimised(monkeypatch):
    """Processes that the test starts run unoptimised code."""
    for name, value in UNOPTIMISED.items():
        monkeypatch.setenv(name, value)


ORACLES = Path(__file__).parent / "oracles"


@pytest.fixture(scope="session")
def oracle():
    return lambda name: json.loads((ORACLES / f"oracle_{name}.json").read_text())


def periodic(period, lengthscale=1.0):
    """exp(-2 sin^2(pi d / period) / lengthscale^2), as the oracles write it."""
    return kernels.ExpSineSquared(scale=period, gamma=2.0 / lengthscale**2)


@pytest.fixture
def exact_model(oracle):
    """The two-latent model of ``oracle_alps_exact.json``."""
    o = oracle("alps_exact")
    return alps.ALPS(
        {"rbf": kernels.ExpSquared(scale=0.8), "periodic": periodic(1.3)},
        inclusion_prob=o["theta"],
        mixing_variance=o["H_prior_var"],
        noise_variance=o["noise_var"],
    )


@pytest.fixture
def key():
    return jax.random.key(20261128)


@pytest.fixture
def rough_model():
    """Three full-rank latents of low condition number, two outputs, no jitter: exact in weight space."""
    covariances = {"a": kernels.Exp(scale=0.7), "b": kernels.Exp(scale=3.0), "c": kernels.Matern32(scale=0.5)}
    return alps.ALPS(
        covariances,
        ["u", "v"],
        inclusion_prob=[0.3, 0.5, 0.8],
        mixing_variance=[[1.0, 0.5, 2.0], [0.7, 1.5, 0.3]],
        noise_variance=numpyro.distributions.InverseGamma(3.0, 0.4),
        jitter=0.0,
    )


@pytest.fixture
def rough_data():
    """Nine uneven times; scattered missing cells and one row of them."""
    rng = np.random.default_rng(3)
    t = np.sort(rng.uniform(0, 6, 9))
    y = rng.normal(size=(9, 2))
    y[2, 0] = y[5, 1] = np.nan
    y[7] = np.nan
    return t, y


@pytest.fixture
def call(monkeypatch, capsys):
    """``call(*arguments)`` -> (status, stdout, stderr)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["alps-ppl", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = exit_.code or 0
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run
