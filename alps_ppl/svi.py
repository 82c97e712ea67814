"""Stochastic variational inference (paper, section 3 and App. B): ``fit_svi``."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from numpyro import handlers
from numpyro.infer import SVI, TraceMeanField_ELBO
from numpyro.infer.reparam import TransformReparam
from numpyro.infer.svi import SVIState
from numpyro.optim import _NumPyroOptim
from numpyro.util import is_prng_key
from tqdm.auto import tqdm

from alps_ppl.checkpoints import Checkpoint, Checkpoints
from alps_ppl.covariances import parameters
from alps_ppl.guide import StructuredMeanField
from alps_ppl.model import ALPS, check_count, given, numbers, short
from alps_ppl.temperature import annealed_temperature


@dataclass(frozen=True)
class SVIFit:
    """What ``fit_svi`` returns. ``model`` has the covariance parameters that were learnt, if any.

    ``inclusion_prob`` (latent,): rho_j = q(b_j > 1/2). ``losses`` (step,): negative ELBO estimates of
    the *relaxed* model at each step's ``temperatures``, so only comparable at one temperature.
    ``elbo``: a lower bound on the log evidence of the *discrete* model, and ``elbo_mcse`` its Monte
    Carlo error. ``params``: the guide's, in NumPyro's names. ``restart_elbos``: that of every restart, by
    the same random numbers, NaN for one that failed; differences below ``elbo_mcse`` are ties. ``inputs``:
    those fitted.
    """

    model: ALPS
    guide: StructuredMeanField
    params: dict[str, Array]
    losses: Float[np.ndarray, " step"]
    temperatures: Float[np.ndarray, " step"]
    elbo: float = float("nan")
    elbo_mcse: float = float("nan")
    restart_elbos: list[float] = field(default_factory=list)
    inputs: Float[np.ndarray, "time *column"] | None = None

    @property
    def inclusion_prob(self) -> Float[np.ndarray, " latent"]:
        return np.asarray(self.guide.inclusion_prob(self.params))

    def save(self, path: str | Path) -> None:
        """Write this fit to a netCDF file; ``alps_ppl.load`` reads it. See ``alps_ppl.save``."""
        from alps_ppl.storage import save

        save(self, path)

    def __repr__(self):
        gates = ", ".join(f"{n}: {r:.3f}" for n, r in zip(self.model.latents, self.inclusion_prob, strict=True))
        return f"SVIFit(elbo={self.elbo:.2f}, inclusion_prob={{{gates}}})"


class NonFiniteLossError(FloatingPointError):
    """The loss or its gradient stopped being finite; ``step`` says when and ``fit`` is the last finite state."""

    def __init__(self, message: str, step: int, fit: SVIFit):
        super().__init__(message)
        self.step = step
        self.fit = fit


def relaxed_program(model: ALPS) -> Callable:
    """The program that SVI fits: ``model(..., relaxed=True)`` with its gates in logit space.

    A relaxed draw near 0 or 1 is clamped in the unit interval, which in float32 turns the sign of a
    confident gate's KL gradient; its logit is not. ``temperature`` is the guide's and isn't used here.
    """

    def program(inputs, y=None, *, temperature=None, **kwargs):
        return model(inputs, y, **kwargs)

    return in_logit_space(program)


def in_logit_space(program: Callable) -> Callable:
    """``program`` with its relaxed gates ``b`` sampled as logits ``b_base``; the Jacobian cancels in the ELBO."""
    return handlers.reparam(program, config={"b": TransformReparam()})


def initial_inducing_inputs(inputs: Float[Array, "time *column"], num_inducing: int) -> Array:
    """Inducing inputs spread evenly over each column's range; several columns are shuffled against one another."""
    columns = np.asarray(inputs, np.float64).reshape(len(inputs), -1).T
    # Half a spacing inside the ends; the shuffles make it a Latin hypercube.
    grid = (np.arange(num_inducing) + 0.5) / num_inducing
    rng = np.random.default_rng(0)
    spread = [
        column.min() + np.ptp(column) * (grid if k == 0 else rng.permutation(grid)) for k, column in enumerate(columns)
    ]
    return jnp.asarray(np.stack(spread, -1).reshape(num_inducing, *np.shape(inputs)[1:]))


