"""Whether the page says so where outputs do what the model can't say, and keeps quiet where it can.

``python -m experiments.misfit --tables 5`` fits simulated tables of each case and tests what is left of the outputs
(``alps.innovation_checks``). A table is a row of ``docs/real_tables/misfit.json``; a process is wrong where its gate is
above 1/2 and it isn't there.
"""

from typing import Any

import click
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd

import alps_ppl as alps
from alps_ppl.results.innovations import suspicious
from experiments import real_tables, store
from models import noisy_mixture

PATH = store.ROOT / "docs" / "real_tables" / "misfit.json"
# By name: the table's kind, and whether the model is the paper's.
CASES = {
    "memories of one's own, the model with them": ("private_ou", False),
    "memories of one's own, the paper's model": ("private_ou", True),
    "memories that swing, the model with memories": ("private_ar2", False),
    "lags, the paper's model": ("lags", True),
    "noise that outputs share, the paper's model": ("noisy mixture", True),
    "noise of each output's own, the paper's model": ("mixture", True),
    "nothing but noise, few rows": ("noise", True),
}
LENGTHS = {"num_warmup": 100, "num_samples": 100, "num_chains": 2}


ABSENT_PERIODS = ("T=3", "T=11", "T=13", "T=19")


def problem(kind: str, seed: int, *, paper: bool) -> tuple[alps.ALPS, Any, Any, list[str]]:
    """A model, times, y, and the processes that aren't in the table."""
    if kind == "noise":
        t = np.arange(60.0)
        y = np.random.default_rng([seed, 60]).normal(size=(len(t), 3))
        week = {"week": alps.linear_periodic(7.0)}
        return alps.ALPS(week, 3, noise_variance=dist.InverseGamma(1.0, 0.2)), t, y, ["week"]
    if kind.endswith("mixture"):
        data = noisy_mixture.data(seed, independent=kind == "mixture")
        return noisy_mixture.model(data), data.train_inputs, data.train_y, list(ABSENT_PERIODS)
    t, y, shares_memory = real_tables.table(kind, seed)
    absent = [*real_tables.CYCLES, *([] if shares_memory else ["slow", "rough"])]
    return real_tables.model_of(t, y.shape[1], paper=paper), t, (y - y.mean(0)) / y.std(0), absent


def row(case: str, seed: int) -> dict:
    """What is said of one table."""
    kind, paper = CASES[case]
    model, t, y, absent = problem(kind, seed, paper=paper)
    fit = alps.fit_gibbs(model, t, y, rng_key=jax.random.key(seed), progress_bar=False, **LENGTHS)
    table = alps.inclusion_table(fit)
    tests = alps.innovation_checks(fit)
    alarms = suspicious(tests)
    return {
        "wrong": table[table.latent.isin(absent) & (table.probability > 0.5)].latent.tolist(),
        "r_hat": float(table.r_hat.max()),
        "p_value": min(1.0, float(tests.p_value.min() * len(tests))),
        "alarms": alarms.groupby("check").size().to_dict(),
    }


@click.command()
@store.how_many(5, "of a case")
@click.option("--only", type=click.Choice(list(CASES)), help="One case; the others' rows stay as they are.")
def main(number: int, only: str | None) -> None:
    """Measure what isn't kept yet, and print how many tables have a wrong process, and an alarm."""
    numpyro.enable_x64()
    cases = [{"case": case, "seed": seed} for case in ([only] if only else CASES) for seed in range(number)]
    command = f"python -m experiments.misfit --tables {number}" + (f' --only "{only}"' if only else "")
    found = pd.DataFrame(store.collect(PATH, cases, lambda one: row(one["case"], one["seed"]), command=command))
    found = found.assign(wrong=found.wrong.map(bool), alarm=found.alarms.map(bool), tables=1)
    found["wrong_with_alarm"] = found.wrong & found.alarm
    counts = found.groupby("case", sort=False)[["tables", "wrong", "alarm", "wrong_with_alarm"]].sum()
    click.echo(counts.to_string())


if __name__ == "__main__":
    main()
