"""What ``alps-ppl backtest`` does: compose the model from a file's first rows, backtest it, write and print."""

from pathlib import Path
from typing import Any

import click
import jax
import numpy as np
import pandas as pd

from alps_ppl.app.backtest import Window, backtest, windows
from alps_ppl.app.compose import compose
from alps_ppl.app.errors import BadInput
from alps_ppl.app.problem import Problem
from alps_ppl.app.report import write as write_report
from alps_ppl.app.report.run_folder import BACKTEST, BACKTEST_FIGURES
from alps_ppl.results.backtests import INTERVAL, Backtest, by_origin
from alps_ppl.tables.spikes import spikes, without_spikes


def run_backtest(
    file: Path,
    *,
    out: Path,
    horizon: str,
    origins: int,
    others: bool,
    seed: int,
    progress: bool,
    fresh: bool,
    drop_spikes: bool,
    **options: Any,
) -> None:
    """Backtest a file; ``options`` are ``compose``'s. Raises what that and ``backtest`` do, before any fit."""
    rolling: dict[str, Any] = {"horizon": horizon, "origins": origins, "drop_spikes": drop_spikes}
    table, _, problem, notes = first_problem(file, **rolling, **options)
    problem.check(["gibbs"])
    for note in notes:
        click.echo(note)
    positive = [name for name in problem.data.log if (table[name].dropna() > 0).all()]
    if lost := [name for name in problem.data.log if name not in positive]:
        if options.get("log", "none").strip().lower() != "auto":
            raise ValueError(f"log: expected positive values in output {lost[0]!r}, whose logarithm is modelled")
        click.echo(
            f"No logarithm is taken of {', '.join(map(repr, lost))}: after the first origin not all is positive."
        )
        _, _, problem, _ = first_problem(file, **rolling, **options | {"log": ",".join(positive) or "none"})
    if drop_spikes and (number := len(spikes(table))):
        click.echo(
            f"{number} cell(s) stand far out of the neighbours: each fit takes those before its origin for missing; "
            "all are scored."
        )
    folder = out / "backtest"
    if fresh:
        _forget(folder)
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out: can't make the folder {str(out)!r}: {error.strerror}") from None
    click.echo(f"{file.name}: {len(table)} rows, {origins} origins, from each {horizon} ahead")
    found = backtest(
        table,
        problem.model,
        horizon,
        rng_key=jax.random.key(seed),
        origins=origins,
        time_unit=options.get("time_unit"),
        log=problem.data.log,
        drop_spikes=drop_spikes,
        others=others,
        folder=folder,
        progress_bar=progress,
        **problem.gibbs,
    )
    _write(found, out)
    _print(found)
    if (out / "summary.json").is_file():
        click.echo(f"Written to {out}, and to its page: {write_report(out)}")
    else:
        click.echo(f"Written to {out}")
    _forget(folder)


def first_problem(
    file: Path, *, horizon: str, origins: int, drop_spikes: bool, **options: Any
) -> tuple[pd.DataFrame, list[Window], Problem, list[str]]:
    """The whole table, its windows, and the problem of what is before the first origin, with ``compose``'s notes."""
    whole: list[pd.DataFrame] = []
    found: list[Window] = []

    def past(table: pd.DataFrame) -> pd.DataFrame:
        whole.append(table)
        found.extend(windows(table, horizon, origins, options.get("time_unit")))
        before = table.iloc[: found[0].train]
        before.attrs = table.attrs | {"spikes": spikes(before.iloc[:0])}  # each origin finds its own
        return without_spikes(before, spikes(before)) if drop_spikes else before

    problem, notes = compose(file, cut=past, **options)
    return whole[0], found, problem, notes


def _forget(folder: Path) -> None:
    """Remove what origins left there."""
    for path in folder.glob("origin_*_of_*.json"):
        path.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _write(found: Backtest, out: Path) -> None:
    for name, table in zip(BACKTEST, (found.scores.reset_index(), found.gates, found.cells), strict=True):
        table.to_csv(out / name, index=False)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from alps_ppl.results import plots

    with matplotlib.rc_context({"text.parse_math": False}):
        drawn: tuple[Any, ...] = (
            plots.plot_backtest_gates(found.gates),
            plots.plot_calibration(found.cells),
            plots.plot_backtest_forecasts(found.cells),
        )
        for name, axes in zip(BACKTEST_FIGURES, drawn, strict=True):
            figure = np.ravel(axes)[0].figure
            figure.savefig(out / "figures" / f"{name}.png", dpi=130)
            plt.close(figure)


def _print(found: Backtest) -> None:
    click.echo(
        "\nForecasts, the best first; rmse and nlpd in training sds of each output; what part of the cells is in"
    )
    click.echo(f"the 50 and the {INTERVAL:.0%} band, and the lowest and highest part in the latter at one origin:")
    click.echo(found.scores.to_string(float_format=lambda value: f"{value:.3f}"))
    click.echo("\nThe probability of each process by origin, the last time that the fit saw:")
    click.echo(by_origin(found.gates).to_string(float_format=lambda value: f"{value:.2f}"))
    worst = found.gates.r_hat.max()
    if worst > 1.1:
        click.echo(f"At some origin chains disagree: the largest R-hat of a gate is {worst:.2f}.")
    click.echo("")
