"""What ``alps-ppl run`` and ``fit`` do with a problem: fit, write, print; and once more without what is pruned."""

import hashlib
import json
import logging
import platform
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Array
from tqdm.auto import tqdm

from alps_ppl.app import outputs, printed, scores
from alps_ppl.app.errors import BadInput
from alps_ppl.app.problem import GIBBS_DEFAULTS, Fitted, Outcome, Problem
from alps_ppl.checkpoints import Checkpoints
from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.model.alps import ALPS
from alps_ppl.model.as_json import describe
from alps_ppl.model.covariances import parameters
from alps_ppl.results.files import save
from alps_ppl.results.fits import Fit
from alps_ppl.results.prediction import log_density, predictive, summarise
from alps_ppl.results.selection import prune
from alps_ppl.results.trees import to_datatree
from alps_ppl.svi.fit import NonFiniteLossError, fit_svi
from alps_ppl.vb.fit import fit_vb

PACKAGES = ("alps-ppl", "numpyro", "jax", "tinygp", "arviz-base", "arviz-stats", "numpy")


def run(
    problem: Problem,
    *,
    out: Path,
    fresh: bool,
    prune_below: float | None,
    origin: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Fit a checked problem and write everything to ``out``, which is there.

    ``origin`` goes into ``summary.json``: the ``command`` and the ``file`` from which this came.
    ``options`` are ``fit_problem``'s. With ``prune_below`` a model without the latents below that probability is fitted
    too, in ``out/pruned``; ``fresh`` forgets what a killed run left.
    """
    click.echo(f"{problem.name}: {problem.data}")
    if problem.baselines:
        click.echo("Baselines ...")
    baselines = scores.of_baselines(problem)
    if fresh:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    outputs.clear(out)
    outcome, cells = _fit_and_write(problem, baselines, out, options, origin or {})
    if prune_below is not None and (smaller := _smaller(outcome, prune_below)):
        (out / "pruned" / "figures").mkdir(parents=True)
        lost = scores.lost(cells, _fit_and_write(smaller, [], out / "pruned", options, origin or {})[1])
        lost.to_csv(out / "pruned" / "lost.csv", index=False)
        printed.lost(lost)


def _fit_and_write(
    problem: Problem, baselines: list[pd.DataFrame], out: Path, options: dict[str, Any], origin: Mapping[str, Any]
) -> tuple[Outcome, pd.DataFrame]:
    """The outcome, and the scores of every cell."""
    outcome = fit_problem(problem, out=out, **options)
    cells = pd.concat([scores.of_fits(outcome), *baselines], ignore_index=True)
    about = {**origin, "finished": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", "versions": versions()}
    summary = outputs.write(outcome, cells, about, out)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    printed.findings(outcome, summary, out)
    return outcome, cells


def _smaller(outcome: Outcome, prune_below: float) -> Problem | None:
    """The pruned problem, by the Gibbs run where there is one; None where nothing is left out."""
    try:
        model = prune(outcome.fitted[outcome.lead].fit, threshold=prune_below)
    except ValueError as error:
        raise BadInput(f"--prune: {error}") from error
    left_out = [n for n in dict.fromkeys(outcome.problem.model.copy_of) if n not in model.copy_of]
    if not left_out:
        click.echo(f"\nNothing to prune: every latent has a probability of {prune_below:g} or more.")
        return None
    click.echo(f"\nWithout {', '.join(left_out)}, fitted again:")
    return replace(outcome.problem, model=model)


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
    seed_key = jax.random.key(seed)
    keys = dict(zip(("svi", "gibbs"), jax.random.split(seed_key), strict=True)) | {
        "vb": jax.random.fold_in(seed_key, 2)
    }
    fitted, learnt = dict[str, Fitted](), dict[str, float]()
    for engine in sorted(engines, key=lambda name: name != "svi") if problem.model.covariance_bounds else engines:
        start = time.perf_counter()
        with _said_messages():
            fit = _fit(problem, engine, keys[engine], out / "checkpoints", progress, checkpoint_seconds)
        seconds = time.perf_counter() - start
        if problem.model.covariance_bounds:
            learnt = _learnt(problem.model, fit.model)
            click.echo(f"Learnt: {', '.join(f'{name} {value:.4g}' for name, value in learnt.items())}")
            problem = replace(problem, model=fit.model)
        elif engine == "svi" and problem.model.unknown_scales:
            best = _learnt(problem.model.with_bounds(), fit.model)
            click.echo(f"SVI's best in the ranges: {', '.join(f'{name} {value:.4g}' for name, value in best.items())}")
        # Written at once: what comes after can't lose a fit that took minutes.
        tree = to_datatree(fit)
        _save(fit, tree, problem, out / f"posterior_{engine}.nc")
        draws = predictive(fit, problem.data.inputs)
        cells = summarise(draws), log_density(draws, problem.data.standardised)
        fitted[engine] = Fitted(fit, tree, seconds, *cells)
    return Outcome(problem, seed, fitted, learnt)


def _fit(problem: Problem, engine: str, rng_key: Array, folder: Path, progress: bool, checkpoint_seconds: float) -> Fit:
    model, settings = problem.model, problem.settings(engine)
    inputs, y = problem.data.train_inputs, problem.data.train_y
    identity = fingerprint(model, inputs, y, settings, rng_key, versions(), problem.source)
    checkpoints = Checkpoints(folder, identity, checkpoint_seconds, click.echo)
    options: dict[str, Any] = {"rng_key": rng_key, "progress_bar": progress, **settings}
    try:
        if engine == "svi":
            with _said_warnings():
                return fit_svi(model, inputs, y, checkpoints=checkpoints, **options)
        if engine == "vb":
            return fit_vb(model, inputs, y, **options)
        lengths = GIBBS_DEFAULTS | settings
        click.echo("Gibbs: {num_chains} chains of {num_warmup} + {num_samples} sweeps".format(**lengths))
        return fit_gibbs(model, inputs, y, checkpoint=checkpoints.part("gibbs", "sweeps"), **options)
    except (NonFiniteLossError, ValueError, TypeError) as error:
        raise BadInput(str(error)) from error


def _learnt(before: ALPS, after: ALPS) -> dict[str, float]:
    """The covariance parameters that were learnt."""
    values = dict(zip(after.copy_of, map(parameters, after.covariances), strict=True))
    return {
        f"{latent}.{path}": float(values[latent][path])
        for latent, bounds in before.covariance_bounds.items()
        for path in bounds
    }


def _save(fit: Fit, tree: xr.DataTree, problem: Problem, path: Path) -> None:
    """The posterior's file; a warning about it is printed."""
    with _said_warnings():
        save(fit, path, tree=tree, conversion=problem.data.conversion)


class _Said(logging.Handler):
    """Messages as plain lines, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(record.getMessage())


@contextmanager
def _said_messages() -> Iterator[None]:
    """What the package logs is printed."""
    logger, handler = logging.getLogger("alps_ppl"), _Said()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def _said_warnings() -> Iterator[None]:
    """Warnings are printed as plain lines, as soon as they come."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: click.echo(str(message))
        yield


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
