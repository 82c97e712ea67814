"""Whether the page warns where it has no reason to, and whether it does where chains disagree.

``python -m experiments.alarms`` simulates ten ordinary tables (hourly, two to four outputs, a daily cycle, a shared
memory in every other one, memories of the outputs' own, noise) and runs the command's model with its own settings.
Three tables more are fitted by the paper's model and the paper's plain gate, which hardly moves, from starts far apart:
those chains do disagree. A table is a row of ``docs/real_tables/alarms.json``.
"""

import re
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import numpyro
import pandas as pd

from alps_ppl.app import report
from alps_ppl.app.compose import compose
from alps_ppl.app.run import run
from experiments import store
from experiments.real_tables import ou

PATH = store.ROOT / "docs" / "real_tables" / "alarms.json"
LATENTS = ["daily = linear_periodic(24h)", "slow = matern12(4d)", "weekly = linear_periodic(1w)"]
ORDINARY, APART = 10, 3
STUCK = {"moves": "paper", "start": "dispersed", "num_warmup": 100, "num_samples": 200}


def table(seed: int) -> pd.DataFrame:
    """Of 15 to 25 days."""
    rng = np.random.default_rng([seed, 17])
    n, p = 24 * int(rng.integers(15, 26)), 2 + seed % 3
    index = pd.date_range("2024-05-01", periods=n, freq="h", name="date")
    hours = np.arange(float(n))[:, None]
    y = np.sin(2 * np.pi * (hours / 24 + rng.uniform(size=p))) * rng.uniform(0.5, 1.5, p)
    if seed % 2:
        y += ou(rng, n, 60.0)[:, None] * rng.uniform(0.5, 1.5, p)
    y += np.stack([ou(rng, n, scale) for scale in rng.uniform(3, 20, p)], 1) * rng.uniform(0.3, 1.0, p)
    y += 0.3 * rng.normal(size=(n, p))
    return pd.DataFrame(10 + 3 * y, index, [f"sensor {i + 1}" for i in range(p)])


def row(seed: int, kind: str) -> dict:
    """What the page says of a table: the notes that warn, and whose numbers it shows."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "table.csv", Path(folder) / "out"
        table(seed).to_csv(path)
        settings = {"GIBBS": STUCK} if kind == "apart" else None
        problem, _ = compose(path, latents=LATENTS, settings=settings, paper_model=kind == "apart")
        (out / "figures").mkdir(parents=True)
        engines = ["svi", "gibbs"] if kind == "apart" else ["gibbs"]
        run(problem, out=out, fresh=True, prune_below=None, engines=engines, seed=seed)
        page = report.write(out).read_text()
    notes = re.findall(r'<li class="(\w+)">(.*?)</li>', page, re.DOTALL)
    return {
        "bad": [text for level, text in notes if level == "bad"],
        "caution": [text for level, text in notes if level == "caution"],
        "good": [text for level, text in notes if level == "good"],
        "disagree": "The chains disagree" in page,
        "shows_gibbs": "is in the data, by Gibbs." in page,
        "seconds": round(time.perf_counter() - begin, 1),
    }


@click.command()
def main() -> None:
    """Measure what isn't kept yet, and print which pages warn."""
    numpyro.enable_x64()
    cases = [{"kind": "ordinary", "seed": seed} for seed in range(ORDINARY)]
    cases += [{"kind": "apart", "seed": seed} for seed in range(APART)]
    rows = store.collect(
        PATH, cases, lambda case: row(case["seed"], case["kind"]), command="python -m experiments.alarms"
    )
    ordinary, apart = ([row for row in rows if row["kind"] == kind] for kind in ("ordinary", "apart"))
    click.echo(f"{sum(bool(row['bad']) for row in ordinary)} of {len(ordinary)} ordinary pages raise an alarm")
    click.echo(f"{sum(row['disagree'] for row in apart)} of {len(apart)} pages say that chains disagree")
    click.echo(f"{sum(row['shows_gibbs'] for row in apart)} of {len(apart)} of those show the sampler's numbers")
    for found in rows:
        click.echo(f"{found['kind']} {found['seed']}: {[*found['bad'], *found['caution']]}")


if __name__ == "__main__":
    main()
