"""What a run prints: the inclusion table, the scores, and how far to believe them."""

import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd

from alps_ppl.app.problem import Outcome
from alps_ppl.app.report.notes import innovation_notes, interchangeable_notes, one_output_notes, scale_notes
from alps_ppl.app.report.sections import combinations, thinned
from alps_ppl.app.report.verdict import FEWEST_TIMES, chains_apart
from alps_ppl.results.inclusion import LARGEST_LOG_JOINT_R_HAT, disagreements


def findings(outcome: Outcome, summary: dict[str, Any], out: Path) -> None:
    """Print what was found, with the ``summary`` that ``outputs.write`` returned, and where it was written."""
    engines = list(outcome.fitted)
    wide = _wide(outcome.table, engines)
    num_times = int(outcome.problem.data.train_rows.sum())
    if num_times < FEWEST_TIMES:
        click.echo(
            f"\n{num_times} times are too few to tell one process from another: the probabilities say more of the "
            "priors than of these data."
        )
    click.echo("\nWhich processes are there? The probability that each gate is on:")
    click.echo(_text(wide))
    if "gibbs" in engines:
        click.echo("mcse (Monte Carlo standard error), r_hat and ess (effective draws) are the Gibbs sampler's.")
    if wide.get("ess", wide.prior).isna().any():
        click.echo("-: a gate that has the same value in every draw has no ess; with one chain none has an r_hat.")
    if "gibbs" in engines:
        top = combinations(outcome.trees["gibbs"], top=3)
        named = [f"{' + '.join(row['latents']) or 'none of them'} ({row['probability']:.3f})" for row in top]
        click.echo(f"\nThe most probable combinations (Gibbs): {'; '.join(named)}.")
    engine = outcome.lead
    on = outcome.table.query("engine == @engine and probability > 0.5").latent.tolist()
    tree, conversion = thinned(outcome.trees[engine]), outcome.problem.data.conversion
    notes = [*scale_notes(tree, on, conversion), *interchangeable_notes(tree, conversion), *one_output_notes(tree, on)]
    for note in notes:
        click.echo(note.text)
    click.echo("\nScores, the lower the better: rmse in training sds of each output; nlpd is minus the log predictive")
    click.echo("density per cell of outputs in training sds. In the file's units, per output: scores.csv.")
    rows = {(split, name): row for split, by_name in summary["scores"].items() for name, row in by_name.items()}
    click.echo(_text(pd.DataFrame(rows).T.dropna(how="all")))  # a forecast has no observed cell to score
    click.echo("\n" + ", ".join(f"{engine}: {summary[engine]['seconds']:.1f} s" for engine in engines))
    for note in innovation_notes(summary):
        click.echo(note.text)
    if "gibbs" in engines:
        _warn(outcome.table, summary["gibbs"]["max_rhat"], summary["gibbs"]["lp_rhat"])
    click.echo(f"Written to {out}; as a page: {shlex.join(['alps-ppl', 'report', str(out)])}")


def lost(table: pd.DataFrame) -> None:
    """Print what a smaller model lost."""
    for row in table.itertuples():
        click.echo(
            f"{row.engine}, split {row.split!r}: {row.lost:.4f} nats of log predictive density lost per cell "
            f"(standard error over cells {row.se:.4f}, the sampler's own error not counted)"
        )


def _wide(table: pd.DataFrame, engines: list[str]) -> pd.DataFrame:
    """A row per latent: the prior, each engine's probability, and the sampler's diagnostics."""
    latents = list(dict.fromkeys(table.latent))
    wide = table.pivot(index="latent", columns="engine", values="probability").loc[latents, engines]
    wide.insert(0, "prior", table.drop_duplicates("latent").set_index("latent").prior)
    if "gibbs" in engines:
        wide = wide.join(table[table.engine == "gibbs"].set_index("latent")[["mcse", "r_hat", "ess"]])
    return wide.rename_axis(index=None, columns=None)


def _text(table: pd.DataFrame) -> str:
    return table.to_string(float_format="{:.3f}".format, formatters={"ess": "{:.0f}".format}, na_rep="-")


def _warn(table: pd.DataFrame, max_rhat: float, lp_rhat: float) -> None:
    if np.isnan(max_rhat):
        click.echo("One chain can't tell whether it has converged; set GIBBS.num_chains to 2 or more.")
    if len(rows := disagreements(table, "gibbs")):
        click.echo(
            f"The chains disagree about {chains_apart(rows)}: the largest R-hat of a gate is {max_rhat:.3f}. Don't "
            "trust these probabilities yet; raise GIBBS.num_warmup and GIBBS.num_samples."
        )
    if lp_rhat > LARGEST_LOG_JOINT_R_HAT:
        click.echo(
            f"The chains sit in different modes: the R-hat of the log joint is {lp_rhat:.2f}, above "
            f"{LARGEST_LOG_JOINT_R_HAT}. Where they agree on the gates, believe those more than H and the bands, which "
            "are averages over the modes. Often the dictionary is short of a process."
        )
