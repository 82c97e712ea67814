"""What spikes and heavy tails do to the answer, and what is left of that where spikes are taken for missing cells.

``python -m experiments.spikes --tables 50`` simulates tables of one daily cycle, in every other one a shared memory,
and memories of the outputs' own. Each is fitted clean; with 2 % of its cells moved by ten sds of their output, as it is
and without the cells that ``alps_ppl.tables.spikes`` finds; and with Student-t noise of three degrees of freedom, in
the same two ways. All three are also fitted whole by a model with Student's noise of four degrees. A table is a row of
``docs/real_tables/spikes.json``.
"""

import time

import click
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.tables.composing import STUDENT_DF
from alps_ppl.tables.spikes import spikes, without_spikes
from experiments import store
from experiments.real_tables import CYCLES, DAY, SHARED, ou

PATH = store.ROOT / "docs" / "real_tables" / "spikes.json"
TIMES, OUTPUTS, HELD_OUT = 240, 3, 48
NOISE, MOVED, SDS, DEGREES = 0.4, 0.02, 10.0, 3.0
LENGTHS = {"num_warmup": 200, "num_samples": 300, "num_chains": 2}


def tables(seed: int) -> dict[str, pd.DataFrame]:
    """The same series clean, with spikes and with Student-t noise; the last 48 of 288 hours are to be forecast."""
    rng = np.random.default_rng([seed, 15])
    n = TIMES + HELD_OUT
    t = np.arange(float(n))
    y = np.sin(2 * np.pi * (t[:, None] - rng.uniform(0, DAY)) / DAY) * rng.uniform(0.5, 1.5, OUTPUTS)
    if seed % 2:
        y += ou(rng, n, SHARED)[:, None] * rng.uniform(0.5, 1.5, OUTPUTS)
    y += 0.7 * np.stack([ou(rng, n, scale) for scale in rng.uniform(3, 20, OUTPUTS)], 1)
    clean = y + NOISE * rng.normal(size=y.shape)
    moved = rng.uniform(size=y.shape) < MOVED
    spiky = clean + moved * SDS * clean.std(0) * rng.choice([-1, 1], y.shape)
    heavy = y + NOISE * rng.standard_t(DEGREES, y.shape) / np.sqrt(DEGREES / (DEGREES - 2))
    named = {"clean": clean, "spiky": spiky, "student": heavy}
    return {name: pd.DataFrame(values, t, [f"y{i}" for i in range(OUTPUTS)]) for name, values in named.items()}


def answer(table: pd.DataFrame, truth: pd.DataFrame, seed: int, noise_df: float | None = None) -> dict:
    """Gates; in the clean table's training sds the mean width of the bands; what part of ``truth`` they hold, ahead."""
    data = alps.Data(table.index.to_numpy(), table, held_out={"test": np.arange(len(table)) >= TIMES})
    latents = {"daily": alps.linear_periodic(DAY), "slow": kernels.Exp(scale=SHARED)}
    latents |= {name: alps.linear_periodic(period) for name, period in CYCLES.items()}
    model = alps.ALPS(
        latents,
        data.outputs,
        noise_variance=dist.InverseGamma(1.0, 0.2),
        copies=dict.fromkeys(["daily", *CYCLES], 2),
        private_memory=alps.private_memory(data.train_inputs),
        noise_df=noise_df,
    )
    key = jax.random.key(seed)
    y = np.where(data.train, data.standardised, np.nan)[:TIMES]
    fit = alps.fit_gibbs(model, data.inputs[:TIMES], y, rng_key=key, progress_bar=False, **LENGTHS)
    found = data.to_units(alps.predict(fit, data.inputs))
    sds = truth.iloc[:TIMES].std(ddof=0).to_numpy()
    ahead = truth.iloc[TIMES:].to_numpy()
    lower, upper = (found[name].values for name in ("lower", "upper"))
    return {
        "gates": alps.inclusion_table(fit).set_index("latent").probability[list(latents)].to_dict(),
        "width": float(((upper - lower) / sds)[TIMES:].mean()),
        "held": float(((lower[TIMES:] <= ahead) & (ahead <= upper[TIMES:])).mean()),
    }


def row(seed: int) -> dict:
    """All eight answers of a table."""
    begin, found = time.perf_counter(), {}
    made = tables(seed)
    for name, table in made.items():
        # Spikes ahead are no one's to forecast: of the spiky table the clean one's cells are.
        truth = made["clean"] if name == "spiky" else table
        found[name] = answer(table, truth, seed)
        found[f"{name}, by Student's noise"] = answer(table, truth, seed, STUDENT_DF)
        if name != "clean":
            found[f"{name}, dropped"] = answer(without_spikes(table, spikes(table)), truth, seed)
    return {"seed": seed, "shares_memory": bool(seed % 2), **found, "seconds": round(time.perf_counter() - begin, 1)}


def summary(rows: list[dict]) -> pd.DataFrame:
    """Of each way: the largest change of a gate, and of the width of bands, to the clean table; coverage; decoys on."""
    kinds = [name for name, value in rows[0].items() if isinstance(value, dict)]
    table = {}
    for kind in kinds:
        change = [max(abs(row[kind]["gates"][n] - p) for n, p in row["clean"]["gates"].items()) for row in rows]
        width = np.array([row[kind]["width"] / row["clean"]["width"] - 1 for row in rows])
        decoys = [row[kind]["gates"][name] > 0.5 for row in rows for name in CYCLES]
        memory = [(row[kind]["gates"]["slow"] > 0.5) == row["shares_memory"] for row in rows]
        table[kind] = {
            "gates within .05": np.mean(np.array(change) <= 0.05),
            "largest change of a gate": max(change),
            "width within 20 %": np.mean(np.abs(width) <= 0.2),
            "median width": 1 + np.median(width),
            "cells in the 90 % band": np.mean([row[kind]["held"] for row in rows]),
            "daily on": np.mean([row[kind]["gates"]["daily"] > 0.5 for row in rows]),
            "decoys on": np.mean(decoys),
            "memory right": np.mean(memory),
        }
    return pd.DataFrame(table).T


@click.command()
@store.how_many(50)
def main(number: int) -> None:
    """Measure what isn't kept yet, and print the summary."""
    numpyro.enable_x64()
    cases = [{"seed": seed} for seed in range(number)]
    command = f"python -m experiments.spikes --tables {number}"
    rows = store.collect(PATH, cases, lambda case: row(case["seed"]), command=command)
    click.echo(summary(rows).round(3).to_string())


if __name__ == "__main__":
    main()
