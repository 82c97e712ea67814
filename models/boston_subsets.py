"""All 8,192 kernel ridge regressions on subsets of the Boston columns, and GP-ALPS among them (paper, 4.3, App. A).

"Kernelised ridge regression" on a set of columns can be read in two ways. *Additive*: the covariance is the sum of the
columns' RBFs, as in GP-ALPS with those gates on and every H at 1, its prior sd; alpha is the model's noise variance,
0.2, or scikit-learn's default, 1. *Joint*: scikit-learn's ``KernelRidge(kernel="rbf", gamma=0.5, alpha=1)`` on the
columns together, whose covariance is the product of the columns' RBFs. The price is standardised in all of them; the
empty set predicts the training mean.

``python -m models.boston_subsets --engine svi --ranks`` measures ten splits of the paper's reading and writes
``docs/claims/boston_housing.json`` after every run, and ``docs/boston_subsets.png``. What is there already isn't
measured again.
"""

import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import alps_ppl as alps
from alps_ppl import runner
from alps_ppl.plots import COLOURS
from models import boston_housing as boston
from models import results

RIDGES = {"additive 0.2": ("additive", 0.2), "additive 1": ("additive", 1.0), "joint 1": ("joint", 1.0)}
READINGS = {
    "raw, noise 0.2": (False, 0.2),
    "standardised, noise 0.2": (True, 0.2),
    "raw, learnt noise": (False, "learnt"),
    "standardised, learnt noise": (True, "learnt"),
}
PAPERS_READING = "raw, noise 0.2"
LEARNT_NOISE = dist.InverseGamma(2.0, 0.2)
PAPER = ("chas", "rm", "ptratio", "lstat")
# As in GIBBS, but shorter: on raw inputs a sweep of four chains takes a quarter of a second or more.
SWEEPS = boston.GIBBS | {"num_warmup": 100, "num_samples": 200}
UNITS = {
    "rmse": "1000 dollars",
    "rmse_sd": "training sds",
    "nlpd": "minus the mean log predictive density per test row, price in training sds",
    "rank": "1 + the number of the 8,192 subsets of raw columns whose kernel ridge has a lower test RMSE, by ridge",
    "noise_variance": "squared training sds",
    "seconds": "of the fit",
}
ROOT = Path(__file__).parents[1]
NAME = "boston_housing"
FIGURE = ROOT / "docs" / "boston_subsets.png"
RESULTS = ROOT / "results" / "boston_subsets"


def subset_rmses(data: alps.Data, ridge: str) -> np.ndarray:
    """(8192,) test RMSE in 1000 dollars of kernel ridge on every subset; bit k of its number: column k is in."""
    kind, alpha = RIDGES[ridge]
    test = data.split[:, 0] == "test"
    y, y_test = data.train_y[:, 0], data.standardised[test, 0]
    solve = {"additive": _additive_predictions, "joint": _joint_predictions}[kind]
    num_columns = data.inputs.shape[1]
    rmse = np.empty(2**num_columns)
    for subset, mean in solve(data.train_inputs, data.inputs[test], y, alpha):
        rmse[subset] = np.sqrt(np.mean((y_test - mean) ** 2))
    return rmse * data.scale[0]


def _additive_predictions(train: np.ndarray, test: np.ndarray, y: np.ndarray, alpha: float) -> Iterator:
    """(subset, test means) by the weights of the columns' features, whose Gram matrix all subsets share.

    A subset needs only its own rows and columns of that Gram matrix. Where it has more features than there are rows,
    the sum of the columns' own Gram matrices is smaller.
    """
    both = boston.column_grams(np.concatenate([train, test]), np.concatenate([train, test]))
    n = len(train)
    features = [_features(gram) for gram in both]
    owner = np.repeat(np.arange(len(features)), [f.shape[1] for f in features])
    all_features = np.concatenate(features, axis=1)
    phi, phi_test = all_features[:n], all_features[n:]
    gram, moment = phi.T @ phi, phi.T @ y
    by_rows = _walk(both[:, :, :n], np.add, np.zeros((len(both[0]), n)))
    for subset, K in by_rows:
        mine = np.flatnonzero(subset >> owner & 1)
        if len(mine) < n:
            weights = _ridge(gram[np.ix_(mine, mine)], moment[mine], alpha)
            yield subset, phi_test[:, mine] @ weights
        else:
            yield subset, K[n:] @ _ridge(K[:n].copy(), y, alpha)


def _joint_predictions(train: np.ndarray, test: np.ndarray, y: np.ndarray, alpha: float) -> Iterator:
    """(subset, test means): an RBF on several columns is the product of the columns' RBFs."""
    n = len(train)
    grams = boston.column_grams(np.concatenate([train, test]), train)
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


