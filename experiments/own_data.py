"""Five tables that the paper doesn't have, each by ``alps-ppl fit``: what is behind them, and their last tenth.

``python -m experiments.own_data`` runs the commands below, each with the last tenth of the times held out, with the
command's own model, with ranges in the place of lengthscales, and with the paper's model. It scores the forecasts
beside others': a seasonal naive forecast and AutoETS (statsforecast), and a GP per output (tinygp). It writes
``docs/claims/own_data.json`` and ``docs/own_data.md``; what is kept isn't measured again.

The other forecasts see one output at a time. They take no missing cells, so theirs are interpolated.
"""

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import jax
import numpy as np
import numpyro
import pandas as pd
from scipy.stats import norm

from alps_ppl.app.baselines import statsforecast
from alps_ppl.app.cli import cli
from experiments import store
from experiments.baselines import seasonal_gp
from experiments.pages import render

DATA = store.ROOT / "models" / "data"
ROWS = store.CLAIMS / "own_data.json"
PAGE = store.ROOT / "docs" / "own_data.md"
COVERAGE = 0.9
UNITS = {"rmse": "training sds", "log_density": "nats per cell, outputs in training sds", "seconds": "the command"}


class Table(NamedTuple):
    """A file, what to look for in it, its steps per season, and what a sensible answer is."""

    file: str
    options: str
    season: int
    sensible: str


TABLES = {
    "us_hourly_temps": Table(
        "us_hourly_temps_2010_3h.csv",
        "--time date --outputs temp_seattle,temp_sf --latent 'yearly = linear_periodic(1y)' "
        "--latent 'half-yearly = linear_periodic(0.5y)' --latent 'daily = linear_periodic(24h)' "
        "--latent 'half-daily = linear_periodic(12h)' --latent 'slow = matern12(30d)' --latent 'rough = matern12(1d)' "
        "--decoys 2",
        8,
        "A daily and a yearly cycle, shared; decoys off.",
    ),
    "fed_fx": Table(
        "fed_fx_monthly_1994_2010.csv",
        "--time date --latent 'yearly = linear_periodic(1y)' --latent 'half-yearly = linear_periodic(0.5y)' "
        "--latent 'slow = matern12(10y)' --latent 'rough = matern12(1y)' --decoys 2",
        12,
        "No seasonality: cycles off.",
    ),
    "elnino_sst": Table(
        "elnino_sst.csv",
        "--time t --time-unit years --latent 'rough = matern12(2y)' --latent 'slow = matern32(20y)' "
        "--latent 'trend = linear()' --decoys 2",
        1,
        "A short memory that all months share; no sharp cycle: decoys off.",
    ),
    "us_macro": Table(
        "us_macro.csv",
        "--time t --time-unit years --latent 'trend = linear()' --latent 'slow = matern32(20y)' "
        "--latent 'rough = matern12(4y)' --latent 'yearly = linear_periodic(1y)' --decoys 2",
        4,
        "A trend or a slow process; no season, since the series are adjusted for it.",
    ),
    "minnesota": Table(
        "minnesota_weather_1927_1936.csv",
        "--time t --time-unit years --latent 'yearly = linear_periodic(1y)' "
        "--latent 'half-yearly = linear_periodic(0.5y)' --latent 'slow = matern12(3y)' "
        "--latent 'rough = matern12(0.2y)' --decoys 2",
        12,
        "A yearly cycle, shared by 18 series; decoys off.",
    ),
}


# The models, and what the command has for them.
MODELS = {"default": "", "ranges": "", "paper": "--paper-model "}
WORDS = {"default": "fit", "ranges": "fit, ranges", "paper": "paper's model"}
# A range goes from a lengthscale's fifth to five times it.
AROUND = 5
LENGTHSCALE = re.compile(r"(matern\d\d)\(([\d.]+)(\w+)\)")


def _with_ranges(options: str) -> str:
    """The options with a range in the place of every lengthscale."""

    def around(found: re.Match) -> str:
        name, number, unit = found.groups()
        return f"{name}({float(number) / AROUND:g}{unit}..{float(number) * AROUND:g}{unit})"

    return LENGTHSCALE.sub(around, options)


def command(table: Table, model: str, out: str | Path, seed: int) -> list[str]:
    """The ``alps-ppl fit`` that is run; with the paper's model by both engines."""
    file = (DATA / table.file).relative_to(Path.cwd()) if DATA.is_relative_to(Path.cwd()) else DATA / table.file
    fixed = f"{MODELS[model]}--hold-out 10% --seed {seed}"
    options = _with_ranges(table.options) if model == "ranges" else table.options
    return ["fit", str(file), *shlex.split(f"{options} {fixed}"), "--out", str(out)]


def measure(table: str, model: str, seed: int) -> dict:
    """One command's answer and scores, and beside the paper's model the other forecasts' on the same cells."""
    folder = Path("results") / table / model
    begin = time.perf_counter()
    cli.main([*command(TABLES[table], model, folder, seed), "--no-progress"], standalone_mode=False)
    seconds = time.perf_counter() - begin
    inclusion, cells = (pd.read_csv(folder / name) for name in ("inclusion.csv", "predictions.csv"))
    summary = json.loads((folder / "summary.json").read_text())
    jax.clear_caches()
    wide = {engine: rows.set_index("latent").probability.to_dict() for engine, rows in inclusion.groupby("engine")}
    ours = {engine: _cell_scores(rows) for engine, rows in cells.groupby("engine")}
    others = _others(cells[cells.engine == "gibbs"], TABLES[table].season) if model == "paper" else {}
    scores = {name: rows.mean().round(4).to_dict() | {"num_cells": len(rows)} for name, rows in (ours | others).items()}
    for row in scores.values():
        row["rmse"] = round(float(np.sqrt(row.pop("squared_error"))), 4)
    diagnostics = {key: summary["gibbs"][key] for key in ("max_rhat", "lp_rhat")}
    return {"probability": wide, "scores": scores, "diagnostics": diagnostics, "seconds": round(seconds, 1)}


