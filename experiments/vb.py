"""Coordinate ascent beside the sampler: the gates of cycles and trends of every strength, present and absent.

``python -m experiments.vb --tables 40`` simulates tables of three outputs and 240 hours with memories of the outputs'
own. A daily cycle and a trend have strengths from a twentieth of the noise to as much as it; a cycle of 31 h isn't
there. A table is a row of ``docs/real_tables/vb.json``.

``--preview`` is the short run of the sampler that ``alps-ppl fit --preview`` makes of what coordinate ascent doesn't
take: on every other table a memory that all outputs share, of such a strength and of unknown scale, is there, too. Its
rows are in ``docs/real_tables/preview.json``.
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
from alps_ppl.app.problem import SHORT_RUN
from experiments import store
from experiments.real_tables import DAY, ou

FOLDER = store.ROOT / "docs" / "real_tables"
TIMES, OUTPUTS = 240, 3
LENGTHS = {"num_warmup": 500, "num_samples": 1_000, "num_chains": 4}


def table(seed: int, shared: bool = False) -> np.ndarray:
    """The outputs, standardised; ``shared``: with a memory of 10 h that all of them have."""
    rng = np.random.default_rng([seed, 16])
    t = np.arange(float(TIMES))
    strength, slope = np.exp(rng.uniform(np.log(0.05), 0.0, 2))
    y = strength * np.sin(2 * np.pi * (t[:, None] - rng.uniform(0, DAY, OUTPUTS)) / DAY)
    y += slope * ((t - t.mean()) / t.std())[:, None] * rng.normal(size=OUTPUTS)
    y += 0.5 * np.stack([ou(rng, TIMES, scale) for scale in rng.uniform(3, 20, OUTPUTS)], 1)
    y += rng.normal(size=y.shape)
    if shared:
        y += np.exp(rng.uniform(np.log(0.05), 0.0)) * ou(rng, TIMES, 10.0)[:, None] * rng.normal(size=OUTPUTS)
    return (y - y.mean(0)) / y.std(0)


def row(seed: int, preview: bool) -> dict:
    """The gates by both answers, and the seconds of second fits."""
    t, y = np.arange(float(TIMES)), table(seed, shared=preview and seed % 2 == 0)
    latents = {
        "daily": alps.linear_periodic(DAY),
        "31 h": alps.linear_periodic(31.0),
        "trend": alps.linear(float(t.mean()), float(t.std())),
    }
    model = alps.ALPS(
        latents | ({"memory": kernels.Exp(scale=10.0)} if preview else {}),
        OUTPUTS,
        copies={"daily": 2, "31 h": 2},
        covariance_ranges={"memory": {"scale": (1.0, 100.0)}} if preview else {},
        noise_variance=dist.InverseGamma(1.0, 0.2),
        private_memory=alps.private_memory(t),
    )
    found: dict = {"seed": seed}
    quick: tuple = ("preview", alps.fit_gibbs, SHORT_RUN) if preview else ("vb", alps.fit_vb, {})
    for name, fit, settings in (quick, ("gibbs", alps.fit_gibbs, LENGTHS)):
        begin = time.perf_counter()
        answer = fit(model, t, y, rng_key=jax.random.key(seed), progress_bar=False, **settings)
        gates = alps.inclusion_table(answer).set_index("latent").probability
        found |= {name: gates.to_dict(), f"{name} seconds": round(time.perf_counter() - begin, 2)}
    return found


def summary(rows: list[dict], name: str) -> pd.DataFrame:
    """By what the sampler says of a gate: how many, the other's mean, the largest difference, and its verdicts."""
    gates = pd.DataFrame([{"gibbs": r["gibbs"][gate], "quick": r[name][gate]} for r in rows for gate in r[name]])
    kind = pd.cut(gates.gibbs, [-1, 0.1, 0.9, 2], labels=["off (to .1)", "undecided", "on (from .9)"])
    by_kind = gates.groupby(kind, observed=False)
    return pd.DataFrame(
        {
            "gates": by_kind.size(),
            "sampler's mean": by_kind.gibbs.mean(),
            "its mean": by_kind.quick.mean(),
            "above by at most": by_kind.apply(lambda part: (part.quick - part.gibbs).max()),
            "below by at most": by_kind.apply(lambda part: (part.gibbs - part.quick).max()),
            "off": by_kind.apply(lambda part: (part.quick <= 0.1).sum()),
            "undecided": by_kind.apply(lambda part: ((part.quick > 0.1) & (part.quick < 0.9)).sum()),
            "on": by_kind.apply(lambda part: (part.quick >= 0.9).sum()),
        }
    )


@click.command()
@store.how_many(40)
@click.option("--preview", is_flag=True, help="The short run of the sampler in the place of coordinate ascent.")
def main(number: int, preview: bool) -> None:
    """Measure what isn't kept yet, and print the summary."""
    numpyro.enable_x64()
    name = "preview" if preview else "vb"
    cases = [{"seed": seed} for seed in range(number)]
    command = f"python -m experiments.vb --tables {number}" + " --preview" * preview
    rows = store.collect(FOLDER / f"{name}.json", cases, lambda case: row(case["seed"], preview), command=command)
    click.echo(summary(rows, name).round(3).to_string())
    seconds = {engine: np.median([r[f"{engine} seconds"] for r in rows]) for engine in (name, "gibbs")}
    click.echo(f"seconds, medians: {seconds}")


if __name__ == "__main__":
    main()
