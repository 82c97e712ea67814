"""What a child left, judged: errors, log density, gates; and the medians over data sets."""

import ast
import io
import tokenize
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm

from benchmarks.peers.tables import Table

SKIP = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def scores(table: Table, answer: Mapping[str, np.ndarray]) -> dict[str, float]:
    """RMSE to the truth and minus log density (nats) of the held-out cells, in training sds; and of gates, if any.

    The density is the normal's of the mean and sd, whatever the peer's own is. "right" and "false" are how many periods
    that are there, and that aren't, have a probability above 1/2; "Brier" is the mean of (probability - truth)^2.

    Raises a ValueError for an answer of another shape, or one that isn't finite.
    """
    mean, sd = answer["mean"], answer["sd"]
    if mean.shape != table.y.shape or sd.shape != table.y.shape:
        raise ValueError(f"mean and sd: expected shape {table.y.shape}, got {mean.shape} and {sd.shape}")
    held = ~np.isnan(table.y)
    if not (np.isfinite(mean[held]).all() and (sd[held] > 0).all()):
        raise ValueError("mean and sd: expected finite numbers and positive sds")
    found = {
        "RMSE": float(np.sqrt(np.mean((mean - table.truth)[held] ** 2))),
        "nlpd": float(-norm.logpdf(table.y, mean, sd)[held].mean()),
    }
    if "gates" not in answer:
        return found
    prob, is_on = answer["gates"], np.array([table.is_on[period] for period in sorted(table.is_on)])
    if prob.shape != is_on.shape:
        raise ValueError(f"gates: expected {len(is_on)} probabilities, of the periods in order, got {prob.shape}")
    on = prob > 0.5
    counts = {"right": float((on & is_on).sum()), "false": float((on & ~is_on).sum())}
    return found | counts | {"Brier": float(np.mean((prob - is_on) ** 2))}


def lines_of_code(script: Path) -> int:
    """Lines of a script that a user would have to write: without blank ones, comments and docstrings."""
    source = script.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {n for t in tokens if t.type not in SKIP for n in range(t.start[0], t.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, docstring.end_lineno + 1))
    return len(lines)


def summary(rows: list[dict]) -> pd.DataFrame:
    """A row per peer, in the order of the rows: medians over data sets, how many there were, and what went wrong."""
    frame = pd.DataFrame(rows)
    frame["sets"] = frame["note"].eq("").astype(int)
    columns = [name for name in COLUMNS if name in frame]
    grouped = frame.groupby("peer", sort=False)
    median = grouped[columns].median()
    notes = grouped["note"].agg(lambda words: ", ".join(dict.fromkeys(word for word in words if word)))
    return median.assign(sets=grouped["sets"].sum(), note=notes).reset_index()


COLUMNS = (
    *("cold [s]", "warm [s]", "cold CPU [s]", "warm CPU [s]", "MB", "lines"),
    *("RMSE", "nlpd", "right", "false", "Brier"),
)
