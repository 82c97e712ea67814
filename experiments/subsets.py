"""Kernel ridge regression on each of the 8,192 subsets of the Boston columns (paper, 4.3 and App. A, figure 4).

"Kernelised ridge regression" on a set of columns can mean two things:

- *additive*: the covariance is the sum of the columns' RBFs, as in GP-ALPS with those gates on and every H at 1, its
  prior sd; alpha is the model's noise variance, 0.2, or scikit-learn's default, 1;
- *joint*: scikit-learn's ``KernelRidge(kernel="rbf", gamma=0.5, alpha=1)`` on the columns together, whose covariance is
  the product of the columns' RBFs.

The price is standardised in all of them; the empty set predicts the training mean.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm

import alps_ppl as alps
from experiments import store
from models import boston_housing

RIDGES = {"additive 0.2": ("additive", 0.2), "additive 1": ("additive", 1.0), "joint 1": ("joint", 1.0)}
COLUMNS = ("crim", "zn", "indus", "chas", "nox", "rm", "age", "dis", "rad", "tax", "ptratio", "b", "lstat")
PAPER = ("chas", "rm", "ptratio", "lstat")
FIGURE = store.ROOT / "docs" / "boston_subsets.png"
RANKINGS = store.ROOT / "results" / "boston_subsets.json"
BLUE = "#2166ac"


def rankings(split: int, ridges: Iterable[str] = RIDGES) -> dict[str, np.ndarray]:
    """``subset_rmses`` of a split's raw inputs by ridge; kept in ``results/``, since each takes half a minute."""

    def measure(case: dict) -> dict:
        return {"rmse": subset_rmses(boston_housing.data(split), case["ridge"]).tolist()}

    cases = [{"split": split, "ridge": ridge} for ridge in ridges]
    rows = store.collect(RANKINGS, cases, measure, command="python -m experiments.boston --ranks")
    return {row["ridge"]: np.array(row["rmse"]) for row in rows}


def subset_rmses(data: alps.Data, ridge: str) -> np.ndarray:
    """(8192,) test RMSE in 1000 dollars of kernel ridge on every subset; bit k of its number: column k is in."""
    kind, alpha = RIDGES[ridge]
    test = data.split[:, 0] == "test"
    y, y_test = data.train_y[:, 0], data.standardised[test, 0]
    predictions = {"additive": _additive_predictions, "joint": _joint_predictions}[kind]
    rmse = np.empty(2 ** data.inputs.shape[1])
    for subset, mean in predictions(data.train_inputs, data.inputs[test], y, alpha):
        rmse[subset] = np.sqrt(np.mean((y_test - mean) ** 2))
    return rmse * data.scale[0]


