"""``gibbs``: milliseconds per sweep and effective draws per second on the square wave."""

from statistics import median
from time import perf_counter

import jax
import numpy as np
from arviz_stats.base import array_stats
from numpyro.infer import MCMC, NUTS, DiscreteHMCGibbs

import alps_ppl as alps
from alps_ppl.gibbs import BLOCKS
from benchmarks.timing import Compilation, load, progress, show

MARK_MS = 0.3
REPEATS = 5
SLOW_SWEEPS = {"num_warmup": 100, "num_samples": 200, "num_chains": 1, "repeats": 1}


def sweeps(kernel, inputs, y, *, num_warmup: int, num_samples: int, num_chains: int, repeats: int = REPEATS) -> dict:
    """A row: a first ``MCMC.run``, which compiles, and the median of ``repeats`` times ``num_samples`` more sweeps.

    Those are a compiled loop over ``kernel.sample``: without a progress bar ``MCMC.run`` compiles again each
    time, whatever the kernel. ``ESS / s`` is that of the worst gate among those that aren't constant.
    """
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    with Compilation() as compilation:
        begin = perf_counter()
        mcmc.run(jax.random.key(0), inputs, y)
        jax.block_until_ready(mcmc.get_samples())
        first = perf_counter() - begin

    @jax.jit
    def more(state):
        def step(state, _):
            state = kernel.sample(state, (inputs, y), {})
            return state, state.z["b"]

        return jax.lax.scan(step, state, length=num_samples)

    state, _ = jax.block_until_ready(more(mcmc.last_state))
    seconds, gates = [], []
    for _ in range(repeats):
        begin = perf_counter()
        state, b = jax.block_until_ready(more(state))
        seconds.append(perf_counter() - begin)
        gates.append(np.asarray(b, float).reshape(num_samples, num_chains, -1))
    per_sweep = median(seconds) / num_samples
    gates = np.concatenate(gates)
    ess = [array_stats.ess(gate.T) for gate in gates.transpose(2, 0, 1) if np.ptp(gate)]
    return {
        "chains": num_chains,
        "sweeps": num_samples,
        "ms / sweep and chain": 1e3 * per_sweep / num_chains,
        "first run [s]": first,
        "first - warm [s]": first - per_sweep * (num_warmup + num_samples),
        "compile [s]": compilation.seconds(),
        "moving gates": len(ess),
        "worst ESS / s": min(ess, default=np.nan) / sum(seconds),
    }


def run(slow: bool = False):
    """Both kinds of blocks; with ``slow``, NumPyro's own sampler of the same program."""
    module, model, inputs, y = load("square_wave")
    rows = []
    for blocks in BLOCKS:
        progress(f"Gibbs sweeps, {blocks} blocks")
        rows.append({"sampler": blocks} | sweeps(alps.ALPSGibbs(model, blocks=blocks), inputs, y, **module.GIBBS))
    if slow:
        progress("NumPyro's DiscreteHMCGibbs(NUTS)")
        rows.append({"sampler": "DiscreteHMCGibbs"} | sweeps(DiscreteHMCGibbs(NUTS(model)), inputs, y, **SLOW_SWEEPS))
    show(
        "gibbs: the square wave, 8 latents, 200 times, 64-bit",
        rows,
        f"mark: {MARK_MS} ms / sweep and chain, collapsed; measured {rows[0]['ms / sweep and chain']:.3f}",
        "first run: MCMC.run from cold; warm: as many sweeps in a compiled loop; compile: JAX's tracing, lowering and "
        "compiling in the first run",
    )
