"""``fit_gibbs``: chains in chunks of sweeps, compiled once for all data of one shape, able to go on after a kill."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array
from tqdm.auto import tqdm

from alps_ppl import checks
from alps_ppl.checkpoints import Checkpoint
from alps_ppl.gibbs.kernel import ALPSGibbs
from alps_ppl.gibbs.posterior import GibbsFit, fit_of_draws
from alps_ppl.gibbs.sweep import ALPSGibbsState, sweep_chains
from alps_ppl.model.alps import ALPS
from alps_ppl.progress import Estimate

# The chains' axis of a state, and of draws, among devices.
BY_CHAIN, BY_DRAW = PartitionSpec("chain"), PartitionSpec(None, "chain")


def fit_gibbs(
    model: ALPS,
    inputs: Any,
    y: Any = None,
    *,
    rng_key: Array,
    num_warmup: int = 500,
    num_samples: int = 1000,
    num_chains: int = 4,
    thinning: int = 1,
    moves: str | Sequence[str] = "default",
    start: str = "held",
    max_rank: int = 2000,
    tolerance: float | None = None,
    init_params: dict[str, Array] | None = None,
    progress_bar: bool = True,
    checkpoint: Checkpoint | None = None,
) -> GibbsFit:
    """Sample the exact posterior of GP-ALPS by Gibbs sampling (paper, App. C).

    The draws are those of ``MCMC(ALPSGibbs(model), ..., chain_method="vectorized").run(rng_key, inputs, y)``, to
    round-off. A second fit of the same shapes compiles nothing. Chains are shared by as many of JAX's local devices as
    divide their number: after ``numpyro.set_host_device_count(2)`` two of a processor's cores run two chains each.

    Parameters
    ----------
    model
        The ``ALPS``; noise is fixed or has an InverseGamma prior.
    inputs, y
        (time,) or (time, column), and (time, output) with NaN for a missing cell; nothing is rescaled. Of a table that
        is too long to hold, ``sum_rows``' result in the place of both.
    rng_key
        A JAX key.
    num_warmup, num_samples
        Sweeps of each chain: those thrown away first, and those kept.
    num_chains
        Chains, in one program: side by side, or where features are many in turn.
    thinning
        Of so many sweeps one is kept.
    moves, start, max_rank, tolerance, init_params
        As in ``ALPSGibbs``.
    progress_bar
        Whether to show one.
    checkpoint
        Where the run leaves its state, and from where it goes on; ``alps-ppl run`` passes one.

    Raises a ValueError or TypeError for bad input, before any sweep.
    """
    check_lengths(num_warmup, num_samples, num_chains, thinning)
    checks.prng_key(rng_key)
    kernel = ALPSGibbs(model, moves=moves, start=start, max_rank=max_rank, tolerance=tolerance)
    kernel.bind(inputs, y)
    keys = jax.random.split(rng_key, num_chains) if num_chains > 1 else rng_key
    state = kernel.first_states(keys, num_warmup, init_params)
    # As NumPyro thins: the last sweep of each group is kept, and the groups end with the run.
    first = num_warmup + num_samples % thinning
    fields = jax.eval_shape(_fields, state)
    draws = {n: jnp.zeros((num_samples // thinning, *f.shape), f.dtype) for n, f in fields.items()}
    total, begin = num_warmup + num_samples, 0
    if checkpoint is not None:
        begin, (state, kept) = checkpoint.resume((state, draws))
        draws = {name: draws[name].at[: len(value)].set(value) for name, value in kept.items()}
    chunk = max(1, total // 100)
    if (devices := _mesh(num_chains)) is not None:
        # Where a chunk leaves them: other places would compile its program anew.
        state = jax.device_put(state, NamedSharding(devices, BY_CHAIN))
        draws = jax.device_put(draws, NamedSharding(devices, BY_DRAW))
    sweeps = partial(_sweeps, kernel.plan, devices, model, kernel.stats)
    with tqdm(total=total, initial=begin, desc="Gibbs", disable=not progress_bar, unit="sweep") as bar:
        bar.set_postfix_str("compiling")
        state, draws = jax.block_until_ready(sweeps(state, draws, begin, begin, first, thinning))
        bar.unpause()  # what compiling took is no part of what is left
        estimate = Estimate("Gibbs", "sweeps", total - begin)
        for begin_chunk in range(begin, total, chunk):
            end = min(begin_chunk + chunk, total)
            state, draws = jax.block_until_ready(sweeps(state, draws, begin_chunk, end, first, thinning))
            bar.update(end - begin_chunk)
            estimate.update(end - begin_chunk)
            bar.set_postfix_str("warmup" if end <= num_warmup else _on(state), refresh=False)
            if checkpoint is not None and checkpoint.is_due(last=end == total):
                done = max(end - first, 0) // thinning
                kept = {name: np.asarray(value)[:done] for name, value in draws.items()}
                checkpoint.write(end, (state, kept))
                del kept  # views of the draws, which the next chunk takes over
    by_chain = {name: v[None] if num_chains == 1 else jnp.swapaxes(v, 0, 1) for name, v in draws.items()}
    return fit_of_draws(kernel, kernel.to_sites(by_chain))


def check_settings(model: ALPS, **settings: Any) -> None:
    """A ValueError or TypeError for what ``fit_gibbs`` would refuse of its settings."""
    lengths = {"num_warmup": 500, "num_samples": 1000, "num_chains": 4, "thinning": 1}
    check_lengths(**{name: settings.pop(name, default) for name, default in lengths.items()})
    ALPSGibbs(model, **settings)


def check_lengths(num_warmup: Any, num_samples: Any, num_chains: Any, thinning: Any) -> None:
    """A ValueError for run lengths that can't be."""
    checks.whole_number("num_warmup", num_warmup, least=0)
    for name, value in {"num_samples": num_samples, "num_chains": num_chains, "thinning": thinning}.items():
        checks.whole_number(name, value)
    if thinning > num_samples:
        raise ValueError(f"thinning: expected at most num_samples, {num_samples}, got {thinning}")