def ranking(split: int, ridges: tuple[str, ...]) -> dict[str, np.ndarray]:
    """``subset_rmses`` of a split's raw inputs by ridge; kept in ``results/``, since each takes half a minute."""
    found = {}
    for ridge in ridges:
        path = RESULTS / f"{split}_{ridge.replace(' ', '_')}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, subset_rmses(boston.data(split), ridge))
        found[ridge] = np.load(path)
    return found


def measure(
    split: int,
    *,
    standardise: bool,
    noise: float | str,
    engines: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    num_inducing: int = boston.SVI["num_inducing"],
) -> dict:
    """One split and reading, as plain values: the engines' runs, one per seed, and the baselines.

    ``noise``: a fixed variance, or "learnt" with an InverseGamma(2, 0.2) prior. ``engines``: of "svi" and "gibbs".
    """
    data, model = _data_and_model(split, standardise, noise)
    settings = {"svi": boston.SVI | {"num_inducing": num_inducing}, "gibbs": SWEEPS}
    row: dict[str, Any] = {
        engine: [_measure_engine(engine, data, model, seed, settings[engine]) for seed in seeds] for engine in engines
    }
    row["baselines"] = {name: score(data, *pair) for name, pair in boston.baselines(data).items()}
    row["baselines"]["ridge on all, joint"] = refits(data, boston.columns())["joint 1"]
    row["paper's four"] = refits(data, PAPER)
    return row


def _data_and_model(split: int, standardise: bool, noise: float | str, **settings: Any) -> tuple[alps.Data, alps.ALPS]:
    data = boston.data(split, standardise)
    return data, boston.model(data, LEARNT_NOISE if noise == "learnt" else noise, **settings)


def bound_held_open(split: int, reading: str, columns: Sequence[str], num_inducing: int, seed: int = 0) -> dict:
    """SVI's bound on the same evidence when some columns' gates are held open.

    Of two sets so compared, and with other gates free, SVI's family prefers the one with the higher bound. A gate that
    is held open has a KL of log 2 from its prior of a half.
    """
    data, model = _data_and_model(split, *READINGS[reading], always_on=columns)
    inputs, y = model.check(data.train_inputs, data.train_y)
    settings = boston.SVI | {"num_inducing": num_inducing}
    fit = runner.fit("svi", model, inputs, y, settings, jax.random.key(seed))
    elbo = fit.elbo - len(columns) * np.log(2)
    return {"columns": list(columns), "settings": settings, "elbo": elbo, "elbo_mcse": fit.elbo_mcse}


def _measure_engine(engine: str, data: alps.Data, model: alps.ALPS, seed: int, settings: dict) -> dict:
    """The gates, what is on, and the scores of the averaged prediction and of the refits of what is on."""
    inputs, y = model.check(data.train_inputs, data.train_y)
    begin = time.perf_counter()
    posterior = runner.fit(engine, model, inputs, y, settings, jax.random.key(seed))
    result: dict[str, Any] = {"seed": seed, "settings": settings, "seconds": round(time.perf_counter() - begin, 1)}
    tree = alps.to_datatree(posterior, model, inputs, y, num_draws=200)
    table = alps.inclusion_table(tree)
    result["on"] = list(table.latent[table.probability > 0.5])
    result["probability"] = dict(zip(table.latent, map(float, table.probability), strict=True))
    if engine == "svi":
        result |= {"elbo": posterior.elbo, "elbo_mcse": posterior.elbo_mcse}
    else:
        result |= {"max_rhat": float(table.r_hat.max()), "min_ess": float(table.ess.min())}
        result["lp_rhat"] = float(alps.diagnostics.log_joint_r_hat(tree))
    if model.learns_noise:
        result["noise_variance"] = float(tree["posterior"]["noise_variance"].mean())
    prediction = data.to_units(alps.predict(posterior, model, inputs, y, data.inputs))
    density = alps.log_predictive_density(posterior, model, inputs, y, data.inputs, data.standardised)
    averaged = score(data, prediction["mean"].values, prediction["sd"].values)
    averaged["nlpd"] = -float(density.values[data.split == "test"].mean())  # of the mixture itself
    return result | {"averaged": averaged, "refit": refits(data, result["on"])}


