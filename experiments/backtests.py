"""Five tables, eight origins each: do the command's bands hold what they say, and who forecasts better?

``python -m experiments.backtests`` backtests each of ``own_data``'s tables with its own processes, by the command's
model and by the paper's, beside the last value, a cycle before, AutoARIMA, AutoETS (statsforecast) and a GP per output.
A table and model is a row of ``docs/real_tables/backtests.json``.
"""

import shlex
import time

import click
import jax
import numpy as np
import numpyro
import pandas as pd
from scipy.stats import norm

import alps_ppl as alps
from alps_ppl.app.backtest import Window
from alps_ppl.app.backtest_run import first_problem
from alps_ppl.app.fitting import fit
from alps_ppl.app.problem import Problem
from alps_ppl.results.backtests import INTERVAL, Backtest, by_origin
from experiments import store
from experiments.baselines import seasonal_gp
from experiments.own_data import DATA, TABLES

PATH = store.ROOT / "docs" / "real_tables" / "backtests.json"
# How far ahead, about a cycle of what the table has.
HORIZONS = {"us_hourly_temps": "7d", "fed_fx": "1y", "elnino_sst": "2y", "us_macro": "1y", "minnesota": "0.5y"}
ORIGINS = 8
LENGTHS = {"num_warmup": 200, "num_samples": 200, "num_chains": 2}


def first(name: str, model: str) -> tuple[pd.DataFrame, list[Window], Problem]:
    """The whole table, its windows, and the problem of what is before the first origin."""
    parsed = fit.make_context("fit", [str(DATA / TABLES[name].file), *shlex.split(TABLES[name].options), "--out", "."])
    options = {key: value for key, value in parsed.params.items() if key in COMPOSED and value is not None}
    if columns := options.pop("outputs", None):
        options["outputs"] = columns.split(",")
    options |= {"horizon": HORIZONS[name], "origins": ORIGINS, "drop_spikes": False}
    table, found, problem, _ = first_problem(DATA / TABLES[name].file, paper_model=model == "paper", **options)
    return table, found, problem


COMPOSED = ("time", "outputs", "latents", "num_decoys", "time_unit", "log")


def row(name: str, model: str, seed: int) -> dict:
    """Scores of all forecasts, gates by origin, and seconds."""
    table, found, problem = first(name, model)
    begin = time.perf_counter()
    backtest = alps.backtest(
        table,
        problem.model,
        HORIZONS[name],
        origins=ORIGINS,
        time_unit="years" if "--time-unit years" in TABLES[name].options else None,
        log=problem.data.log,
        rng_key=jax.random.key(seed),
        others=model == "default",
        progress_bar=False,
        **LENGTHS,
    )
    seconds = time.perf_counter() - begin
    cells = backtest.cells
    if model == "default":
        gp = [_gp(table, window, TABLES[name].season, problem.data.log) for window in found]
        cells = pd.concat([cells, *gp], ignore_index=True)
    scores = Backtest(cells, backtest.gates).scores
    return {
        "scores": scores.round(4).to_dict("index"),
        "gates": {process: values.round(3).tolist() for process, values in by_origin(backtest.gates).iterrows()},
        "log": problem.data.log,
        "max_r_hat": float(backtest.gates.r_hat.max()),
        "seconds": round(seconds, 1),
    }


def _gp(table: pd.DataFrame, window: Window, season: int, log: list[str]) -> pd.DataFrame:
    """Cells of a GP per output of one origin, in training sds."""
    held = np.arange(window.end) >= window.train
    data = alps.Data(table.index[: window.end], table.iloc[: window.end], held_out={"test": held}, log=log)
    t, frames = data.inputs, []
    for i, output in enumerate(data.outputs):
        seen = data.train[:, i]
        mean, sd = seasonal_gp(t[seen], data.standardised[seen, i], t[held], season)
        observed = data.standardised[held, i]
        frame = pd.DataFrame({"forecast": "a GP per output", "output": output, "error": observed - mean})
        frame["nlpd"], frame["pit"] = -norm.logpdf(observed, mean, sd), norm.cdf(observed, mean, sd)
        frames.append(frame[~np.isnan(observed)])
    return pd.concat(frames).assign(origin=str(table.index[window.train - 1]))


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(TABLES)), metavar="[TABLE]...")
@click.option("--seed", default=0, show_default=True)
def main(names: tuple[str, ...], seed: int) -> None:
    """Measure what isn't kept yet, and print the scores."""
    numpyro.enable_x64()
    cases = [{"table": n, "model": m, "seed": seed} for n in names or TABLES for m in ("default", "paper")]
    command = "python -m experiments.backtests"
    for found in store.collect(PATH, cases, lambda c: row(c["table"], c["model"], c["seed"]), command=command):
        click.echo(f"{found['table']}, {found['model']}, {found['seconds']} s, R-hat {found['max_r_hat']:.2f}")
        scores = pd.DataFrame(found["scores"]).T
        click.echo(scores.to_string())
    rows = [row["scores"]["alps_ppl"] for row in store.load(PATH)["rows"] if row["model"] == "default"]
    pooled = np.average([row["in 90 %"] for row in rows], weights=[row["cells"] for row in rows])
    click.echo(f"{INTERVAL:.0%} bands of the command's model hold {pooled:.1%} of all cells")


if __name__ == "__main__":
    main()
