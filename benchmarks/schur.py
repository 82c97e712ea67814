"""``schur``: all flips of a sweep beside Markov states, by one factorisation of the states and by one for each gate."""

from statistics import median
from time import perf_counter
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import moves
from alps_ppl.gibbs.sweep import sweep_chains
from benchmarks.timing import progress, show

TIMES, PERIODS = 1_000, (5.0, 7.0, 9.0, 12.0, 24.0, 31.0, 48.0, 96.0, 168.0)
SWEEPS, REPEATS = 5, 5


def run():
    """The paper's model of nine cycles and one memory, then with private memories; taken in turn, medians."""
    rng = np.random.default_rng(0)
    t = np.arange(float(TIMES))
    y = np.sin(2 * np.pi * t[:, None] / [7.0, 24.0, 96.0]) + rng.normal(size=(TIMES, 3))
    latents = {f"{period:g} h": alps.linear_periodic(period) for period in PERIODS} | {
        "memory": kernels.Exp(scale=40.0)
    }
    rows = []
    for name, more in (("paper's", {}), ("private memories", {"private_memory": alps.private_memory(t)})):
        progress(f"flips beside states, {name}")
        model = alps.ALPS(latents, 3, noise_variance=dist.InverseGamma(1.0, 0.2), **more)
        kernel = alps.ALPSGibbs(model, moves=["marginal_gate"])
        kernel.bind(t, y)
        one = _sweep(kernel)
        with mock.patch.object(moves, "_flips_beside_states", _one_by_one):
            each = _sweep(kernel)
        pairs = [(one(), each()) for _ in range(REPEATS)]
        schur, separate = (1e3 * median(column) for column in zip(*pairs, strict=True))
        rows.append(
            {"model": name, "one factorisation [ms]": schur, "one per gate [ms]": separate, "ratio": separate / schur}
        )
    show(f"schur: a sweep of {len(latents)} gates, {TIMES} times, 3 outputs, one chain", rows)


def _one_by_one(target, chain, uniform):
    """``moves._flips_beside_states`` by an evidence for each flip."""

    def propose(H, b, latents):
        return H, jnp.where(latents, 1 - b, b)

    (_, b), log_ratio, before = moves._metropolis(target, chain, propose, jnp.asarray(target.of_gate), uniform)
    return b, log_ratio, before


def _sweep(kernel):
    """Seconds of a sweep, by a function that runs some of them anew."""

    @jax.jit
    def sweeps(state):
        return jax.lax.fori_loop(
            0, SWEEPS, lambda _, s: sweep_chains(kernel.plan, kernel.model, kernel.stats, s), state
        )

    state = jax.block_until_ready(sweeps(kernel.first_states(jax.random.key(0), 0, None)))

    def seconds():
        begin = perf_counter()
        jax.block_until_ready(sweeps(state))
        return (perf_counter() - begin) / SWEEPS

    return seconds
