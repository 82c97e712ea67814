"""``gibbs``: milliseconds per sweep, compilation, and effective draws per second of the worst gate."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from numpyro.infer import NUTS, DiscreteHMCGibbs

import alps_ppl as alps
from benchmarks.cases import CASES
from benchmarks.dense import DensePaper
from benchmarks.others import composite_gibbs, horseshoe
from benchmarks.timing import Clock, Compilation, load, progress, show

MARK_MS = 0.3
REPEATS = 3
CHAINS = 4
SWEEPS = {"noisy mixture": 4_000, "Boston": 500, "stand-ins": 2_000}
DENSE_SWEEPS = 20
TIMES = (1_000, 100_000)


def sweeps(model: alps.ALPS, inputs, y, **settings) -> dict:
    """A row: one ``fit_gibbs`` from a cold start."""
    clock, key = Clock(), jax.random.key(0)
    with Compilation() as compilation:
        begin = perf_counter()
        fit = alps.fit_gibbs(model, inputs, y, rng_key=key, progress_bar=False, checkpoint=clock, **settings)
        total = perf_counter() - begin
    num_chains, num_samples = fit.weights.shape[:2]
    seconds = clock.seconds(settings["num_warmup"] + num_samples)
    return {
        "chains": num_chains,
        "sweeps": settings["num_warmup"] + num_samples,
        "ms / sweep and chain": 1e3 * seconds / num_chains,
        "fit [s]": total,
        "compile [s]": compilation.seconds(),
    } | mixing(np.asarray(fit.samples["b"], float), seconds * num_samples)


def timed(sample: Callable, state, num_sweeps: int, repeats: int) -> tuple[list[float], np.ndarray]:
    """Seconds of each repeat of a compiled loop, after one that isn't counted, and gates (chain, draw, latent)."""

    @jax.jit
    def more(state):
        def step(state, _):
            state = sample(state)
            return state, state.z["b"]

        return jax.lax.scan(step, state, length=num_sweeps)

    state, _ = jax.block_until_ready(more(state))
    seconds, gates = [], []
    for _ in range(repeats):
        begin = perf_counter()
        state, b = jax.block_until_ready(more(state))
        seconds.append(perf_counter() - begin)
        gates.append(np.asarray(b, float).reshape(num_sweeps, -1, b.shape[-1]))
    return seconds, np.concatenate(gates).transpose(1, 0, 2)


def milliseconds(seconds: list[float], num_sweeps: int, num_chains: int = CHAINS) -> float:
    """Per sweep and chain: the median of the repeats."""
    return 1e3 * median(seconds) / num_sweeps / num_chains


def mixing(gates: np.ndarray, seconds: float) -> dict:
    """The worst gate: effective draws per second, and R-hat over the chains (infinite if each is stuck by itself)."""
    moving = [gate for gate in gates.transpose(2, 0, 1) if np.ptp(gate)]
    stuck = [all(np.ptp(chain) == 0 for chain in gate) for gate in moving]
    ess = [0.0 if s else float(array_stats.ess(gate)) for gate, s in zip(moving, stuck, strict=True)]
    r_hat = [np.inf if s else float(array_stats.rhat(gate)) for gate, s in zip(moving, stuck, strict=True)]
    return {
        "worst ESS / s": min(ess, default=np.nan) / seconds,
        "worst R-hat": max(r_hat, default=np.nan) if len(gates) > 1 else np.nan,
    }


def compare(name: str, slow: bool) -> list[dict]:
    """A row per sampler on one case, four chains started far apart: effective draws per second, R-hat."""
    model, inputs, y = CASES[name]()
    inputs, y = model.check(inputs, y)
    keys = jax.random.split(jax.random.key(0), CHAINS)
    rows = []
    for moves in ("default", "collapsed", "paper"):
        progress(f"{name}: {moves}")
        kernel = alps.ALPSGibbs(model, moves=moves, start="dispersed")
        state = kernel.init(keys, 0, None, (inputs, y), {})
        seconds, gates = timed(
            lambda state, kernel=kernel: kernel.sample(state, (inputs, y), {}), state, SWEEPS[name], REPEATS
        )
        ms = milliseconds(seconds, SWEEPS[name])
        rows.append({"sampler": moves, "ms / sweep and chain": ms} | mixing(gates, sum(seconds)))
    if slow:
        progress(f"{name}: the paper's, densely")
        dense = DensePaper(model, inputs, y)
        sample = jax.vmap(dense.sample)
        seconds, gates = timed(sample, jax.vmap(dense.init)(keys), DENSE_SWEEPS, REPEATS)
        ms = milliseconds(seconds, DENSE_SWEEPS)
        rows.append({"sampler": "paper, dense", "ms / sweep and chain": ms} | mixing(gates, sum(seconds)))
        rows += numpyros(name, model, inputs, y)
    return rows