def fit_svi(
    model: ALPS,
    inputs: Any,
    y: Any,
    *,
    num_inducing: int = 20,
    num_steps: int = 10_000,
    learning_rate: float = 0.01,
    rng_key: Array,
    num_particles: int = 1,
    batch_size: int | None = None,
    num_restarts: int = 1,
    temperature: Callable | float = annealed_temperature,
    optimizer: optax.GradientTransformation | _NumPyroOptim | None = None,
    progress_bar: bool = True,
    checkpoints: Checkpoints | None = None,
) -> SVIFit:
    """Fit the structured mean-field family to GP-ALPS by stochastic variational inference.

    Parameters
    ----------
    inputs, y
        (time,) or (time, column), and (time, output) with NaN for a missing cell; nothing is rescaled.
    num_inducing
        How many inducing inputs the latents share; learnt, spread over the inputs' range at first.
    num_steps, learning_rate, optimizer
        Steps of Adam with this rate, or of the given optax or NumPyro optimiser (then ``learning_rate`` isn't used).
    num_particles
        Monte Carlo draws per gradient.
    batch_size
        Times per step, drawn anew without replacement; None takes all.
    num_restarts
        Independent starts; the one with the highest ``elbo`` is returned. The first starts from the covariances as
        they are, the others from parameters spread over their ``covariance_bounds``: an ELBO has many local optima
        over a period.
    temperature
        Of the guide's concrete gates: a function of (step, num_steps), a number, or one per step.
    checkpoints
        Where the fit leaves its state, and from where it goes on; ``alps-ppl run`` passes them.

    Raises
    ------
    ValueError, TypeError
        For bad input, before any step.
    NonFiniteLossError
        When the loss or its gradient isn't finite, in every restart; its ``fit`` is the last finite state. A single
        restart that fails is left out with a warning.
    """
    if not isinstance(model, ALPS):
        raise TypeError(f"model: expected an alps_ppl.ALPS, got {type(model).__name__}")
    inputs, y = model.check(inputs, given(y))
    optimizer, temperatures = check_settings(
        len(inputs),
        num_inducing=num_inducing,
        num_steps=num_steps,
        learning_rate=learning_rate,
        num_particles=num_particles,
        batch_size=batch_size,
        num_restarts=num_restarts,
        temperature=temperature,
        optimizer=optimizer,
    )
    check_key(rng_key)
    guide = StructuredMeanField(model, initial_inducing_inputs(inputs, num_inducing))
    svi = SVI(
        relaxed_program(model),
        in_logit_space(guide),
        optimizer,
        TraceMeanField_ELBO(num_particles=num_particles),
    )
    init = jax.jit(
        lambda key, start: svi.init(
            key, inputs, y, relaxed=True, temperature=float(temperatures[0]), init_params=start or None
        )
    )
    steps = _compiled_steps(svi, inputs, y, jnp.asarray(temperatures, inputs.dtype), batch_size)
    fits: list[SVIFit] = []
    elbos: list[float] = []
    keys = jax.vmap(jax.random.split)(jax.random.split(rng_key, num_restarts))
    elbo_key = keys[0, 1]  # the same for all: their ELBOs' differences are then less noisy
    starts = _covariance_starts(model, num_restarts, inputs.dtype)
    for restart, fit_key in enumerate(keys[:, 0]):
        state = init(fit_key, starts[restart])
        name = "SVI" if num_restarts == 1 else f"SVI, start {restart + 1} of {num_restarts}"
        part = None if checkpoints is None else checkpoints.part(f"svi_{restart}", "steps")
        state, losses, failed = _run(steps, state, num_steps, name, progress_bar, part)
        params = svi.get_params(state)
        learnt = model.with_learnt(params)
        learnt_guide = StructuredMeanField(learnt, guide.inducing_inputs)
        fit = SVIFit(learnt, learnt_guide, params, losses, temperatures, inputs=np.asarray(inputs))
        if failed:
            step = len(losses)
            failure = NonFiniteLossError(
                f"{name} stopped at step {step} of {num_steps}: the loss or its gradient is not finite. Try a smaller "
                f"learning_rate (now {learning_rate}), 64-bit (numpyro.enable_x64()), or y and mixing_variance on "
                "the same scale. The exception's .fit is the last finite state",
                step,
                fit,
            )
            if restart == num_restarts - 1 and not fits:
                raise failure
            warnings.warn(f"{failure}; the other starts go on without it", RuntimeWarning, stacklevel=2)
            elbos.append(float("nan"))
            continue
        elbo, mcse = discrete_elbo(fit, inputs, y, elbo_key)
        elbos.append(elbo)
        fits.append(replace(fit, elbo=elbo, elbo_mcse=mcse))
    return replace(max(fits, key=lambda fit: fit.elbo), restart_elbos=elbos)


