"""Gibbs chains in chunks: what ``MCMC.run`` does with vectorized chains, but able to go on after it was killed."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from tqdm.auto import tqdm

from alps_ppl.checkpoints import Checkpoint
from alps_ppl.gibbs import ALPSGibbs, ALPSGibbsState

FIELDS = ("potential_energy", "gate_prob", "weights")


class GibbsFit:
    """The draws of a Gibbs run; it answers as NumPyro's ``MCMC`` does after its run.

    ``sampler``: the kernel, which knows the model and the inputs. ``samples``: the program's sites, (chain, draw, ...)
    each; ``extra_fields``: potential_energy, gate_prob and weights.
    """

    def __init__(self, sampler: ALPSGibbs, samples: dict[str, Array], extra_fields: dict[str, Array]):
        self.sampler = sampler
        self._samples = samples
        self._extra_fields = extra_fields

    def get_samples(self, group_by_chain: bool = False) -> dict[str, Array]:
        """The draws of the program's sites, (draw, ...) or (chain, draw, ...)."""
        return _grouped(self._samples, group_by_chain)

    def get_extra_fields(self, group_by_chain: bool = False) -> dict[str, Array]:
        """The draws of what isn't a site, (draw, ...) or (chain, draw, ...)."""
        return _grouped(self._extra_fields, group_by_chain)

    def __repr__(self):
        num_chains, num_draws = self._samples["b"].shape[:2]
        return f"GibbsFit({self.sampler.model}, {num_chains} chains of {num_draws} draws)"


def _grouped(draws: dict[str, Array], group_by_chain: bool) -> dict[str, Array]:
    return draws if group_by_chain else {name: value.reshape(-1, *value.shape[2:]) for name, value in draws.items()}


def run_chains(
    kernel: ALPSGibbs,
    rng_key: Array,
    inputs: Any,
    y: Any,
    *,
    num_warmup: int,
    num_samples: int,
    num_chains: int = 1,
    thinning: int = 1,
    progress_bar: bool = True,
    checkpoint: Checkpoint | None = None,
) -> GibbsFit:
    """The draws that ``MCMC(kernel, ..., chain_method="vectorized").run(rng_key, inputs, y)`` makes, to round-off.

    One compiled loop serves warm-up, draws and every chunk.
    """
    keys = jax.random.split(rng_key, num_chains) if num_chains > 1 else rng_key
    state = kernel.init(keys, num_warmup, None, (inputs, y), {})
    # As NumPyro thins: the last sweep of each group is kept, and the groups end with the run.
    first = num_warmup + num_samples % thinning
    fields = jax.eval_shape(_fields, state)
    draws = {n: jnp.zeros((num_samples // thinning, *f.shape), f.dtype) for n, f in fields.items()}

    @partial(jax.jit, donate_argnums=1)
    def sweeps(state: ALPSGibbsState, draws, start, stop):
        def sweep(n, carry):
            state, draws = carry
            state = kernel.sample(state, (), {})
            # Draws of the warm-up, and those thinned out, are overwritten by the one that is kept.
            place = jnp.maximum(n - first, 0) // thinning
            return state, {name: draws[name].at[place].set(value) for name, value in _fields(state).items()}

        return jax.lax.fori_loop(start, stop, sweep, (state, draws))

    total, begin = num_warmup + num_samples, 0
    if checkpoint is not None:
        begin, (moving, kept) = checkpoint.resume((state._replace(stats=()), draws))
        state = moving._replace(stats=state.stats)  # the data's, and computed again
        draws = {name: draws[name].at[: len(value)].set(value) for name, value in kept.items()}
    chunk = max(1, total // 100)
    with tqdm(total=total, initial=begin, desc="Gibbs", disable=not progress_bar, unit="sweep") as bar:
        for start in range(begin, total, chunk):
            stop = min(start + chunk, total)
            state, draws = jax.block_until_ready(sweeps(state, draws, start, stop))
            bar.update(stop - start)
            bar.set_postfix_str("warmup" if stop <= num_warmup else _on(state), refresh=False)
            if checkpoint is not None and checkpoint.is_due(last=stop == total):
                done = max(stop - first, 0) // thinning
                kept = {name: np.asarray(value)[:done] for name, value in draws.items()}
                checkpoint.write(stop, (state._replace(stats=()), kept))
                del kept  # views of the draws, which the next chunk takes over
    z = {name: value for name, value in draws.items() if name not in FIELDS or name == "weights"}
    to_sites = kernel.postprocess_fn((inputs, y), {})
    samples = jax.jit(partial(jax.lax.map, to_sites if num_chains == 1 else jax.vmap(to_sites)))(z)
    return GibbsFit(kernel, *(_by_chain(part, num_chains) for part in (samples, {n: draws[n] for n in FIELDS})))


def _fields(state: ALPSGibbsState) -> dict[str, Array]:
    return {**state.z, "potential_energy": state.potential_energy, "gate_prob": state.gate_prob}


def _on(state: ALPSGibbsState) -> str:
    return f"{float(state.z['b'].sum(-1).mean()):.1f} of {state.z['b'].shape[-1]} latents on"


def _by_chain(draws: dict[str, Array], num_chains: int) -> dict[str, Array]:
    """(draw, chain, ...), or (draw, ...) of a single chain, as (chain, draw, ...)."""
    return {name: v[None] if num_chains == 1 else jnp.swapaxes(v, 0, 1) for name, v in draws.items()}
