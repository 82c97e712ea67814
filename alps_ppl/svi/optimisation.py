"""The steps of SVI (paper, App. B.6), compiled once for all models, data and seeds of one shape."""

from collections.abc import Callable
from copy import copy
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int
from numpyro import handlers
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.reparam import TransformReparam
from numpyro.infer.svi import SVIState
from numpyro.optim import _NumPyroOptim
from tqdm.auto import tqdm

from alps_ppl.checkpoints import Checkpoint
from alps_ppl.model.alps import ALPS
from alps_ppl.progress import Estimate
from alps_ppl.svi.guide import StructuredMeanField
from alps_ppl.svi.likelihood import analytic_likelihood

# For the first of so many parts of the steps private memories are held at white noise.
WHITE_PART = 5
# The log of a prior probability that no likelihood outweighs.
NEVER = -1e6

Optimizer = optax.GradientTransformation | _NumPyroOptim


def relaxed_program(model: ALPS) -> Callable:
    """App. B.3: the program that SVI fits, ``model(..., relaxed=True)``, with its gates in logit space.

    A gate's Bernoulli prior becomes a concrete distribution of temperature 1/2. A relaxed draw near 0 or 1 is clamped
    in the unit interval, which in float32 turns the sign of a confident gate's KL gradient; its logit is not.
    ``temperature`` is the guide's and isn't used here.
    """

    def program(inputs, y=None, *, temperature=None, **kwargs):
        return model(inputs, y, **kwargs)

    return in_logit_space(program)


def in_logit_space(program: Callable) -> Callable:
    """``program`` with its relaxed gates ``b`` sampled as logits ``b_base``; the Jacobian cancels in the ELBO."""
    return handlers.reparam(program, config={"b": TransformReparam()})


def white_at_first(model: ALPS, is_first: Bool[Array, ""]) -> ALPS:
    """The model, its private memories held at the grid's smallest share while ``is_first``.

    Else an output's own memory would explain what the latents, which start at random, don't yet.
    """
    if model.private_memory is None:
        return model
    share, log_prior = jnp.asarray(model.private_memory.share), jnp.asarray(model.private_memory.log_prior)
    held = jnp.where(share > share.min(), NEVER, log_prior)
    white = copy(model)
    white.private_memory = model.private_memory._replace(log_prior=jnp.where(is_first, held, log_prior))
    return white


def _program(model: ALPS, inducing_inputs, inputs, y, *, temperature, num_times=None):
    return model.program(inputs, y, relaxed=True, num_times=num_times)


def _family(model: ALPS, inducing_inputs, inputs, y, *, temperature, num_times=None):
    return StructuredMeanField(model, inducing_inputs).relaxed(inputs, y, temperature=temperature)


class Compiled(NamedTuple):
    """``init(key, start, *arguments)`` and ``steps(state, losses, begin, end, temperatures, *arguments)``.

    ``arguments`` are the model, the inducing inputs at the start, ``inputs`` and ``y``. ``svi`` has ``get_params``.
    """

    svi: SVI
    init: Callable
    steps: Callable


def _spread(key: Array, num_times: int, batch_size: int) -> Int[Array, " batch"]:
    """A time from each of ``batch_size`` equal stretches of all times, in their order.

    Its cost doesn't grow with the times. A time is expected as often as any other, batch_size / num_times: one across
    the border of two stretches counts for each by its part in it.
    """
    starts = np.arange(batch_size) * num_times / batch_size
    whole = np.floor(starts).astype(int)
    width = num_times / batch_size
    within = (starts - whole) + jax.random.uniform(key, (batch_size,)) * width
    return jnp.minimum(whole + jnp.floor(within).astype(int), num_times - 1)