def refits(data: alps.Data, names: Iterable[str]) -> dict[str, dict]:
    """Kernel ridge on some columns, in each of ``RIDGES``, with the sd of the GP of that noise variance."""
    chosen = [boston.columns().index(name) for name in names]
    found = {}
    for ridge, (kind, alpha) in RIDGES.items():
        rbf = RBF(1.0, "fixed") if kind == "joint" else boston.WeightedRBFs(np.ones(len(chosen)), "fixed")
        mean, sd = boston.gp(data, rbf + WhiteKernel(alpha, "fixed"), chosen) if chosen else (data.loc, data.scale)
        found[ridge] = score(data, mean, sd)
    return found


def score(data: alps.Data, mean: np.ndarray, sd: np.ndarray) -> dict[str, Any]:
    """Of a Gaussian prediction in the file's units, on the test rows; ``UNITS`` says what is in which unit."""
    test = data.split == "test"
    mean, sd = (np.broadcast_to(values, data.y.shape) for values in (mean, sd))
    rmse = float(np.sqrt(np.mean((data.y - mean)[test] ** 2)))
    log_density = norm.logpdf(data.y, mean, sd)[test].mean() + np.log(data.scale[0])
    return {"rmse": rmse, "rmse_sd": rmse / float(data.scale[0]), "nlpd": -float(log_density)}


def rank(value: Any, ranks: dict[str, np.ndarray]) -> Any:
    """A measured row with the rank of every score in it among the subsets of each ridge; 1: none is better."""
    if isinstance(value, list):
        return [rank(item, ranks) for item in value]
    if not isinstance(value, dict):
        return value
    value = {name: rank(item, ranks) for name, item in value.items()}
    if "rmse" in value:
        # A refit is one of the subsets itself, but for round-off.
        better = {ridge: int((rmses < value["rmse"] - 1e-6).sum()) for ridge, rmses in ranks.items()}
        value["rank"] = {ridge: count + 1 for ridge, count in better.items()}
        value["top_percent"] = {ridge: 100 * (count + 1) / len(ranks[ridge]) for ridge, count in better.items()}
    return value


def _describe(rmse: np.ndarray) -> dict:
    best = int(rmse.argmin())
    quantiles = {str(q): float(np.quantile(rmse, q)) for q in (0.0, 0.0005, 0.01, 0.1, 0.5, 1.0)}
    return {"best": [name for k, name in enumerate(boston.columns()) if best >> k & 1], "rmse_quantiles": quantiles}


def plot_subsets(ranks: dict[str, np.ndarray], row: dict, axes: Any = None) -> np.ndarray:
    """Histograms of the subsets' test RMSE, a panel per ridge, with the marks of a ``measure``d row and their ranks."""
    if axes is None:
        _, axes = plt.subplots(len(ranks), 1, figsize=(11.5, 3.2 * len(ranks)), sharex=True, layout="constrained")
    axes = np.atleast_1d(axes)
    edges = np.linspace(min(map(np.min, ranks.values())) - 0.1, max(map(np.max, ranks.values())) + 0.1, 140)
    for ax, (ridge, rmses) in zip(axes, ranks.items(), strict=True):
        kind, alpha = RIDGES[ridge]
        ax.hist(rmses, edges, color="#c8c8c8")
        top = ax.get_ylim()[1]
        for name, (marked, colour, style) in _marks(row, ridge).items():
            label = f"{name}\n{marked['rmse']:.2f}, rank {marked['rank'][ridge]:,}"
            ax.vlines(marked["rmse"], 0, top, color=colour, linestyle=style, linewidth=1.8, label=label)
        ax.set_ylim(0, top)
        title = {"additive": "the sum of the columns' RBFs", "joint": "one RBF on the columns jointly"}[kind]
        ax.set_title(f"Kernel ridge with {title}, alpha = {alpha:g}", fontsize=10, loc="left")
        ax.set_ylabel(f"subsets of {len(rmses):,}")
        ax.legend(
            frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5), labelspacing=0.9, alignment="left",
            title=f"test RMSE, rank among the {len(rmses):,}",
        )  # fmt: skip
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("test RMSE [1000 dollars]")
    return axes


def _marks(row: dict, ridge: str) -> dict[str, tuple[dict, str, Any]]:
    """{name: (score, colour, line style)} of what is marked in the histogram of a ridge."""
    svi = row["svi"][0]
    everything = "ridge on all, additive" if ridge.startswith("additive") else "ridge on all, joint"
    return {
        "GP-ALPS (SVI)": (svi["averaged"], COLOURS["svi"], "-"),
        f"ridge on its {', '.join(svi['on'])}": (svi["refit"][ridge], COLOURS["svi"], (0, (5, 2))),
        "ridge on all": (row["baselines"][everything], "#1b7837", (0, (5, 2))),
        "GP, learnt weighted sum of RBFs": (row["baselines"]["weighted sum of RBFs"], "#762a83", (0, (5, 2))),
        "lasso": (row["baselines"]["lasso"], "#b8860b", (0, (1, 1))),
    }


