"""``limit``: how far a Gibbs sweep and a sweep of vb are from what one core can do, on the noisy mixture."""

from collections.abc import Callable
from math import prod
from time import process_time

import jax
import jax.numpy as jnp
import numpy as np

import alps_ppl as alps
from alps_ppl.gibbs.features import latent_features
from alps_ppl.gibbs.statistics import statistics
from alps_ppl.vb.family import groups, likelihood
from alps_ppl.vb.search import Static, random_start
from alps_ppl.vb.updates import sweep
from benchmarks.timing import load, progress, show

REPEATS, LOOP = 10, 100
FREE = {"broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "concatenate", "convert_element_type", "iota"}


def operations(jaxpr) -> tuple[float, float]:
    """Floating-point operations that a jaxpr asks for, and how many primitives it runs, those that move data aside.

    Loops count as often as they run, of branches the longest. A Cholesky factor of n rows is n^3 / 3, a triangular
    solve n^2 for each column, an eigenvalue or inverse none (there are none here); all else is one per number. Random
    bits aren't floating point, but count so: they are a part of the work.
    """
    flops = count = 0.0
    for eqn in jaxpr.eqns:
        name, size = eqn.primitive.name, max((prod(v.aval.shape) for v in eqn.outvars), default=0)
        inner = [operations(getattr(sub, "jaxpr", sub)) for sub in _inside(eqn.params)]
        if inner:
            times = eqn.params.get("length", 1)
            best = max(inner) if name == "cond" else tuple(map(sum, zip(*inner, strict=True)))
            flops, count = flops + times * best[0], count + times * best[1]
        elif name not in FREE:
            flops, count = flops + size * _each(name, eqn), count + 1
    return flops, count


def _inside(params: dict):
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns"):
                yield one


def _each(name: str, eqn) -> float:
    """Operations for each number of the result."""
    first = eqn.invars[0].aval.shape if eqn.invars else ()
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * prod(first[axis] for axis in contracted)
    return {"cholesky": first[-1] / 3 if first else 1, "triangular_solve": first[-1] if first else 1}.get(name, 1)


def least_bytes(*trees) -> int:
    """Of all their arrays: what has to be read or written at least once."""
    leaves = jax.tree.leaves(trees)
    return sum(leaf.nbytes for leaf in leaves if hasattr(leaf, "nbytes"))


def peaks() -> tuple[float, float]:
    """Operations a second of a float64 product of 1,500 rows, and bytes a second, both ways, of a copy of 256 MB."""
    a, b, big = np.ones((1_500, 1_500)), np.ones((1_500, 1_500)), np.ones(2**25)
    to = np.empty_like(big)
    return 2 * 1_500**3 / best(lambda: a @ b, 8), 2 * big.nbytes / best(lambda: np.copyto(to, big), 8)


def best(function: Callable, repeats: int = REPEATS) -> float:
    """The shortest of the repeats, in seconds of CPU, so that another process on the core doesn't count."""
    seconds = []
    for _ in range(repeats):
        begin = process_time()
        jax.block_until_ready(function())
        seconds.append(process_time() - begin)
    return min(seconds)


def looped(step: Callable, state) -> float:
    """Seconds of one step in a compiled loop of many."""
    program = jax.jit(lambda state: jax.lax.fori_loop(0, LOOP, lambda _, s: step(s), state))
    jax.block_until_ready(program(state))
    return best(lambda: program(state)) / LOOP


def run():
    """Two programs, one core (``taskset -c 1`` or the like)."""
    _, model, inputs, y = load("noisy_mixture")
    progress("the machine's peaks")
    flops_peak, bytes_peak = peaks()
    rows = []

    def row(name, step, state, data):
        progress(name)
        flops, count = operations(jax.make_jaxpr(step)(state).jaxpr)
        seconds, moved = looped(step, state), least_bytes(state, state, data)
        rows.append(
            {"": name, "µs": 1e6 * seconds, "kflop": flops / 1e3, "least kB": moved / 1e3, "primitives": count}
            | {"of peak flop/s [%]": 100 * flops / seconds / flops_peak}
            | {"of peak bytes/s [%]": 100 * moved / seconds / bytes_peak, "ns a primitive": 1e9 * seconds / count}
        )

    for chains in (1, 16):
        kernel = alps.ALPSGibbs(model)
        keys = jax.random.split(jax.random.key(0), chains) if chains > 1 else jax.random.key(0)
        state = kernel.init(keys, 0, None, (inputs, y), {})
        row(f"Gibbs, a sweep of {chains}", lambda s, k=kernel: k.sample(s, (inputs, y), {}), state, kernel.stats)

    features = latent_features(model.covariances, inputs, names=model.latents, states=False)
    data = likelihood(statistics(features, y, model.private_memory, few_shapes=True))
    parts, none = groups(model, features.layout), jnp.zeros(len(model.gate_names), bool)
    keys = jax.random.split(jax.random.key(0), 16)
    q = jax.vmap(lambda key: random_start(model, Static(parts), key, data.projection))(keys)

    def one(q):
        return sweep(model, data, parts, q, none, none, jnp.asarray(False))[0]

    row("vb, a sweep of 1", one, jax.tree.map(lambda a: a[0], q), data)
    row("vb, a sweep of 16", jax.vmap(one), q, data)
    show(
        "limit: the noisy mixture, 9 outputs, 9 latents of rank 2, 64-bit, one core",
        rows,
        f"peaks: {flops_peak / 1e9:.1f} Gflop/s (matrix product), {bytes_peak / 1e9:.1f} GB/s (copy)",
        "least kB: state read and written, statistics read; they stay in the cache, so that memory is no limit",
    )