def _mesh(num_chains: int) -> Mesh | None:
    """The devices that share the chains, None for one."""
    devices = jax.local_devices()
    number = max(k for k in range(1, min(num_chains, len(devices)) + 1) if num_chains % k == 0)
    return Mesh(np.array(devices[:number]), "chain") if number > 1 else None


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=5)
def _sweeps(plan, devices: Mesh | None, model, stats, state: ALPSGibbsState, draws, begin, end, first, thinning):
    """Sweeps ``begin`` to ``end`` of all chains, and the draws with those that are kept."""
    some = partial(_some_sweeps, plan)
    arguments = (model, stats, state, draws, begin, end, first, thinning)
    if devices is None:
        return some(*arguments)
    whole = PartitionSpec()
    specs = (whole, whole, BY_CHAIN, BY_DRAW, *[whole] * 4)
    # A sweep's own loops start from constants, which the check takes for another type than what each device has later.
    return jax.shard_map(some, mesh=devices, in_specs=specs, out_specs=(BY_CHAIN, BY_DRAW), check_vma=False)(*arguments)


def _some_sweeps(plan, model, stats, state: ALPSGibbsState, draws, begin, end, first, thinning):
    def step(n, carry):
        state, draws = carry
        state = sweep_chains(plan, model, stats, state)
        # Draws of the warm-up, and those thinned out, are overwritten by the one that is kept.
        place = jnp.maximum(n - first, 0) // thinning
        return state, {name: draws[name].at[place].set(value) for name, value in _fields(state).items()}

    return jax.lax.fori_loop(begin, end, step, (state, draws))


def _fields(state: ALPSGibbsState) -> dict[str, Array]:
    return {**state.z, "potential_energy": state.potential_energy, "gate_prob": state.gate_prob}


def _on(state: ALPSGibbsState) -> str:
    return f"{float(state.z['b'].sum(-1).mean()):.1f} of {state.z['b'].shape[-1]} latents on"
