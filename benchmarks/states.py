"""``states``: a Gaussian of Markov states factorised in turn and in segments, and a sweep of a local level."""

from functools import partial
from statistics import median
from time import perf_counter
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import alps_ppl as alps
from alps_ppl.gibbs import block_tridiagonal as tri
from alps_ppl.gibbs.sweep import sweep_chains
from benchmarks.timing import progress, show

TIMES, STATES, FEATURES, LEVEL_TIMES = 2_000, (1, 2, 3, 4, 5, 6, 8), 4, 5_000
SWEEPS, REPEATS = 20, 9


def run():
    """Both orders by the number of states, one chain and four side by side; then the level. Taken in turn, medians."""
    rows = [factors(dim, chains) for dim in STATES for chains in (1, 4)]
    note = f"{TIMES} times, {FEATURES} features beside them, per chain; mean and integral"
    show("states: a factor of block tridiagonal precisions", rows, note)
    progress("a local level")
    show(f"states: a sweep of a local level, {LEVEL_TIMES} times, one output, noise learnt", [level()])


def factors(dim: int, chains: int) -> dict:
    """Milliseconds of each order."""
    progress(f"{dim} states, {chains} chains")
    rng = np.random.default_rng(0)
    root = rng.normal(size=(chains, TIMES, dim, dim))
    blocks = root @ root.mT + (2 + 4 * dim) * np.eye(dim), rng.normal(size=root.shape)
    blocks = *map(jnp.asarray, blocks), jnp.asarray(rng.normal(size=(chains, TIMES, dim, FEATURES + 1)))

    def use(diagonal, below, rest):
        factor = tri.factorise(diagonal, below, rest)
        last = jnp.zeros(FEATURES + 1).at[-1].set(1.0)
        return factor.half_log_det, factor.products, factor.states(last, jnp.zeros((TIMES, dim)))

    runs = []
    for most in (0, dim):
        with mock.patch.object(tri, "FEW_STATES", most):
            begin = perf_counter()
            compiled = jax.jit(jax.vmap(use)).lower(*blocks).compile()
            runs.append((partial(compiled, *blocks), perf_counter() - begin))
    seconds = [[_seconds(call) / chains for call, _ in runs] for _ in range(REPEATS)]
    in_turn, in_segments = (1e3 * median(column) for column in zip(*seconds, strict=True))
    return {
        "states": dim,
        "chains": chains,
        "in turn [ms]": in_turn,
        "in segments [ms]": in_segments,
        "ratio": in_segments / in_turn,
        "compiled in [s]": f"{runs[0][1]:.1f}, {runs[1][1]:.1f}",
    }


def level() -> dict:
    """Milliseconds of a sweep, by one chain; the gate is a part of it."""
    rng = np.random.default_rng(0)
    t = np.arange(float(LEVEL_TIMES))
    y = 0.05 * rng.normal(size=LEVEL_TIMES).cumsum() + 0.5 * rng.normal(size=LEVEL_TIMES)
    walk = alps.random_walk(start=0.0, span=float(LEVEL_TIMES))
    model = alps.ALPS({"level": walk}, 1, noise_variance=dist.InverseGamma(1.0, 0.2))
    kernel = alps.ALPSGibbs(model)
    kernel.bind(t, ((y - y.mean()) / y.std())[:, None])
    step = partial(sweep_chains, kernel.plan, kernel.model, kernel.stats)
    sweeps = jax.jit(lambda state: jax.lax.fori_loop(0, SWEEPS, lambda _, s: step(s), state))
    state = jax.block_until_ready(sweeps(kernel.first_states(jax.random.key(0), 0, None)))
    seconds = [_seconds(partial(sweeps, state)) / SWEEPS for _ in range(REPEATS)]
    return {"a sweep [ms]": 1e3 * median(seconds), "least": 1e3 * min(seconds)}


def _seconds(call) -> float:
    begin = perf_counter()
    jax.block_until_ready(call())
    return perf_counter() - begin
