"""``fit_svi`` (paper, section 3 and App. B)."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from numpyro.optim import _NumPyroOptim

from alps_ppl import checks
from alps_ppl.checkpoints import Checkpoints
from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import parameters
from alps_ppl.model.scales import kind_of
from alps_ppl.svi.inducing import initial_inducing_inputs, unresolved
from alps_ppl.svi.likelihood import LIKELIHOODS
from alps_ppl.svi.optimisation import Optimizer, compiled, optimise
from alps_ppl.svi.posterior import SVIFit, discrete_elbo
from alps_ppl.svi.temperature import annealed_temperature


class NonFiniteLossError(FloatingPointError):
    """The loss or its gradient stopped being finite; ``step`` says when and ``fit`` is the last finite state."""

    def __init__(self, message: str, step: int, fit: SVIFit):
        super().__init__(message)
        self.step = step
        self.fit = fit


def fit_svi(
    model: ALPS,
    inputs: Any,
    y: Any = None,
    *,
    num_inducing: int = 20,
    num_steps: int = 10_000,
    learning_rate: float = 0.01,
    rng_key: Array,
    num_particles: int = 1,
    batch_size: int | None = None,
    num_restarts: int = 1,
    temperature: Callable | float = annealed_temperature,
    optimizer: Optimizer | None = None,
    likelihood: str = "sampled",
    progress_bar: bool = True,
    checkpoints: Checkpoints | None = None,
) -> SVIFit:
    """Fit the structured mean-field family to GP-ALPS by stochastic variational inference (paper, App. B).

    A second fit of the same shapes and settings compiles nothing.

    Parameters
    ----------
    model
        The ``ALPS``; of its ``covariance_ranges`` the best points are learnt, as with ``covariance_bounds``.
    inputs, y
        (time,) or (time, column), and (time, output) with NaN for a missing cell; nothing is rescaled.
    num_inducing
        How many inducing inputs the latents share; learnt, spread over the inputs' range at first. A warning names the
        latents that so few can't resolve, and how many could.
    num_steps, learning_rate, optimizer
        Steps of Adam with this rate, or of the given optax or NumPyro optimiser (then ``learning_rate`` isn't used).
    rng_key
        A JAX key.
    num_particles
        Monte Carlo draws per gradient.
    batch_size
        Times per step, one drawn anew from each of as many equal stretches; None takes all. A step then costs the same
        for any number of times.
    num_restarts
        Independent starts; the one with the highest ``elbo`` is returned. The first starts from the covariances as
        they are, the others from parameters spread over their ``covariance_bounds``: an ELBO has many local optima
        over a period.
    temperature
        Of the guide's concrete gates: a function of (step, num_steps), a number, or one per step.
    likelihood
        How a step takes the expected log likelihood, App. B.2: "sampled", the paper's mean over draws of x, H, b and
        the noise; or "analytic", exact but for the gates, which are still drawn. Both have the same mean. A private
        memory and Student's noise have no closed form.
    progress_bar
        Whether to show one.
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
    checks.instance("model", model, ALPS, "an alps_ppl.ALPS")
    check_model(model, likelihood)
    if y is None and hasattr(inputs, "num_rows"):
        raise TypeError("inputs: fit_svi needs the rows, not sum_rows' result, which fit_gibbs and fit_vb take")
    model = model.with_bounds()
    inputs, y = model.check_data(inputs, y)
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
        likelihood=likelihood,
    )
    checks.prng_key(rng_key)
    if model.private_memory is not None and batch_size is not None:
        raise ValueError("batch_size: with a private memory times aren't independent; leave it out, which takes all")
    for warning in unresolved(model, inputs, num_inducing):
        checks.warn_caller(warning)
    program = compiled(jax.tree.structure(model), optimizer, num_particles, batch_size, likelihood)
    arguments = (model, initial_inducing_inputs(inputs, num_inducing), inputs, y)
    temperatures_of_steps = jnp.asarray(temperatures, inputs.dtype)
    keys = jax.vmap(jax.random.split)(jax.random.split(rng_key, num_restarts))
    elbo_key = keys[0, 1]  # the same for all: their ELBOs' differences are then less noisy
    fits: list[SVIFit] = []
    elbos: list[float] = []
    for restart, (key, start) in enumerate(zip(keys[:, 0], _starts(model, num_restarts, inputs.dtype), strict=True)):
        name = "SVI" if num_restarts == 1 else f"SVI, start {restart + 1} of {num_restarts}"
        part = None if checkpoints is None else checkpoints.part(f"svi_{restart}", "steps")
        state = program.init(key, start, temperatures_of_steps[0], *arguments)
        state, losses = optimise(
            program, state, temperatures_of_steps, arguments, name=name, progress_bar=progress_bar, checkpoint=part
        )
        params = program.svi.get_params(state)
        fit = SVIFit(model.with_learnt(params), inputs, y, params, losses, temperatures)
        if len(losses) < num_steps:
            failure = NonFiniteLossError(
                f"{name} stopped at step {len(losses)} of {num_steps}: the loss or its gradient is not finite. Try a "
                f"smaller learning_rate (now {learning_rate}), 64-bit (numpyro.enable_x64()), or y and "
                "mixing_variance on the same scale. The exception's .fit is the last finite state",
                len(losses),
                fit,
            )
            if restart == num_restarts - 1 and not fits:
                raise failure
            warnings.warn(f"{failure}; the other starts go on without it", RuntimeWarning, stacklevel=2)
            elbos.append(float("nan"))
            continue
        elbo, mcse = discrete_elbo(fit, elbo_key)
        elbos.append(elbo)
        fits.append(replace(fit, elbo=elbo, elbo_mcse=mcse))
    return replace(max(fits, key=lambda fit: fit.elbo), restart_elbos=elbos)