@lru_cache(maxsize=16)
def compiled(
    structure: Any,
    optimizer: Optimizer | float,
    num_particles: int,
    batch_size: int | None,
    likelihood: str,
) -> Compiled:
    """App. B.6: the programs that maximise the ELBO.

    Parameters
    ----------
    structure
        ``jax.tree.structure`` of the models.
    optimizer
        One of optax or NumPyro, or the learning rate of Adam.
    num_particles
        Draws of q per step.
    batch_size
        Times per step, spread over all, None for all. The ELBO is a sum over times, so that a batch's, its
        log-likelihood scaled up to all times, is unbiased.
    likelihood
        "sampled", the paper's, or "analytic".
    """
    optim = optax.adam(optimizer) if isinstance(optimizer, float) else optimizer
    loss = TraceMeanField_ELBO(num_particles=num_particles)
    pair = analytic_likelihood(_program, _family) if likelihood == "analytic" else (_program, _family)
    svi = SVI(*map(in_logit_space, pair), optim, loss)

    @jax.jit
    def init(key, start, temperature, *arguments):
        return svi.init(key, *arguments, temperature=temperature, init_params=start or None)

    def step(state: SVIState, temperature, model, inducing_inputs, inputs, y):
        if batch_size is None:
            return svi.stable_update(state, model, inducing_inputs, inputs, y, temperature=temperature)
        rng_key, batch_key = jax.random.split(state.rng_key)
        batch = _spread(batch_key, len(inputs), batch_size)
        state = SVIState(state.optim_state, state.mutable_state, rng_key)
        minibatch = (model, inducing_inputs, inputs[batch], y[batch])
        return svi.stable_update(state, *minibatch, num_times=len(inputs), temperature=temperature)

    # The bounds are arguments, so that one compiled loop serves every chunk, the last and shorter one too.
    @partial(jax.jit, donate_argnums=(0, 1))
    def steps(state, losses, begin, end, temperatures, *arguments):
        def body(carry):
            n, state, losses = carry
            model, *rest = arguments
            model = white_at_first(model, n < len(temperatures) // WHITE_PART)
            state, loss = step(state, temperatures[n], model, *rest)
            return n + 1, state, losses.at[n].set(loss)

        def go_on(carry):
            n, _, losses = carry
            return (n < end) & ((n == 0) | jnp.isfinite(losses[n - 1]))

        n, state, losses = jax.lax.while_loop(go_on, body, (begin, state, losses))
        return state, losses, n

    return Compiled(svi, init, steps)


def optimise(
    program: Compiled,
    state: SVIState,
    temperatures: Float[Array, " step"],
    arguments: tuple,
    *,
    name: str,
    progress_bar: bool,
    checkpoint: Checkpoint | None,
) -> tuple[SVIState, Float[np.ndarray, " step"]]:
    """All steps, in chunks: the last state and the losses, fewer than steps where one isn't finite.

    Parameters
    ----------
    program
        Of ``compiled``.
    state
        Where it starts, and what the checkpoint, if there is one, takes the place of.
    temperatures
        Of the concrete gates, one per step.
    arguments
        The model, the inducing inputs at the start, inputs and y.
    name
        What the progress bar says.
    """
    num_steps = len(temperatures)
    losses = jnp.zeros(num_steps, jnp.asarray(0.0).dtype)
    begin, (state, losses) = checkpoint.resume((state, losses)) if checkpoint else (0, (state, losses))
    chunk = max(1, num_steps // 100)
    with tqdm(total=num_steps, initial=begin, desc=name, disable=not progress_bar, unit="step") as bar:
        bar.set_postfix_str("compiling")
        state, losses, _ = jax.block_until_ready(program.steps(state, losses, begin, begin, temperatures, *arguments))
        bar.unpause()  # what compiling took is no part of what is left
        estimate = Estimate(name, "steps", num_steps - begin)
        for start in range(begin, num_steps, chunk):
            stop = min(start + chunk, num_steps)
            state, losses, done = program.steps(state, losses, start, stop, temperatures, *arguments)
            recent = np.asarray(losses[start : int(done)])
            if not np.isfinite(recent[-1]):
                return state, np.asarray(losses[: int(done) - 1])
            bar.update(stop - start)
            estimate.update(stop - start)
            bar.set_postfix_str(f"ELBO {-recent.mean():.2f}", refresh=False)
            if checkpoint and checkpoint.is_due(last=stop == num_steps):
                checkpoint.write(stop, (state, losses))
    return state, np.asarray(losses)
