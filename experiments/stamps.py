"""Whether ``--latent auto`` and the fit find false cycles where stamps lack regularly, and true ones all the same.

``python -m experiments.stamps --tables 40`` simulates tables on business days, hours of trade and daytime: three in
four without any cycle (walks, slow memories and noise), one in four with a cycle of a day, a week or a year. Each is
fitted with what ``auto`` proposes, by the command's model; a cycle is found, or false, where its gate is above 1/2. A
table is a row of ``docs/real_tables/stamps.json``.
"""

import tempfile
import time
from pathlib import Path

import click
import jax
import numpy as np
import numpyro
import pandas as pd

import alps_ppl as alps
from alps_ppl.app.compose import compose
from alps_ppl.model.covariances import period_of
from experiments import store
from experiments.real_tables import ou

PATH = store.ROOT / "docs" / "real_tables" / "stamps.json"
STAMPS = ("business days", "hours of trade", "daytime")
OUTPUTS = 3
LENGTHS = {"num_warmup": 150, "num_samples": 200, "num_chains": 2}


def stamps(kind: str, years: float) -> pd.DatetimeIndex:
    """The stamps of a kind: business days over so many years, or hours over 60 or 30 days."""
    if kind == "business days":
        return pd.bdate_range("2019-01-01", periods=int(260 * years))
    hours = pd.date_range("2024-03-04", periods=24 * (60 if kind == "hours of trade" else 30), freq="h")
    first, last = (9, 16) if kind == "hours of trade" else (6, 19)
    kept = hours[(hours.hour >= first) & (hours.hour <= last)]
    return kept[kept.day_of_week < 5] if kind == "hours of trade" else kept


def table(seed: int) -> tuple[pd.DataFrame, str, float | None]:
    """A table, what its stamps are, and the period that it has in days, if any."""
    rng = np.random.default_rng([seed, 3])
    kind, has_cycle = STAMPS[seed % 3], seed % 4 == 3
    index = stamps(kind, 3.2 if has_cycle else 2.0)
    n = len(index)
    days = (index - index[0]) / pd.Timedelta(1, "D")
    y = rng.normal(size=(n, OUTPUTS)) * 0.5
    for i in range(OUTPUTS):
        if rng.uniform() < 0.5:
            y[:, i] += np.cumsum(rng.normal(size=n)) * 2 / np.sqrt(n)
        else:
            y[:, i] += ou(rng, n, rng.uniform(5, n / 8))
    period = None
    if has_cycle:
        period = 365.25 if kind == "business days" else 1.0 if kind == "daytime" else 7.0
        y += np.sin(2 * np.pi * (days.to_numpy()[:, None] / period + rng.uniform())) * rng.uniform(0.8, 1.6, OUTPUTS)
    return pd.DataFrame(y, index.rename("date"), [f"y{i}" for i in range(OUTPUTS)]), kind, period


def row(seed: int) -> dict:
    """What is proposed for a table, and what the gates say of it."""
    made, kind, period = table(seed)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        made.to_csv(path)
        problem, _ = compose(path, latents=["auto"])
    data, model = problem.data, problem.model
    unit = 24.0 if data.input_unit == "hours" else 1.0
    periods = {
        name: found / unit
        for name, covariance in zip(model.copy_of, model.covariances, strict=True)
        if (found := period_of(covariance))
    }
    probability: dict[str, float] = {}
    if periods:
        key = jax.random.key(seed)
        fit = alps.fit_gibbs(model, data.train_inputs, data.train_y, rng_key=key, progress_bar=False, **LENGTHS)
        found = alps.inclusion_table(fit).set_index("latent").probability
        probability = {name: float(found[name]) for name in periods}
    true = [n for n, days in periods.items() if period and abs(days / period - 1) < 0.1]
    harmonics = [n for n, days in periods.items() if period and round(period / days) in (2, 3, 4)]
    return {
        "seed": seed,
        "stamps": kind,
        "period": period,
        "proposed": {name: round(days, 3) for name, days in periods.items()},
        "probability": probability,
        "found": any(probability[name] > 0.5 for name in true),
        "false": [n for n, p in probability.items() if p > 0.5 and n not in true and n not in harmonics],
        "seconds": round(time.perf_counter() - begin, 1),
    }


@click.command()
@store.how_many(40)
def main(number: int) -> None:
    """Measure what isn't kept yet, and print how many cycles were false and found."""
    numpyro.enable_x64()
    cases = [{"seed": seed} for seed in range(number)]
    command = f"python -m experiments.stamps --tables {number}"
    rows = store.collect(PATH, cases, lambda case: row(case["seed"]), command=command)
    without, with_ = ([row for row in rows if bool(row["period"]) == has] for has in (False, True))
    click.echo(
        f"{sum(not row['false'] for row in without)} of {len(without)} tables without a cycle have none on "
        f"({sum(bool(row['proposed']) for row in without)} were offered some); "
        f"the cycle is found in {sum(row['found'] for row in with_)} of {len(with_)}"
    )
    for found in (row for row in rows if row["false"] or (row["period"] and not row["found"])):
        click.echo(f"{found['seed']}, {found['stamps']}, period {found['period']}: {found['probability']}")


if __name__ == "__main__":
    main()
