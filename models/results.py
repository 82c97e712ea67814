"""Measurements are kept in ``docs/claims/NAME.json``: a row per case, written as it is measured; none is typed."""

import json
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pandas as pd
from tqdm import tqdm

from alps_ppl import runner

FOLDER = Path(__file__).parents[1] / "docs" / "claims"


def load(name: str) -> dict[str, Any]:
    """What is kept under this name, without rows if there is nothing."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return {"minutes": 0.0, "rows": []}
    try:
        report = json.loads(path.read_text())
        return report | {"minutes": float(report["minutes"]), "rows": list(report["rows"])}
    except (ValueError, TypeError, KeyError) as error:
        raise click.ClickException(
            f"{path.name}: expected what a measuring command wrote, got {type(error).__name__}: {error}; delete it and "
            "measure again"
        ) from None


def collect(name: str, cases: Sequence[dict], measure: Callable[..., dict], **about: Any) -> list[dict]:
    """The rows, ``case | measure(**case)``; those that are kept already aren't measured again.

    ``about``: what else the file says, the command and units among it. A row is written before the next is begun.
    """
    kept = load(name)
    for case in tqdm([case for case in cases if not _find(kept["rows"], case)], desc=name, unit="case"):
        begin = time.perf_counter()
        kept["rows"].append(case | measure(**case))
        kept["minutes"] += (time.perf_counter() - begin) / 60
        save(name, kept | about)
    return [row for case in cases for row in _find(kept["rows"], case)]


def _find(rows: list[dict], case: dict) -> list[dict]:
    return [row for row in rows if case.items() <= row.items()]


def markdown(table: pd.DataFrame) -> str:
    """A table of a page: a column per column, without the index; numbers with three decimals."""
    cells = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in table.to_numpy()]
    header, *lines = (f"| {' | '.join(row)} |" for row in [list(table.columns), *cells])
    return "\n".join([header, "|" + "---|" * table.shape[1], *lines])


def save(name: str, report: dict) -> None:
    """Write a report, with the day and the versions; a kill leaves the file before or after, never half of it."""
    found = runner.versions() | {"scikit-learn": metadata.version("scikit-learn")}
    first = {key: value for key, value in report.items() if key != "rows"}
    first |= {"minutes": round(report["minutes"], 2), "date": date.today().isoformat(), "versions": found}
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = FOLDER / f"{name}.part"
    part.write_text(json.dumps(first | {"rows": report["rows"]}, indent=1, default=float) + "\n")
    part.replace(FOLDER / f"{name}.json")
