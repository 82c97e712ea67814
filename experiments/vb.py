"""Coordinate ascent beside the sampler: the gates of cycles and trends of every strength, present and absent.

``python -m experiments.vb --tables 40`` simulates tables of three outputs and 240 hours with memories of the outputs'
own. A daily cycle and a trend have strengths from a twentieth of the noise to as much as it; a cycle of 31 h isn't
there. A table is a row of ``docs/real_tables/vb.json``.
"""

import time

import click
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd

import alps_ppl as alps
from experiments import store
from experiments.real_tables import DAY, ou

PATH = store.ROOT / "docs" / "real_tables" / "vb.json"
TIMES, OUTPUTS = 240, 3
LENGTHS = {"num_warmup": 500, "num_samples": 1_000, "num_chains": 4}


def table(seed: int) -> np.ndarray:
    """The outputs, standardised."""
    rng = np.random.default_rng([seed, 16])
    t = np.arange(float(TIMES))
    strength, slope = np.exp(rng.uniform(np.log(0.05), 0.0, 2))
    y = strength * np.sin(2 * np.pi * (t[:, None] - rng.uniform(0, DAY, OUTPUTS)) / DAY)
    y += slope * ((t - t.mean()) / t.std())[:, None] * rng.normal(size=OUTPUTS)
    y += 0.5 * np.stack([ou(rng, TIMES, scale) for scale in rng.uniform(3, 20, OUTPUTS)], 1)
    y += rng.normal(size=y.shape)
    return (y - y.mean(0)) / y.std(0)


def row(seed: int) -> dict:
    """The gates by both engines, and the seconds of second fits."""
    t, y = np.arange(float(TIMES)), table(seed)
    model = alps.ALPS(
        {
            "daily": alps.linear_periodic(DAY),
            "31 h": alps.linear_periodic(31.0),
            "trend": alps.linear(float(t.mean()), float(t.std())),
        },
        OUTPUTS,
        copies={"daily": 2, "31 h": 2},
        noise_variance=dist.InverseGamma(1.0, 0.2),
        private_memory=alps.private_memory(t),
    )
    found: dict = {"seed": seed}
    for name, fit, settings in (("vb", alps.fit_vb, {}), ("gibbs", alps.fit_gibbs, LENGTHS)):
        begin = time.perf_counter()
        answer = fit(model, t, y, rng_key=jax.random.key(seed), progress_bar=False, **settings)
        gates = alps.inclusion_table(answer).set_index("latent").probability
        found |= {name: gates.to_dict(), f"{name} seconds": round(time.perf_counter() - begin, 2)}
    return found


def summary(rows: list[dict]) -> pd.DataFrame:
    """By what the sampler says of a gate: how many, VB's mean, the largest difference, and VB's verdicts."""
    gates = pd.DataFrame([{"gibbs": r["gibbs"][name], "vb": r["vb"][name]} for r in rows for name in r["vb"]])
    kind = pd.cut(gates.gibbs, [-1, 0.1, 0.9, 2], labels=["off (to .1)", "undecided", "on (from .9)"])
    by_kind = gates.groupby(kind, observed=False)
    return pd.DataFrame(
        {
            "gates": by_kind.size(),
            "sampler's mean": by_kind.gibbs.mean(),
            "VB's mean": by_kind.vb.mean(),
            "VB above by at most": by_kind.apply(lambda part: (part.vb - part.gibbs).max()),
            "VB below by at most": by_kind.apply(lambda part: (part.gibbs - part.vb).max()),
            "VB: off": by_kind.apply(lambda part: (part.vb <= 0.1).sum()),
            "VB: undecided": by_kind.apply(lambda part: ((part.vb > 0.1) & (part.vb < 0.9)).sum()),
            "VB: on": by_kind.apply(lambda part: (part.vb >= 0.9).sum()),
        }
    )


@click.command()
@click.option(
    "--tables",
    "number",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    help="How many; the seeds are 0, 1, ...",
)
def main(number: int) -> None:
    """Measure what isn't kept yet, and print the summary."""
    numpyro.enable_x64()
    cases = [{"seed": seed} for seed in range(number)]
    command = f"python -m experiments.vb --tables {number}"
    rows = store.collect(PATH, cases, lambda case: row(case["seed"]), command=command)
    click.echo(summary(rows).round(3).to_string())
    seconds = {name: np.median([r[f"{name} seconds"] for r in rows]) for name in ("vb", "gibbs")}
    click.echo(f"seconds, medians: {seconds}")


if __name__ == "__main__":
    main()
