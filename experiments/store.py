"""Measurements are kept in JSON files: a row per case, written as soon as it is measured; no number is typed."""

import json
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from alps_ppl.app.run import versions

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "docs" / "claims"


def how_many(default: int, what: str = "", first: int = 0) -> Callable[[Callable], Callable]:
    """The option ``--tables``, which a command takes as ``number``."""
    seeds = f"How many{what and ' ' + what}; the seeds are {first}, {first + 1}, ..."
    at_least_one = click.IntRange(min=1)
    return click.option("--tables", "number", type=at_least_one, default=default, show_default=True, help=seeds)


def load(path: Path) -> dict[str, Any]:
    """What a file keeps: its ``rows``, the ``commands`` that measured them and their ``minutes``; no file, no rows."""
    if not path.exists():
        return {"minutes": 0.0, "commands": [], "rows": []}
    try:
        kept = json.loads(path.read_text())
        return kept | {
            "minutes": float(kept["minutes"]),
            "commands": list(kept["commands"]),
            "rows": list(kept["rows"]),
        }
    except (ValueError, TypeError, KeyError) as error:
        raise click.ClickException(
            f"{path.name}: expected what a measuring command wrote, got {type(error).__name__}: {error}; delete it and "
            "measure again"
        ) from None


def collect(
    path: Path,
    cases: Sequence[dict],
    measure: Callable[[dict], dict],
    *,
    command: str,
    again: bool = False,
    **about: Any,
) -> list[dict]:
    """The rows of the cases, in their order; what isn't kept yet is measured, and written before the next case begins.

    Parameters
    ----------
    path
        The file that keeps the rows.
    cases
        What tells one row from another, e.g. ``{"seed": 0}``.
    measure
        From a row so far, at first its case, to what is added to it; nothing, ``{}``, if it has all.
    command
        The command line, for the reader.
    again
        Whether ``measure`` sees the kept rows too, to add to them. Otherwise a row that is kept is complete.
    about
        What else the file says, e.g. the units.
    """
    kept = load(path)
    to_do = [case for case in cases if again or not _find(kept["rows"], case)]
    for case in tqdm(to_do, desc=path.stem, unit="case"):
        row = _find(kept["rows"], case)
        begin = time.perf_counter()
        added = measure(row or case)
        if not added:
            continue
        if row is None:
            row = dict(case)
            kept["rows"].append(row)
        row.update(added)
        kept["minutes"] += (time.perf_counter() - begin) / 60
        kept["commands"] = list(dict.fromkeys([*kept["commands"], command]))
        _save(path, kept | about)
    return [row for case in cases if (row := _find(kept["rows"], case))]


def _find(rows: list[dict], case: dict) -> dict | None:
    return next((row for row in rows if case.items() <= row.items()), None)


def _save(path: Path, kept: dict) -> None:
    """With the day and the versions, the rows last; a kill leaves the file before or after, never half of it."""
    about = {name: value for name, value in kept.items() if name != "rows"}
    about |= {"minutes": round(kept["minutes"], 2), "date": date.today().isoformat()}
    about["versions"] = versions() | {"scikit-learn": metadata.version("scikit-learn")}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(about | {"rows": kept["rows"]}, indent=1, default=float) + "\n")
    part.replace(path)
