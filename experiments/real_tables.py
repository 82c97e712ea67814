"""How often a process that isn't there comes on, where outputs do what the paper's model can't say.

``python -m experiments.real_tables KIND --tables 20`` simulates tables of one daily cycle, and in every other table one
shared memory, and asks the model with copies and private memories, and with ``--paper`` the paper's model, what is
there. A table is a row of ``docs/real_tables/KIND_private.json`` or ``KIND_paper.json``.
"""

import time
from collections.abc import Callable

import click
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.results.inclusion import ON, log_joint_r_hat
from alps_ppl.results.trees import tree_of
from experiments import store

DAY, CYCLES, SHARED = 24.0, {"31 h": 31.0, "17 h": 17.0}, 40.0
# Of few shapes, since each compiles once.
SHAPES = ((200, 3), (300, 4), (400, 6))


def ou(rng: np.random.Generator, n: int, scale: float) -> np.ndarray:
    """A Matern-1/2 path of variance 1 at n steps."""
    decay = np.exp(-1 / scale)
    path = [rng.normal()]
    for _ in range(n - 1):
        path.append(decay * path[-1] + np.sqrt(1 - decay**2) * rng.normal())
    return np.array(path)


def matern32(rng: np.random.Generator, n: int, scale: float) -> np.ndarray:
    """A Matern-3/2 path of variance 1."""
    t = np.arange(float(n))
    K = np.asarray(kernels.Matern32(scale=scale)(t, t)) + 1e-9 * np.eye(n)
    return np.linalg.cholesky(K) @ rng.normal(size=n)


def ar2(rng: np.random.Generator, n: int, scale: float) -> np.ndarray:
    """An autoregression of order 2 that swings with a period of four scales and forgets in one; of variance 1."""
    decay = np.exp(-1 / scale)
    a, b = 2 * decay * np.cos(2 * np.pi / (4 * scale)), -(decay**2)
    path = [0.0, 0.0]
    for _ in range(n + 20 * int(scale)):
        path.append(a * path[-1] + b * path[-2] + rng.normal())
    kept = np.array(path[-n:])
    return kept / kept.std()


PRIVATE: dict[str, Callable | None] = {
    "private_ou": ou,
    "private_matern32": matern32,
    "private_ar2": ar2,
    "lags": None,
    "lags_and_private": ou,
}


def table(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Times in hours, y (time, output), and whether there is a shared memory."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    n, p = SHAPES[seed % len(SHAPES)]
    t, shares_memory = np.arange(float(n)), bool(seed % 2)
    lag = rng.uniform(-6, 6, p) if "lags" in kind else np.zeros(p)
    y = np.sin(2 * np.pi * (t[:, None] - lag) / DAY) * rng.uniform(0.5, 1.5, p)
    if shares_memory:
        y += ou(rng, n, SHARED)[:, None] * rng.uniform(0.5, 1.5, p) * rng.choice([-1, 1], p)
    if (own := PRIVATE[kind]) is not None:
        y += np.stack([own(rng, n, scale) for scale in rng.uniform(3, 20, p)], 1) * rng.uniform(0.5, 1.5, p)
    return t, y + 0.3 * rng.normal(size=(n, p)), shares_memory


def model_of(t: np.ndarray, num_outputs: int, *, paper: bool) -> alps.ALPS:
    """The daily cycle, two memories and two decoys; with copies and private memories, or the paper's model."""
    latents = {"daily": alps.linear_periodic(DAY), "slow": kernels.Exp(scale=96.0), "rough": kernels.Exp(scale=6.0)}
    latents |= {name: alps.linear_periodic(period) for name, period in CYCLES.items()}
    more = {} if paper else {"copies": dict.fromkeys(["daily", *CYCLES], 2), "private_memory": alps.private_memory(t)}
    return alps.ALPS(latents, num_outputs, noise_variance=dist.InverseGamma(1.0, 0.2), **more)


def row(kind: str, seed: int, *, paper: bool, num_warmup: int, num_samples: int) -> dict:
    """What is said of one table."""
    t, y, shares_memory = table(kind, seed)
    y = (y - y.mean(0)) / y.std(0)
    model = model_of(t, y.shape[1], paper=paper)
    start = time.perf_counter()
    lengths = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": 2}
    fit = alps.fit_gibbs(model, t, y, rng_key=jax.random.key(seed), progress_bar=False, **lengths)
    seconds = time.perf_counter() - start
    found = alps.inclusion_table(fit)
    single = found[found.members == 1].set_index("latent").probability
    memory = fit.samples["b"][..., [model.gate_names.index(name) for name in ("slow", "rough")]].max(-1).mean()
    return {
        "kind": kind,
        "model": "paper" if paper else "private",
        "seed": seed,
        "times": len(t),
        "outputs": y.shape[1],
        "shares_memory": shares_memory,
        "daily": float(single["daily"]),
        "memory": float(memory),
        "decoy": float(single[list(CYCLES)].max()),
        "lp_r_hat": log_joint_r_hat(tree_of(fit)),
        "seconds": round(seconds, 1),
    }


@click.command()
@click.argument("kind", type=click.Choice(list(PRIVATE)))
@store.how_many(100)
@click.option("--paper", is_flag=True, help="The paper's model in the place of the one with private memories.")
@click.option("--num-warmup", default=300, show_default=True)
@click.option("--num-samples", default=300, show_default=True)
def main(kind: str, number: int, paper: bool, **lengths: int) -> None:
    """Measure what isn't kept yet, and print how often each process was said to be there."""
    numpyro.enable_x64()
    model = "paper" if paper else "private"
    path = store.ROOT / "docs" / "real_tables" / f"{kind}_{model}.json"
    command = f"python -m experiments.real_tables {kind} --tables {number}" + " --paper" * paper
    cases = [{"seed": seed} for seed in range(number)]
    rows = store.collect(path, cases, lambda case: row(kind, case["seed"], paper=paper, **lengths), command=command)
    found = pd.DataFrame(rows)
    for least in (0.5, ON):
        there = found[["daily", "memory", "decoy"]] > least
        by_truth = there.groupby(found.shares_memory)
        click.echo(f"above {least:g}:\n{by_truth.mean().assign(tables=by_truth.size())}")


if __name__ == "__main__":
    main()
