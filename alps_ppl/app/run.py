"""Fitting a ``Problem``: engine by engine, each posterior on disk as soon as it is there."""

import hashlib
import json
import platform
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Array, Float

from alps_ppl.app.errors import BadInput
from alps_ppl.app.problem import GIBBS_DEFAULTS, Problem
from alps_ppl.checkpoints import Checkpoints
from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.gibbs.posterior import GibbsFit
from alps_ppl.model.alps import ALPS
from alps_ppl.model.as_json import describe
from alps_ppl.model.covariances import parameters
from alps_ppl.results.files import save
from alps_ppl.results.inclusion import inclusion_table
from alps_ppl.results.prediction import log_density, predictive, summarise
from alps_ppl.results.trees import to_datatree
from alps_ppl.svi.fit import NonFiniteLossError, fit_svi
from alps_ppl.svi.posterior import SVIFit
from alps_ppl.tables.data import Data

PACKAGES = ("alps-ppl", "numpyro", "jax", "tinygp", "arviz-base", "arviz-stats", "numpy")
Fit = SVIFit | GibbsFit


@dataclass(frozen=True)
class Fitted:
    """An engine's answer: its fit and tree, the seconds that the fit took, and what it says of every cell of the table.

    ``prediction`` is ``predict``'s and ``log_density`` that of the observed cells, both of standardised outputs.
    """

    fit: Any  # an SVIFit or a GibbsFit
    tree: xr.DataTree
    seconds: float
    prediction: xr.Dataset
    log_density: Float[np.ndarray, "time output"]


@dataclass(frozen=True)
class Outcome:
    """A fitted problem, by engine in the order in which they ran. ``learnt``: SVI's covariance parameters."""

    problem: Problem
    seed: int
    fitted: dict[str, Fitted]
    learnt: dict[str, float]

    @property
    def trees(self) -> dict[str, xr.DataTree]:
        """The posteriors' trees."""
        return {engine: fitted.tree for engine, fitted in self.fitted.items()}

    @property
    def predictions(self) -> dict[str, xr.Dataset]:
        """The predictions of every cell, of standardised outputs."""
        return {engine: fitted.prediction for engine, fitted in self.fitted.items()}

    @cached_property
    def table(self) -> pd.DataFrame:
        """The inclusion table."""
        return inclusion_table(self.trees)


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}


def fingerprint(
    model: ALPS, inputs: Any, y: Any, settings: dict, rng_key: Array, found: dict[str, str], source: str = ""
) -> str:
    """What a run's result depends on, as a hash: a checkpoint of another one is of no use.

    ``found`` are the ``versions``; ``source`` is the text that stands for settings that aren't plain data, such as a
    function of the temperature.
    """
    opaque: list[str] = []

    def name(value: Any) -> str:
        opaque.append(type(value).__name__)
        return opaque[-1]

    plain: dict[str, Any] = {"model": describe(model), "settings": settings, "versions": found}
    plain["machine"] = [jax.default_backend(), str(jnp.asarray(0.0).dtype)]
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True, default=name).encode())
    for array in (inputs, y, jax.random.key_data(rng_key)):
        digest.update(str(np.shape(array)).encode() + np.asarray(array).tobytes())
    if opaque:
        digest.update(source.encode(errors="replace"))
    return digest.hexdigest()


def fit_engine(
    engine: str,
    model: ALPS,
    inputs: Any,
    y: Any,
    settings: dict[str, Any],
    rng_key: Array,
    *,
    progress: bool = False,
    checkpoints: Checkpoints | None = None,
) -> Fit:
    """``fit_svi`` or ``fit_gibbs``, whose other arguments are ``settings``; ``engine`` is "svi" or "gibbs".

    With ``checkpoints`` it can go on after it was killed.
    """
    if engine == "svi":
        return fit_svi(model, inputs, y, rng_key=rng_key, progress_bar=progress, checkpoints=checkpoints, **settings)
    part = None if checkpoints is None else checkpoints.part("gibbs", "sweeps")
    return fit_gibbs(model, inputs, y, rng_key=rng_key, progress_bar=progress, checkpoint=part, **settings)


def fit_problem(
    problem: Problem,
    *,
    engines: Sequence[str],
    seed: int,
    out: Path,
    progress: bool = False,
    checkpoint_seconds: float = 30.0,
) -> Outcome:
    """Fit a problem that was checked, engine by engine; ``out`` gets ``posterior_<engine>.nc`` right after each fit.

    A fit leaves its state in ``out/checkpoints`` every so many seconds; there a killed one goes on. Where covariances
    are learnt SVI is the first, since the sampler takes what it learnt.
    """
    keys = dict(zip(("svi", "gibbs"), jax.random.split(jax.random.key(seed)), strict=True))
    fitted, learnt = dict[str, Fitted](), dict[str, float]()
    for engine in sorted(engines, reverse=True) if problem.model.covariance_bounds else engines:
        start = time.perf_counter()
        fit = _fit(problem, engine, keys[engine], out / "checkpoints", progress, checkpoint_seconds)
        seconds = time.perf_counter() - start
        if problem.model.covariance_bounds:
            learnt = _learnt(problem.model, fit.model)
            click.echo(f"Learnt: {', '.join(f'{name} {value:.4g}' for name, value in learnt.items())}")
            problem = problem.of(fit.model)
        # Written at once: what comes after can't lose a fit that took minutes.
        tree = to_datatree(fit)
        _save(fit, tree, problem.data, out / f"posterior_{engine}.nc")
        fitted[engine] = Fitted(fit, tree, seconds, *_of_cells(fit, problem.data))
    return Outcome(problem, seed, fitted, learnt)


def _fit(problem: Problem, engine: str, rng_key: Array, folder: Path, progress: bool, checkpoint_seconds: float) -> Fit:
    model, settings = problem.model, problem.settings(engine)
    inputs, y = problem.data.train_inputs, problem.data.train_y
    identity = fingerprint(model, inputs, y, settings, rng_key, versions(), problem.source)
    checkpoints = Checkpoints(folder, identity, checkpoint_seconds, click.echo)
    if engine == "gibbs":
        lengths = GIBBS_DEFAULTS | settings
        click.echo("Gibbs: {num_chains} chains of {num_warmup} + {num_samples} sweeps".format(**lengths))
    try:
        return fit_engine(engine, model, inputs, y, settings, rng_key, progress=progress, checkpoints=checkpoints)
    except (NonFiniteLossError, ValueError, TypeError) as error:
        raise BadInput(str(error)) from error


def _learnt(before: ALPS, after: ALPS) -> dict[str, float]:
    """The covariance parameters that were learnt."""
    values = dict(zip(after.latents, map(parameters, after.covariances), strict=True))
    return {
        f"{latent}.{path}": float(values[latent][path])
        for latent, bounds in before.covariance_bounds.items()
        for path in bounds
    }


def _save(fit: Fit, tree: xr.DataTree, data: Data, path: Path) -> None:
    """The posterior's file; a warning about it is printed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        save(fit, path, tree=tree, conversion=data.conversion)
    for warning in caught:
        click.echo(str(warning.message))


def _of_cells(fit: Fit, data: Data) -> tuple[xr.Dataset, Float[np.ndarray, "time output"]]:
    """The prediction of every cell, and the log density of the observed ones."""
    draws = predictive(fit, data.inputs)
    return summarise(draws), log_density(draws, data.standardised)
