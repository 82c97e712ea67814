"""Pages in Markdown from the templates ``*.md.j2`` beside this file, and how numbers stand in them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd


def count(true: Iterable[bool]) -> str:
    """How many of how many."""
    found = list(true)
    return f"{sum(found)} of {len(found)}"


def span(values: Iterable[float], form: str = ".3f") -> str:
    """Smallest to largest."""
    found = [value for value in values if np.isfinite(value)]
    low, high = f"{min(found):{form}}", f"{max(found):{form}}"
    return low if low == high else f"{low} to {high}"


def markdown(rows: pd.DataFrame | list[dict]) -> str:
    """A table: a column per column, without the index; numbers with three decimals."""
    table = pd.DataFrame(rows)
    cells = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in table.to_numpy()]
    header, *lines = (f"| {' | '.join(row)} |" for row in [list(table.columns), *cells])
    return "\n".join([header, "|" + "---|" * table.shape[1], *lines])


def render(template: str, **values: Any) -> str:
    """The page of a template; a name that it doesn't know is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = markdown
    return environment.get_template(template).render(values)