def _cell_scores(cells: pd.DataFrame) -> pd.DataFrame:
    """Of each observed test cell, in training sds of its output: squared error, log density, whether the band has it.

    The density is the normal's of the predictive mean and sd, as for the other forecasts.
    """
    train = cells[cells.split == "train"].groupby("output")["observed"]
    test = cells[(cells.split == "test") & cells.observed.notna()]
    scale = test.output.map(train.std(ddof=0)).replace(0.0, 1.0)
    error, sd = (test.observed - test["mean"]) / scale, test["sd"] / scale
    inside = (test.observed >= test.lower) & (test.observed <= test.upper)
    return pd.DataFrame({"squared_error": error**2, "log_density": norm.logpdf(error, 0, sd), "coverage": inside})


def _others(cells: pd.DataFrame, season: int) -> dict[str, pd.DataFrame]:
    """The other forecasts' scores; ``cells`` say which are train and test."""
    from statsforecast.models import AutoETS, SeasonalNaive  # an extra, slow to import

    forecasts: dict[str, Callable] = {
        "seasonal naive": lambda t, y, new: statsforecast(SeasonalNaive(season_length=season), y, len(new)),
        "AutoETS": lambda t, y, new: statsforecast(AutoETS(season_length=min(season, 24)), y, len(new)),
        "a GP per output": lambda t, y, new: seasonal_gp(t, y, new, season),
    }
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in forecasts}
    for _, rows in cells.groupby("output", sort=False):
        train = rows[rows.split == "train"]
        seen = train.observed.notna()
        first = seen.idxmax()
        y = train.loc[first:, "observed"].interpolate().ffill().to_numpy()
        test = rows[rows.split == "test"]
        loc, scale = y.mean(), y.std() or 1.0
        for name, forecast in forecasts.items():
            mean, sd = forecast(train.loc[first:, "input"].to_numpy(), (y - loc) / scale, test.input.to_numpy())
            mean, sd = loc + scale * mean, scale * sd
            half = norm.isf((1 - COVERAGE) / 2) * sd
            predicted = test.assign(mean=mean, sd=sd, lower=mean - half, upper=mean + half)
            found[name].append(_cell_scores(pd.concat([train, predicted])))
    return {name: pd.concat(frames) for name, frames in found.items()}


def forecasts(row: dict) -> dict[str, dict]:
    """The scores of a row, by the names of the forecasts on the page."""
    words = WORDS[row["model"]]
    ours = {"gibbs": words, "svi": f"{words}, SVI"}
    return {ours.get(name, name): score for name, score in row["scores"].items()}


def page(rows: list[dict]) -> str:
    """``docs/own_data.md`` from the measured rows."""
    pooled = pd.DataFrame([{"forecast": name, **score} for row in rows for name, score in forecasts(row).items()])
    coverage = {
        name: np.average(scores.coverage, weights=scores.num_cells)
        for name, scores in pooled.groupby("forecast", sort=False)
    }
    by_table = {name: [row for row in rows if row["table"] == name] for name in TABLES}
    tables = [_table(found) for found in by_table.values() if found]
    return render("own_data.md.j2", tables=tables, coverage=coverage, kept=store.load(ROWS))


def _table(rows: list[dict]) -> dict:
    """What the page says of one table."""
    table = TABLES[rows[0]["table"]]
    ours = [column for row in rows for column in forecasts(row) if column.startswith(("fit", "paper"))]
    gates = [probability for row in rows for _, probability in sorted(row["probability"].items())]
    scores = pd.DataFrame({name: score for row in rows for name, score in forecasts(row).items()}).T
    scores = scores.assign(nlpd=lambda frame: -frame.log_density)[["rmse", "nlpd", "coverage"]]
    return {
        "file": table.file,
        "command": shlex.join(["alps-ppl", *command(table, "default", f"results/{rows[0]['table']}", rows[0]["seed"])]),
        "sensible": table.sensible,
        "runs": [
            {
                "model": WORDS[row["model"]],
                "seconds": f"{row['seconds']:.0f}",
                "R-hat of the gates": row["diagnostics"]["max_rhat"],
                "of the log joint": row["diagnostics"]["lp_rhat"],
            }
            for row in rows
        ],
        "gates": pd.DataFrame(dict(zip(ours, gates, strict=True))).rename_axis("process").reset_index(),
        "scores": scores.rename_axis("forecast").reset_index(),
    }


def measured(seed: int) -> list[dict]:
    """The rows of a seed that there are, in the tables' order."""
    rows = [row for row in store.load(ROWS)["rows"] if row["seed"] == seed]
    return sorted(rows, key=lambda row: (list(TABLES).index(row["table"]), list(MODELS).index(row["model"])))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)), metavar="[TABLE]...")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def main(tables: tuple[str, ...], seed: int):
    """Fit all five tables, or those named, and write docs/own_data.md."""
    numpyro.enable_x64()
    cases = [{"table": name, "model": model, "seed": seed} for name in tables or TABLES for model in MODELS]
    store.collect(ROWS, cases, lambda case: measure(**case), command="python -m experiments.own_data", units=UNITS)
    PAGE.write_text(page(measured(seed)))
    click.echo(f"Written to {PAGE.name}")


if __name__ == "__main__":
    main(prog_name="python -m experiments.own_data")