def _covariance_starts(model: ALPS, num_restarts: int, dtype) -> list[dict[str, Array]]:
    """Where each restart's covariance parameters start: the first at their own values, the others spread by ratio."""
    starts: list[dict[str, Array]] = [{} for _ in range(num_restarts)]
    rng = np.random.default_rng(0)
    for j, latent in enumerate(model.latents):
        for path, pair in model.covariance_bounds.get(latent, {}).items():
            low, high = np.log(pair)
            grid = (rng.permutation(num_restarts - 1) + 0.5) / max(num_restarts - 1, 1)
            own = np.log(parameters(model.covariances[j])[path])
            for start, place in zip(starts, [own, *(low + (high - low) * grid)], strict=True):
                start[f"{latent}.{path}"] = jnp.asarray(place, dtype)
    return starts


def _compiled_steps(svi: SVI, inputs, y, temperatures, batch_size: int | None) -> Callable:
    """A compiled (state, losses, start, stop) -> the same after those steps; it stops at a non-finite loss."""
    num_times = len(inputs)

    def step(n, state: SVIState):
        kwargs = {"relaxed": True, "temperature": temperatures[n]}
        if batch_size is None:
            return svi.stable_update(state, inputs, y, **kwargs)
        rng_key, batch_key = jax.random.split(state.rng_key)
        batch = jax.random.choice(batch_key, num_times, (batch_size,), replace=False)
        state = SVIState(state.optim_state, state.mutable_state, rng_key)
        return svi.stable_update(state, inputs[batch], y[batch], num_times=num_times, **kwargs)

    def body(carry):
        n, stop, state, losses = carry
        state, loss = step(n, state)
        return n + 1, stop, state, losses.at[n].set(loss)

    def go_on(carry):
        n, stop, _, losses = carry
        return (n < stop) & ((n == 0) | jnp.isfinite(losses[n - 1]))

    # The bounds are arguments, so that one compiled loop serves every chunk, the last and shorter one too.
    @partial(jax.jit, donate_argnums=(0, 1))
    def steps(state, losses, start, stop):
        n, _, state, losses = jax.lax.while_loop(go_on, body, (start, stop, state, losses))
        return state, losses, n

    return steps


