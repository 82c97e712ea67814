"""4.3: GP-ALPS on Boston housing, over splits, scalings and noises, among all 8,192 kernel ridge regressions.

``python -m experiments.boston --engine svi --ranks`` measures ten splits of the paper's reading and keeps the rows in
``docs/claims/boston_housing.json``. What is kept isn't measured again. A *reading* of the paper is a scaling of the
inputs and a noise variance, since it states neither.
"""

import shlex
import sys
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import click
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import alps_ppl as alps
from alps_ppl.results.inclusion import log_joint_r_hat
from experiments import store, subsets
from models import boston_housing

# Whether inputs are standardised, and the noise variance in squared training sds of the price.
READINGS: dict[str, tuple[bool, Any]] = {
    "raw, noise 0.2": (False, 0.2),
    "standardised, noise 0.2": (True, 0.2),
    "raw, learnt noise": (False, dist.InverseGamma(2.0, 0.2)),
    "standardised, learnt noise": (True, dist.InverseGamma(2.0, 0.2)),
}
PAPERS_READING = "raw, noise 0.2"
# As in GIBBS, but shorter: on raw inputs a sweep of four chains takes a quarter of a second or more.
SWEEPS = boston_housing.GIBBS | {"num_warmup": 100, "num_samples": 200}
ROWS = store.CLAIMS / "boston_housing.json"
ABOUT = {
    "experiment": "Boston housing: GP-ALPS, its baselines and all 8,192 kernel ridge regressions",
    "units": {
        "rmse": "1000 dollars",
        "rmse_sd": "training sds",
        "nlpd": "minus the mean log predictive density per test row, price in training sds",
        "rank": "1 + the number of the 8,192 subsets of raw columns whose kernel ridge has a lower test RMSE, by ridge",
        "noise_variance": "squared training sds",
        "seconds": "of the fit",
    },
}


def data_and_model(reading: str, split: int, always_on: Sequence[str] = ()) -> tuple[alps.Data, alps.ALPS]:
    """The model file's, in a reading."""
    standardise, noise_variance = READINGS[reading]
    data = boston_housing.data(split, standardise)
    return data, boston_housing.model(data, noise_variance, always_on)


def add_run(row: dict, engine: str, seed: int, num_inducing: int) -> dict[str, Any]:
    """What a row lacks of an engine's run with a seed, and of the baselines; ``{}`` if that run is there."""
    settings = boston_housing.SVI | {"num_inducing": num_inducing} if engine == "svi" else SWEEPS
    runs = row.get(engine, [])
    if any((run["seed"], run["settings"].get("num_inducing")) == (seed, settings.get("num_inducing")) for run in runs):
        return {}
    data, model = data_and_model(row["reading"], row["split"])
    run = measure(engine, data, model, seed, settings)
    click.echo(f"{row['reading']}, split {row['split']}, seed {seed}, {engine}: {' '.join(run['on'])}")
    return {engine: [*runs, run]} | ({} if "baselines" in row else baselines(data))