def column_grams(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """(column, row of X, row of Y): the RBF of unit lengthscale on each column."""
    return np.exp(-0.5 * (X.T[:, :, None] - Y.T[:, None, :]) ** 2)


def _additive_predictions(train: np.ndarray, test: np.ndarray, y: np.ndarray, alpha: float) -> Iterator:
    """(subset, test means) by the weights of the columns' features, whose Gram matrix all subsets share.

    A subset needs only its own rows and columns of that Gram matrix. Where it has more features than there are rows,
    the sum of the columns' own Gram matrices is smaller.
    """
    n, both = len(train), np.concatenate([train, test])
    grams = column_grams(both, both)
    features = [_features(gram) for gram in grams]
    owner = np.repeat(np.arange(len(features)), [f.shape[1] for f in features])
    all_features = np.concatenate(features, axis=1)
    phi, phi_test = all_features[:n], all_features[n:]
    products, moment = phi.T @ phi, phi.T @ y
    for subset, K in _walk(grams[:, :, :n], np.add, np.zeros((len(both), n))):
        mine = np.flatnonzero(subset >> owner & 1)
        if len(mine) < n:
            yield subset, phi_test[:, mine] @ _ridge(products[np.ix_(mine, mine)], moment[mine], alpha)
        else:
            yield subset, K[n:] @ _ridge(K[:n].copy(), y, alpha)


def _joint_predictions(train: np.ndarray, test: np.ndarray, y: np.ndarray, alpha: float) -> Iterator:
    """(subset, test means): an RBF on several columns is the product of the columns' RBFs."""
    n = len(train)
    grams = column_grams(np.concatenate([train, test]), train)
    grams[grams < 1e-20] = 0.0  # far below round-off; thirteen such factors would be subnormal, and slow
    for subset, K in _walk(grams, np.multiply, np.ones(grams.shape[1:])):
        yield subset, K[n:] @ _ridge(K[:n].copy(), y, alpha)


def _walk(grams: np.ndarray, combine: Callable, start: np.ndarray, subset: int = 0) -> Iterator:
    """(subset, combined Gram matrix) of all subsets, depth first: each costs one sum or product."""
    if subset == 0:
        yield 0, start
    for k in range(subset.bit_length(), len(grams)):
        larger = subset | 1 << k
        combined = combine(start, grams[k])
        yield larger, combined
        yield from _walk(grams, combine, combined, larger)


def _features(gram: np.ndarray, tolerance: float = 1e-9) -> np.ndarray:
    """(row, feature) whose products are ``gram``, less what is below ``tolerance`` of its largest eigenvalue."""
    values, vectors = np.linalg.eigh(gram)
    keep = values > tolerance * values[-1]
    return vectors[:, keep] * np.sqrt(values[keep])


def _ridge(gram: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """(gram + alpha I)^-1 y; ``gram`` is overwritten."""
    if len(gram) == 0:
        return np.zeros(0)
    gram[np.diag_indices_from(gram)] += alpha
    # The transpose is in LAPACK's order: no copy.
    return cho_solve(cho_factor(gram.T, lower=True, overwrite_a=True, check_finite=False), y, check_finite=False)


def refits(data: alps.Data, names: Sequence[str]) -> dict[str, dict]:
    """The scores of kernel ridge on some columns, by ridge; its sd is that of the GP whose noise variance is alpha."""
    if not names:
        return {ridge: score(data, data.loc, data.scale) for ridge in RIDGES}
    grams = column_grams(data.inputs, data.inputs)[[COLUMNS.index(name) for name in names]]
    train = data.train_rows
    found = {}
    for ridge, (kind, alpha) in RIDGES.items():
        K = grams.sum(0) if kind == "additive" else grams.prod(0)
        cross = K[:, train]
        solved = _ridge(cross[train].copy(), np.column_stack([data.train_y, cross.T]), alpha)
        mean, variance = cross @ solved[:, :1], K.diagonal() + alpha - (cross.T * solved[:, 1:]).sum(0)
        found[ridge] = score(data, data.loc + data.scale * mean, data.scale * np.sqrt(variance)[:, None])
    return found


def score(data: alps.Data, mean: np.ndarray, sd: np.ndarray) -> dict[str, float]:
    """Errors and minus log density of a normal prediction (row, 1) in 1000 dollars, on the test rows."""
    test = data.split == "test"
    mean, sd = (np.broadcast_to(values, data.y.shape) for values in (mean, sd))
    rmse = float(np.sqrt(np.mean((data.y - mean)[test] ** 2)))
    log_density = norm.logpdf(data.y, mean, sd)[test].mean() + np.log(data.scale[0])
    return {"rmse": rmse, "rmse_sd": rmse / float(data.scale[0]), "nlpd": -float(log_density)}


def rank(value: Any, rmses: dict[str, np.ndarray]) -> Any:
    """A measured row with the rank of every score in it among the subsets of each ridge; 1: none is better.

    Parameters
    ----------
    value
        A row, or any part of one; what has an "rmse" is a score.
    rmses
        The test RMSE of every subset in 1000 dollars, (8192,), by ridge.
    """
    if isinstance(value, list):
        return [rank(item, rmses) for item in value]
    if not isinstance(value, dict):
        return value
    value = {name: rank(item, rmses) for name, item in value.items()}
    if "rmse" in value:
        # A refit is one of the subsets itself, but for round-off.
        better = {ridge: int((all_rmse < value["rmse"] - 1e-6).sum()) for ridge, all_rmse in rmses.items()}
        value["rank"] = {ridge: count + 1 for ridge, count in better.items()}
        value["top_percent"] = {ridge: 100 * (count + 1) / len(rmses[ridge]) for ridge, count in better.items()}
    return value


def describe(rmse: np.ndarray) -> dict[str, Any]:
    """The best subset, and quantiles of the test RMSE over all of them."""
    best = int(rmse.argmin())
    quantiles = {str(q): float(np.quantile(rmse, q)) for q in (0.0, 0.0005, 0.01, 0.1, 0.5, 1.0)}
    return {"best": [name for k, name in enumerate(COLUMNS) if best >> k & 1], "rmse_quantiles": quantiles}


def plot(rmses: dict[str, np.ndarray], row: dict) -> np.ndarray:
    """Histograms of the subsets' test RMSE, a panel per ridge, with the scores of a ranked row and their ranks."""
    _, axes = plt.subplots(len(rmses), 1, figsize=(11.5, 3.2 * len(rmses)), sharex=True, layout="constrained")
    axes = np.atleast_1d(axes)
    edges = np.linspace(min(map(np.min, rmses.values())) - 0.1, max(map(np.max, rmses.values())) + 0.1, 140)
    for ax, (ridge, rmse) in zip(axes, rmses.items(), strict=True):
        kind, alpha = RIDGES[ridge]
        ax.hist(rmse, edges, color="#c8c8c8")
        top = ax.get_ylim()[1]
        for name, (marked, colour, style) in _marks(row, ridge).items():
            label = f"{name}\n{marked['rmse']:.2f}, rank {marked['rank'][ridge]:,}"
            ax.vlines(marked["rmse"], 0, top, color=colour, linestyle=style, linewidth=1.8, label=label)
        ax.set_ylim(0, top)
        title = {"additive": "the sum of the columns' RBFs", "joint": "one RBF on the columns jointly"}[kind]
        ax.set_title(f"Kernel ridge with {title}, alpha = {alpha:g}", fontsize=10, loc="left")
        ax.set_ylabel(f"subsets of {len(rmse):,}")
        ax.legend(
            frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), labelspacing=0.9, alignment="left",
            title=f"test RMSE, rank among the {len(rmse):,}",
        )  # fmt: skip
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("test RMSE [1000 dollars]")
    return axes


def _marks(row: dict, ridge: str) -> dict[str, tuple[dict, str, Any]]:
    """{name: (score, colour, line style)} of what is marked in the histogram of a ridge."""
    svi, dashed = row["svi"][0], (0, (5, 2))
    everything = "ridge on all, additive" if ridge.startswith("additive") else "ridge on all, joint"
    return {
        "GP-ALPS (SVI)": (svi["averaged"], BLUE, "-"),
        f"ridge on its {', '.join(svi['on'])}": (svi["refit"][ridge], BLUE, dashed),
        "ridge on all": (row["baselines"][everything], "#1b7837", dashed),
        "GP, learnt weighted sum of RBFs": (row["baselines"]["weighted sum of RBFs"], "#762a83", dashed),
        "lasso": (row["baselines"]["lasso"], "#b8860b", (0, (1, 1))),
    }


def draw(row: dict) -> None:
    """Write ``docs/boston_subsets.png``: the figure of a ranked row, with one panel for each kind of ridge."""
    axes = plot(rankings(row["split"], ("additive 0.2", "joint 1")), row)
    axes[0].figure.savefig(FIGURE, dpi=130)
    plt.close(axes[0].figure)