def _run(
    steps: Callable, state: SVIState, num_steps: int, name: str, progress_bar: bool, checkpoint: Checkpoint | None
):
    losses = jnp.zeros(num_steps, jnp.asarray(0.0).dtype)
    begin, (state, losses) = checkpoint.resume((state, losses)) if checkpoint else (0, (state, losses))
    chunk = max(1, num_steps // 100)
    with tqdm(total=num_steps, initial=begin, desc=name, disable=not progress_bar, unit="step") as bar:
        for start in range(begin, num_steps, chunk):
            stop = min(start + chunk, num_steps)
            state, losses, done = steps(state, losses, start, stop)
            recent = np.asarray(losses[start : int(done)])
            if not np.isfinite(recent[-1]):
                return state, np.asarray(losses[: int(done) - 1]), True
            bar.update(stop - start)
            bar.set_postfix_str(f"ELBO {-recent.mean():.2f}", refresh=False)
            if checkpoint and checkpoint.is_due(last=stop == num_steps):
                checkpoint.write(stop, (state, losses))
    return state, np.asarray(losses), False


def discrete_elbo(
    fit: SVIFit, inputs: Any, y: Any, rng_key: Array, *, num_particles: int = 1000
) -> tuple[float, float]:
    """An estimate of the discrete model's ELBO at the fit's q, its gates Bernoulli, and its Monte Carlo error.

    It bounds log p(Y) of the model as written; the relaxed loss bounds the relaxed model's evidence.
    """
    inputs, y = fit.model.check(inputs, given(y), warn=False)
    check_key(rng_key)
    loss = TraceMeanField_ELBO().loss
    losses = jax.jit(
        lambda params, keys: jax.lax.map(
            lambda key: loss(key, params, fit.model, fit.guide.discrete, inputs, y), keys, batch_size=50
        )
    )(fit.params, jax.random.split(rng_key, num_particles))
    return -float(losses.mean()), float(losses.std() / np.sqrt(num_particles))


def _temperatures(temperature: Callable | float, num_steps: int) -> Float[np.ndarray, " step"]:
    steps = np.arange(num_steps)
    values = temperature(steps, num_steps) if callable(temperature) else temperature
    values = numbers("temperature", values)
    if values.shape not in ((), (num_steps,)):
        raise ValueError(f"temperature: expected a number or one per step ({num_steps}), got shape {values.shape}")
    values = np.broadcast_to(values, (num_steps,))
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(
            f"temperature: expected positive, finite temperatures, got {values.min():g} to {values.max():g}"
        )
    return values


def check_settings(
    num_times: int,
    *,
    num_inducing,
    num_steps,
    learning_rate,
    num_particles,
    batch_size,
    num_restarts,
    temperature,
    optimizer,
):
    """The optimiser and the temperatures of ``fit_svi``'s arguments; an error for what can't be."""
    counts = {
        "num_inducing": num_inducing,
        "num_steps": num_steps,
        "num_particles": num_particles,
        "num_restarts": num_restarts,
    }
    if batch_size is not None:
        counts["batch_size"] = batch_size
    for name, value in counts.items():
        check_count(name, value)
    if batch_size is not None and batch_size > num_times:
        raise ValueError(f"batch_size: expected at most the {num_times} times there are, got {batch_size}")
    return _optimizer(optimizer, learning_rate), _temperatures(temperature, num_steps)


def _optimizer(optimizer, learning_rate):
    if optimizer is None:
        if callable(learning_rate):
            raise TypeError("learning_rate: expected a number, got a schedule; pass optimizer=optax.adam(schedule)")
        rate = numbers("learning_rate", learning_rate)
        if rate.shape != () or not (np.isfinite(rate) and rate > 0):
            raise ValueError(f"learning_rate: expected a positive number, got {short(learning_rate)}")
        return optax.adam(float(rate))
    if not isinstance(optimizer, (optax.GradientTransformation, _NumPyroOptim)):
        raise TypeError(f"optimizer: expected one of optax, e.g. optax.adam(0.01), got {short(optimizer)}")
    return optimizer


def check_key(rng_key) -> None:
    if not is_prng_key(rng_key):
        raise TypeError(f"rng_key: expected a JAX key, e.g. jax.random.key(0), got {short(rng_key)}")