def measure(engine: str, data: alps.Data, model: alps.ALPS, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The gates, what is on (above 1/2), and the scores of the averaged prediction and of ridges on what is on."""
    begin = time.perf_counter()
    fit_engine = {"svi": alps.fit_svi, "gibbs": alps.fit_gibbs}[engine]
    fit = fit_engine(
        model, data.train_inputs, data.train_y, rng_key=jax.random.key(seed), progress_bar=False, **settings
    )
    seconds = round(time.perf_counter() - begin, 1)
    tree = alps.to_datatree(fit, num_draws=200)
    table = alps.inclusion_table(tree)
    on = list(table.latent[table.probability > 0.5])
    run: dict[str, Any] = {"seed": seed, "settings": settings, "seconds": seconds, "on": on}
    run["probability"] = dict(zip(table.latent, map(float, table.probability), strict=True))
    if engine == "svi":
        run |= {"elbo": fit.elbo, "elbo_mcse": fit.elbo_mcse}
    else:
        run |= {"max_rhat": float(table.r_hat.max()), "min_ess": float(table.ess.min())}
        run["lp_rhat"] = float(log_joint_r_hat(tree))
    if model.learns_noise:
        run["noise_variance"] = float(tree["posterior"]["noise_variance"].mean())
    prediction = data.to_units(alps.predict(fit, data.inputs))
    density = alps.log_predictive_density(fit, data.inputs, data.standardised)
    averaged = subsets.score(data, prediction["mean"].values, prediction["sd"].values)
    averaged["nlpd"] = -float(density.values[data.split == "test"].mean())  # of the mixture itself
    return run | {"averaged": averaged, "refit": subsets.refits(data, on)}


def baselines(data: alps.Data) -> dict[str, Any]:
    """The scores of the model file's baselines, of the joint ridge on all columns, and of ridges on the paper's set."""
    scores = {name: subsets.score(data, *pair) for name, pair in boston_housing.baselines(data).items()}
    scores["ridge on all, joint"] = subsets.refits(data, subsets.COLUMNS)["joint 1"]
    return {"baselines": scores, "paper's four": subsets.refits(data, subsets.PAPER)}


def add_bound(row: dict, engine: str, num_inducing: int) -> dict[str, Any]:
    """SVI's bound on the evidence when the gates of what an engine selected are held open.

    Of two sets of columns so compared, with the other gates free, SVI's family prefers the one with the higher bound.
    """
    held = row.get("held open", {})
    if engine in held or engine not in row:
        return {}
    columns = row[engine][0]["on"]
    return {"held open": held | {engine: bound_held_open(row["reading"], row["split"], columns, num_inducing)}}


def bound_held_open(reading: str, split: int, columns: Sequence[str], num_inducing: int) -> dict[str, Any]:
    """SVI's bound with some columns always on, on the evidence of the model in which they are on with probability 1/2.

    A gate that is held open has a KL of log 2 from its prior.
    """
    data, model = data_and_model(reading, split, columns)
    settings = boston_housing.SVI | {"num_inducing": num_inducing}
    key = jax.random.key(0)
    fit = alps.fit_svi(model, data.train_inputs, data.train_y, rng_key=key, progress_bar=False, **settings)
    elbo = fit.elbo - len(columns) * np.log(2)
    return {"columns": list(columns), "settings": settings, "elbo": elbo, "elbo_mcse": fit.elbo_mcse}


def add_ranks(row: dict) -> dict[str, Any]:
    """All scores of a row ranked among all subsets; draws the figure of the paper's reading and split 0."""
    rmses = subsets.rankings(row["split"])
    ranked = subsets.rank(row, rmses) | {"subsets": {ridge: subsets.describe(rmse) for ridge, rmse in rmses.items()}}
    if (row["reading"], row["split"]) == (PAPERS_READING, 0):
        subsets.draw(ranked)
    return ranked


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--splits", default=10, type=click.IntRange(min=1), help="Splits 0 to this, less one.")
@click.option("--seeds", default=1, type=click.IntRange(min=1), help="Runs of an engine: keys 0 to this, less one.")
@click.option("--reading", "readings", multiple=True, type=click.Choice(list(READINGS)), default=[PAPERS_READING])
@click.option("--engine", "engines", multiple=True, type=click.Choice(["svi", "gibbs"]), help="To measure.")
@click.option("--num-inducing", default=boston_housing.SVI["num_inducing"], type=click.IntRange(min=1), help="Of SVI.")
@click.option("--held-open", is_flag=True, help="SVI's bound with what each engine selects held open.")
@click.option("--ranks", is_flag=True, help="Rank all that is kept among all 8,192 subsets: a minute a split, once.")
def main(
    splits: int,
    seeds: int,
    readings: tuple[str, ...],
    engines: tuple[str, ...],
    num_inducing: int,
    held_open: bool,
    ranks: bool,
):
    """Measure GP-ALPS on random splits of the Boston data, and rank it; only what isn't kept yet."""
    if not (engines or held_open or ranks):
        raise click.UsageError(
            "expected --engine svi, --engine gibbs or --held-open to measure, or --ranks to rank what is kept"
        )
    numpyro.enable_x64()
    about = ABOUT | {"command": shlex.join(["python", "-m", "experiments.boston", *sys.argv[1:]]), "again": True}
    cases = [{"reading": reading, "split": split} for reading, split in product(readings, range(splits))]
    for engine, seed in product(engines, range(seeds)):
        store.collect(ROWS, cases, lambda row, e=engine, s=seed: add_run(row, e, s, num_inducing), **about)
    for engine in ("svi", "gibbs") if held_open else ():
        store.collect(ROWS, cases, lambda row, e=engine: add_bound(row, e, num_inducing), **about)
    if ranks:
        kept = [{name: row[name] for name in ("reading", "split")} for row in store.load(ROWS)["rows"]]
        store.collect(ROWS, kept, add_ranks, **about)


if __name__ == "__main__":
    main(prog_name="python -m experiments.boston")