def numpyros(name: str, model, inputs, y) -> list[dict]:
    """Rows of what NumPyro itself has: two kernels for the same program, and a horseshoe in the gates' place."""
    kernels = {
        "NumPyro's Gibbs": (composite_gibbs(model, inputs, y), 200),
        "DiscreteHMCGibbs": (DiscreteHMCGibbs(NUTS(model)), 50),
        "horseshoe, NUTS": (NUTS(horseshoe(model, inputs)), 300),
    }
    rows = []
    for sampler, (kernel, steps) in kernels.items():
        progress(f"{name}: {sampler}")
        seconds, gates = [], []
        # One chain after another: they take a single key, and NUTS with vmapped Cholesky factors deadlocked in XLA.
        for key in jax.random.split(jax.random.key(0), 2):
            # The first loop, which isn't counted, is the warm-up.
            state = kernel.init(key, steps, None, (inputs, y), {})
            chain = timed(lambda state, k=kernel: k.sample(state, (inputs, y), {}), state, steps, 1)
            seconds += chain[0]
            gates.append(chain[1][0])
        row = {"sampler": sampler, "ms / sweep and chain": milliseconds(seconds, steps, 1)}
        rows.append(row | mixing(np.stack(gates), sum(seconds)))
    return rows


def in_turn(kernels: dict, states: dict, data: dict, num_sweeps: int) -> dict:
    """Median seconds of ``num_sweeps`` sweeps of each, taken in turn: another load on the machine meets them all."""
    programs = {}
    for name, kernel in kernels.items():

        def more(state, kernel=kernel, data=data[name]):
            return jax.lax.scan(lambda s, _: (kernel.sample(s, data, {}), None), state, length=num_sweeps)[0]

        programs[name] = jax.jit(more)
    seconds: dict = {name: [] for name in programs}
    for repeat in range(1 + 3 * REPEATS):  # the first compiles
        for name, program in programs.items():
            begin = perf_counter()
            jax.block_until_ready(program(states[name]))
            if repeat:
                seconds[name].append(perf_counter() - begin)
    return {name: median(values) for name, values in seconds.items()}


def per_times() -> list[dict]:
    """Milliseconds per sweep as times grow, ranks being equal: sweeps don't touch the data."""
    covariances = {f"T={T}": alps.linear_periodic(T) for T in (7.0, 17.0, 23.0)}
    model = alps.ALPS(covariances, 9, noise_variance=0.25)
    kernels, states, data = {}, {}, {}
    progress(f"sweeps on {' and '.join(f'{n:,}' for n in TIMES)} times")
    for n in TIMES:
        t = np.arange(float(n))
        y = jnp.sin(2 * np.pi * t[:, None] / 7) + 0.5 * jax.random.normal(jax.random.key(0), (n, 9))
        kernels[n], data[n] = alps.ALPSGibbs(model), (t, y)
        states[n] = kernels[n].init(jax.random.split(jax.random.key(0), CHAINS), 0, None, (t, y), {})
    seconds = in_turn(kernels, states, data, 4_000)
    return [{"times": n, "ms / sweep and chain": milliseconds([seconds[n]], 4_000)} for n in TIMES]


def chains(name: str) -> dict:
    """Seconds of as many sweeps by one chain and by four vectorized ones."""
    model, inputs, y = CASES[name]()
    inputs, y = model.check(inputs, y)
    progress(f"{name}: one chain against {CHAINS}")
    keys = jax.random.split(jax.random.key(0), CHAINS)
    kernel = alps.ALPSGibbs(model)
    kernels, data = {1: kernel, CHAINS: kernel}, {1: (inputs, y), CHAINS: (inputs, y)}
    states = {number: kernel.init(key, 0, None, (inputs, y), {}) for number, key in ((1, keys[0]), (CHAINS, keys))}
    seconds = in_turn(kernels, states, data, SWEEPS[name] // 4)
    one, four = seconds[1], seconds[CHAINS]
    return {
        "case": name,
        "one chain [s]": one,
        f"{CHAINS} chains [s]": four,
        "of four times one": four / (CHAINS * one),
    }


def run(slow: bool = False):
    """The square wave, the three cases; with ``slow`` also the paper's App. C densely and NumPyro's own sampler."""
    problem, model, inputs, y = load("square_wave")
    rows = []
    for moves in ("default", "paper"):
        progress(f"square wave: {moves}")
        rows.append({"sampler": moves} | sweeps(model, inputs, y, moves=moves, **problem.gibbs))
    show(
        "gibbs: the square wave, 8 latents, 200 times, 64-bit",
        rows,
        f"mark: {MARK_MS} ms / sweep and chain; measured {rows[0]['ms / sweep and chain']:.3f}",
        "fit: fit_gibbs from cold; compile: JAX's tracing, lowering and compiling in it",
    )
    for name in CASES:
        rows = compare(name, slow)
        show(f"gibbs: {name}, {CHAINS} dispersed chains, {REPEATS} x {SWEEPS[name]} sweeps, 64-bit", rows)
    rows = [chains(name) for name in CASES]
    show(
        "gibbs: vectorized chains share the statistics and the compiled sweep", rows, "mark: below 1 of four times one"
    )
    rows = per_times()
    ratio = rows[1]["ms / sweep and chain"] / rows[0]["ms / sweep and chain"]
    show("gibbs: times, 3 latents, 9 outputs, 64-bit", rows, f"mark: 1.2 times; measured {ratio:.2f}")