def draw(row: dict) -> None:
    """The figure of a row of the paper's reading."""
    axes = plot_subsets(ranking(row["split"], ("additive 0.2", "joint 1")), row)
    axes[0].figure.savefig(FIGURE, dpi=130)
    plt.close(axes[0].figure)


def _save(rows: list[dict], commands: list[str], minutes: float) -> None:
    report = {
        "experiment": "Boston housing: GP-ALPS, its baselines and all 8,192 kernel ridge regressions",
        "command": commands,
        "minutes": minutes,
        "units": UNITS,
        "rows": sorted(rows, key=lambda row: (list(READINGS).index(row["reading"]), row["split"])),
    }
    results.save(NAME, report)


def _previous() -> tuple[dict, list[str], float]:
    """The rows by reading and split, the commands and the minutes of the runs before this one."""
    report = {"command": []} | results.load(NAME)
    return {(row["reading"], row["split"]): row for row in report["rows"]}, report["command"], report["minutes"]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--splits", default=10, type=click.IntRange(min=1), help="Splits 0 to this, less one.")
@click.option(
    "--seeds",
    default=1,
    type=click.IntRange(min=1),
    help="Runs of each engine on each split: keys 0 to this, less one.",
)
@click.option("--reading", "readings", multiple=True, type=click.Choice(list(READINGS)), default=[PAPERS_READING])
@click.option(
    "--engine", "engines", multiple=True, type=click.Choice(["svi", "gibbs"]), help="One or both, to measure."
)
@click.option("--num-inducing", default=boston.SVI["num_inducing"], type=click.IntRange(min=1), help="Of SVI.")
@click.option("--held-open", is_flag=True, help="SVI's bound with what each engine selects held open.")
@click.option("--ranks", is_flag=True, help="Rank all that is there among all 8,192 subsets: a minute a split, once.")
def main(
    splits: int,
    seeds: int,
    readings: tuple[str, ...],
    engines: tuple[str, ...],
    num_inducing: int,
    held_open: bool,
    ranks: bool,
):
    """Measure GP-ALPS on the Boston data; adds to docs/claims/boston_housing.json what isn't there yet."""
    if not (engines or held_open or ranks):
        raise click.UsageError(
            "expected --engine svi, --engine gibbs or --held-open to measure, or --ranks to rank what is there"
        )
    numpyro.enable_x64()
    rows, commands, minutes = _previous()
    commands.append(" ".join(["python -m models.boston_subsets", *map(shlex.quote, sys.argv[1:])]))

    def note(begin: float) -> None:
        nonlocal minutes
        minutes += (time.perf_counter() - begin) / 60
        _save(list(rows.values()), list(dict.fromkeys(commands)), minutes)

    for reading, split, seed, engine in product(readings, range(splits), range(seeds), engines):
        row = rows.setdefault((reading, split), {"reading": reading, "split": split})
        runs = row.get(engine, [])
        inducing = num_inducing if engine == "svi" else None
        if any((run["seed"], run["settings"].get("num_inducing")) == (seed, inducing) for run in runs):
            continue
        begin = time.perf_counter()
        standardise, noise = READINGS[reading]
        one = {"engines": [engine], "seeds": [seed], "num_inducing": num_inducing}
        found = measure(split, standardise=standardise, noise=noise, **one)
        row.update(found | row | {engine: runs + found[engine]})  # what is ranked already stays
        note(begin)
        run = row[engine][-1]
        click.echo(f"{reading}, split {split}, seed {seed}, {engine}: {' '.join(run['on'])} ({run['seconds']:.0f} s)")
    for reading, split in product(readings, range(splits)) if held_open else ():
        row = rows.get((reading, split), {})
        for engine in ("svi", "gibbs"):
            held = row.setdefault("held open", {})
            if engine in held or engine not in row:
                continue
            begin = time.perf_counter()
            held[engine] = bound_held_open(split, reading, row[engine][0]["on"], num_inducing)
            note(begin)
            click.echo(f"{reading}, split {split}: held open {' '.join(held[engine]['columns'])}")
    for key, row in rows.items() if ranks else ():
        begin = time.perf_counter()
        found = ranking(row["split"], tuple(RIDGES))
        rows[key] = rank(row, found) | {"subsets": {ridge: _describe(rmse) for ridge, rmse in found.items()}}
        if key == (PAPERS_READING, 0):
            draw(rows[key])
        note(begin)
        click.echo(f"{row['reading']}, split {row['split']}: ranked")


if __name__ == "__main__":
    main(prog_name="python -m models.boston_subsets")
