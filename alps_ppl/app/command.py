"""What ``alps-ppl run`` and ``fit`` do with a problem: fit, write, print; and once more without what is pruned."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pandas as pd

from alps_ppl.app import outputs, printed, scores
from alps_ppl.app.errors import BadInput
from alps_ppl.app.problem import Problem
from alps_ppl.app.run import Outcome, fit_problem
from alps_ppl.results.selection import prune


def check(problem: Problem, engines: Sequence[str]) -> None:
    """BadInput for what can't be fitted."""
    try:
        problem.check(engines)
    except (ValueError, TypeError) as error:
        raise BadInput(str(error)) from error


def run(
    problem: Problem,
    *,
    engines: Sequence[str],
    seed: int,
    out: Path,
    progress: bool,
    fresh: bool,
    checkpoint_seconds: float,
    prune_below: float | None,
) -> None:
    """Fit a checked problem and write everything to ``out``, which is there; the options are the command's."""
    click.echo(f"{problem.name}: {problem.data}")
    if problem.baselines:
        click.echo("Baselines ...")
    try:
        baselines = scores.of_baselines(problem)
    except ValueError as error:
        raise BadInput(str(error)) from error
    if fresh:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    outputs.clear(out)
    options: dict[str, Any] = {"engines": engines, "seed": seed, "progress": progress}
    options["checkpoint_seconds"] = checkpoint_seconds
    outcome, cells = _fit_and_write(problem, baselines, out, options)
    if prune_below is None:
        return
    smaller = _smaller(outcome, prune_below)
    if smaller is not None:
        folder = out / "pruned"
        (folder / "figures").mkdir(parents=True)
        _, cells_of_smaller = _fit_and_write(smaller, [], folder, options)
        lost = scores.lost(cells, cells_of_smaller)
        lost.to_csv(folder / "lost.csv", index=False)
        printed.lost(lost)


def _fit_and_write(
    problem: Problem, baselines: list[pd.DataFrame], out: Path, options: dict[str, Any]
) -> tuple[Outcome, pd.DataFrame]:
    """The outcome, and the scores of every cell."""
    outcome = fit_problem(problem, out=out, **options)
    cells = pd.concat([scores.of_fits(outcome), *baselines], ignore_index=True)
    summary = outputs.write(outcome, cells, out)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    printed.findings(outcome, summary, out)
    return outcome, cells


def _smaller(outcome: Outcome, prune_below: float) -> Problem | None:
    """The pruned problem, by the Gibbs run where there is one; None where nothing is left out."""
    fitted = outcome.fitted["gibbs" if "gibbs" in outcome.fitted else "svi"]
    try:
        model = prune(fitted.fit, threshold=prune_below)
    except ValueError as error:
        raise BadInput(f"--prune: {error}") from error
    left_out = [name for name in outcome.problem.model.latents if name not in model.latents]
    if not left_out:
        click.echo(f"\nNothing to prune: every latent has a probability of {prune_below:g} or more.")
        return None
    click.echo(f"\nWithout {', '.join(left_out)}, fitted again:")
    return outcome.problem.of(model)