def check_model(model: ALPS, likelihood: str = "sampled") -> None:
    """A ValueError for a model that SVI doesn't fit, or not with this ``likelihood``."""
    model.check_sum_out()
    for argument, is_given in (("private_memory", model.private_memory), ("noise_df", model.noise_df)):
        if likelihood == "analytic" and is_given is not None:
            raise ValueError(
                f"likelihood: with {argument} the expected log likelihood has no closed form: it is the log of a sum "
                "over a grid; take likelihood='sampled', the default"
            )
    for name, unknown in model.unknown_scales.items():
        if kind_of(model.covariances[model.copy_of.index(name)], unknown.path) == "time":
            raise ValueError(
                f"covariance_ranges[{name!r}]: SVI learns by gradients, and a step's time has none; take "
                "alps.fit_gibbs (on the command line: --engine gibbs)"
            )


def _starts(model: ALPS, num_restarts: int, dtype) -> list[dict[str, Array]]:
    """Where each restart's covariance parameters start: the first at their own values, the others spread by ratio."""
    starts: list[dict[str, Array]] = [{} for _ in range(num_restarts)]
    rng = np.random.default_rng(0)
    for latent, j in {name: j for j, name in enumerate(model.copy_of)}.items():
        for path, pair in model.covariance_bounds.get(latent, {}).items():
            low, high = np.log(pair)
            grid = (rng.permutation(num_restarts - 1) + 0.5) / max(num_restarts - 1, 1)
            own = np.log(parameters(model.covariances[j])[path])
            for start, place in zip(starts, [own, *(low + (high - low) * grid)], strict=True):
                start[f"{latent}.{path}"] = jnp.asarray(place, dtype)
    return starts


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
    likelihood,
) -> tuple[Optimizer | float, Float[np.ndarray, " step"]]:
    """The optimiser (or Adam's rate) and the temperatures of ``fit_svi``'s arguments; an error for what can't be."""
    counts = {"num_inducing": num_inducing, "num_steps": num_steps, "num_particles": num_particles}
    counts |= {"num_restarts": num_restarts} | ({} if batch_size is None else {"batch_size": batch_size})
    for name, value in counts.items():
        checks.whole_number(name, value)
    if batch_size is not None and batch_size > num_times:
        raise ValueError(f"batch_size: expected at most the {num_times} times there are, got {batch_size}")
    if likelihood not in LIKELIHOODS:
        raise ValueError(f"likelihood: expected one of {', '.join(LIKELIHOODS)}, got {checks.short(likelihood)}")
    return _optimizer(optimizer, learning_rate), _temperatures(temperature, num_steps)


def _optimizer(optimizer, learning_rate) -> Optimizer | float:
    if optimizer is None:
        if callable(learning_rate):
            raise TypeError("learning_rate: expected a number, got a schedule; pass optimizer=optax.adam(schedule)")
        return float(checks.positive("learning_rate", learning_rate, ((),), "a positive number"))
    if not isinstance(optimizer, (optax.GradientTransformation, _NumPyroOptim)):
        raise TypeError(f"optimizer: expected one of optax, e.g. optax.adam(0.01), got {checks.short(optimizer)}")
    return optimizer


def _temperatures(temperature: Callable | float, num_steps: int) -> Float[np.ndarray, " step"]:
    values = temperature(np.arange(num_steps), num_steps) if callable(temperature) else temperature
    shapes = ((), (num_steps,))
    return np.broadcast_to(
        checks.positive("temperature", values, shapes, f"a number or one per step ({num_steps})"), (num_steps,)
    )
