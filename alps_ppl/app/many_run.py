"""What ``alps-ppl fit-many`` does: compose a model for each table in a worker, fit it, write and print."""

import glob
import re
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np
import pandas as pd

from alps_ppl.app.compose import compose
from alps_ppl.app.kept_rows import ROWS
from alps_ppl.app.many import Made, inclusion_rows, run_many
from alps_ppl.app.report import templates
from alps_ppl.results.inclusion import LARGEST_GATE_R_HAT, OFF, ON, status
from alps_ppl.tables.reading import read_file

TABLES = "tables"
# How many tables that failed, or are undecided, are named.
MOST_NAMED = 20
# So many tables have to fail before the run does.
FEW = 5
MOST_LETTERS = 40


def run_fit_many(
    files: Sequence[Path],
    *,
    out: Path,
    id_column: str | None,
    engine: str,
    num_workers: int | None,
    seed: int,
    fresh: bool,
    progress: bool,
    settings: dict[str, dict[str, Any]],
    **options: Any,
) -> None:
    """Fit all tables; ``options`` are ``compose``'s. Raises a ValueError or TypeError for bad input, before any fit."""
    paths = _paths(files)
    other = {"vb": "GIBBS", "gibbs": "VB"}[engine]
    if settings["SVI"] or settings[other]:
        raise ValueError(f"set: expected settings of {engine.upper()}, the engine here, got some of {other} or SVI")
    if id_column is not None and id_column == options.get("time"):
        raise ValueError(f"id: expected another column than the times', got {id_column!r} for both")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out: can't make the folder {str(out)!r}: {error.strerror}") from None
    if fresh:
        (out / ROWS).unlink(missing_ok=True)
    items = _by_id(paths, id_column, out / TABLES) if id_column is not None else _by_name(paths)
    of_engine = settings[{"vb": "VB", "gibbs": "GIBBS"}[engine]]
    make = partial(_of_file, options | {"settings": settings})
    _check(make, items)
    click.echo(f"{len(items):,} table{'s' * (len(items) != 1)}, by {engine}")
    table = run_many(
        items,
        partial(inclusion_rows, make),
        rng_key=jax.random.key(seed),
        engine=engine,
        settings=of_engine,
        num_workers=num_workers,
        folder=out,
        progress_bar=progress,
        question=repr(sorted(options.items())),
        content=Path.read_bytes,
    )
    table.to_csv(out / "inclusion.csv", index=False)
    counts = counted(table)
    if (table.error != "").all():
        raise ValueError(f"FILES: no table could be fitted, the first for this: {table.error.iloc[0]}")
    (out / "report.html").write_text(page(table, counts, engine), encoding="utf-8")
    _print(table, counts)
    click.echo(f"Written to {out}: inclusion.csv, a row per table and process, and report.html")


def _check(make: Any, items: list[tuple[str, Any]]) -> None:
    """The first table's error where the first few all have one: then the options are wrong, and it is said once."""
    errors: list[Exception] = []
    for _, path in items[:FEW]:
        try:
            make(path)
            return
        except (ValueError, TypeError) as error:
            errors.append(error)
    raise errors[0]


def _paths(files: Sequence[Path]) -> list[Path]:
    """The files, patterns that no shell has expanded among them."""
    found = [Path(name) for file in files for name in (sorted(glob.glob(str(file))) or [str(file)])]
    if missing := [str(path) for path in found if not path.is_file()]:
        raise ValueError(f"FILES: expected CSV or Parquet files, got {missing[0]!r}, which isn't a file")
    return found


def _by_name(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each file by its stem, or where two have one by its whole path."""
    stems = [path.stem for path in paths]
    unique = len(set(stems)) == len(stems)
    return [(path.stem if unique else str(path), path.resolve()) for path in paths]


def _by_id(paths: Sequence[Path], column: str, folder: Path) -> list[tuple[str, Path]]:
    """A file in ``folder`` for each value of a column, whose rows are a table of their own."""
    if len(paths) != 1:
        raise ValueError(f"id: expected one long file, got {len(paths)} files")
    raw = read_file(paths[0])
    if column not in raw:
        raise ValueError(f"id: expected the column {column!r} in {paths[0].name}, which has {', '.join(raw.columns)}")
    if (missing := raw[column].isna()).any():
        row = int(np.flatnonzero(missing)[0]) + 2
        raise ValueError(f"id: expected a name in every row of column {column!r}, got none in line {row}")
    folder.mkdir(exist_ok=True)
    items = []
    for number, (name, rows) in enumerate(raw.groupby(column, sort=False)):
        plain = re.sub(r"[^\w.-]", "_", str(name))[:MOST_LETTERS]
        path = folder / f"{number}_{plain}.csv"
        rows.drop(columns=column).to_csv(path, index=False)
        items.append((str(name), path))
    if not items:
        raise ValueError(f"{paths[0].name}: expected at least one table, got no rows")
    return items


def _of_file(options: dict[str, Any], path: Path) -> Made:
    problem, notes = compose(path, **options)
    return Made(problem.data, problem.model, problem.gibbs, notes)


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """By process, in their order: in how many tables it is on, undecided, off."""
    fitted = table[table.error == ""]
    counts = pd.crosstab(fitted.latent, fitted.probability.map(status))
    counts = counts.reindex(columns=["on", "undecided", "off"], fill_value=0)
    return counts.reindex(list(dict.fromkeys(fitted.latent)))


def _print(table: pd.DataFrame, counts: pd.DataFrame) -> None:
    number = table.table[table.error == ""].nunique()
    if said := table[table.notes != ""].table.nunique():
        click.echo(
            f"\nOf {said:,} table(s) something is to be said, as of spikes or of columns left out: inclusion.csv, notes"
        )
    click.echo(f"\nOf {number:,} fitted tables, in how many each process is on (from {ON}), undecided, and off:")
    click.echo(counts.rename_axis(None).rename_axis(None, axis=1).to_string())
    if len(failed := table[table.error != ""]):
        click.echo(f"\n{len(failed):,} table(s) couldn't be fitted:")
        for row in failed.head(MOST_NAMED).itertuples():
            click.echo(f"  {row.table}: {row.error}")
        if len(failed) > MOST_NAMED:
            click.echo(f"  and {len(failed) - MOST_NAMED:,} more, in inclusion.csv")
    if len(apart := table[table.r_hat > LARGEST_GATE_R_HAT]):
        click.echo(f"\nChains differ in {apart.table.nunique():,} table(s); r_hat in inclusion.csv says in which.")


def page(table: pd.DataFrame, counts: pd.DataFrame, engine: str) -> str:
    """The summary as one HTML page."""
    failed = table[table.error != ""]
    undecided = table[(table.error == "") & (table.probability.map(status) == "undecided")]
    return (
        templates()
        .get_template("many.html")
        .render(
            number=int(table.table[table.error == ""].nunique()),
            processes=[{"name": name, **row} for name, row in counts.to_dict("index").items()],
            failed=failed.head(MOST_NAMED).to_dict("records"),
            num_failed=len(failed),
            undecided=undecided.head(MOST_NAMED).to_dict("records"),
            num_undecided=undecided.table.nunique(),
            num_noted=table[table.notes != ""].table.nunique(),
            most=MOST_NAMED,
            on=ON,
            off=OFF,
            engine={"vb": "coordinate ascent (VB), an approximation", "gibbs": "the Gibbs sampler"}[engine],
            version=metadata.version("alps-ppl"),
        )
    )
