"""Outputs at new inputs, from either engine.

Given a draw of the gates, H and the latents' weights, an output at a time is Gaussian. A posterior predictive is
therefore an equal mixture of Gaussians, one per draw, and its mean, sd, quantiles and density are computed from the
mixture itself, with no draws of y.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from alps_ppl import checks
from alps_ppl.model.draws import LatentDraws
from alps_ppl.results.fits import Fit, check_finite, check_fit, time_coordinate

# How many numbers a block of times may hold, so that memory doesn't grow with the times.
NUMBERS_AT_A_TIME = 2_000_000


class PredictiveDraws(NamedTuple):
    """A posterior predictive at ``new_inputs`` before it is summed up: draws of all but y."""

    new_inputs: Float[Array, "time *column"]
    outputs: tuple[str, ...]
    latents: LatentDraws


def predict(
    fit: Fit, new_inputs: Any, *, interval: float = 0.9, include_noise: bool = True, num_draws: int = 1000
) -> xr.Dataset:
    """Mean, sd and a central interval of every output at new inputs, in ``y``'s units.

    The gates' uncertainty is included. The Dataset has ``mean``, ``sd``, ``lower`` and ``upper`` over (time, output),
    times in the given order.

    Parameters
    ----------
    fit
        Of ``fit_svi``, ``fit_gibbs``, ``from_mcmc`` or ``load``.
    new_inputs
        (time,) or (time, column) in the unit of the fitted inputs: in any order, between them or ahead.
    interval
        The probability between ``lower`` and ``upper``, half of the rest on either side.
    include_noise
        Whether to predict y; False predicts the outputs without white noise: f, and what memory each has of its own.
    num_draws
        At most so many posterior draws are used, evenly spread over the chains.

    Raises a ValueError or TypeError for what is none of these, and for draws that aren't finite.
    """
    checks.in_range("interval", interval, 0.0, 1.0, ends=False)
    return summarise(predictive(fit, new_inputs, num_draws), interval=interval, include_noise=include_noise)


def log_predictive_density(fit: Fit, new_inputs: Any, new_y: Any, *, num_draws: int = 1000) -> xr.DataArray:
    """Log p(y_i(t) | Y) of each cell of ``new_y`` by itself, (time, output), in nats; NaN where it is missing.

    Parameters
    ----------
    fit, new_inputs, num_draws
        As in ``predict``.
    new_y
        (time, output) in the unit of the fitted y, with NaN for a missing cell.

    Raises a ValueError or TypeError for what is none of these.
    """
    draws = predictive(fit, new_inputs, num_draws)
    # Without the inputs of several columns, whose dimension an array of (time, output) hasn't.
    coords = {"output": list(draws.outputs), "time": time_coordinate(draws.new_inputs)["time"]}
    return xr.DataArray(log_density(draws, new_y), coords, ("time", "output"), name="log_density")


def predictive(fit: Fit, new_inputs: Any, num_draws: int = 1000) -> PredictiveDraws:
    """What ``summarise`` and ``log_density`` are made of; the arguments, ``predict``'s, are checked here, once."""
    check_fit(fit)
    checks.whole_number("num_draws", num_draws)
    columns = fit.inputs.shape[1:]
    if np.size(new_inputs) == 0:
        new_inputs = jnp.zeros((0, *columns), fit.inputs.dtype)
    else:
        new_inputs, _ = fit.model.check(new_inputs, name="new_inputs")
    if new_inputs.shape[1:] != columns:
        raise ValueError(
            f"new_inputs: expected the columns of the fitted inputs, of shape {fit.inputs.shape}, got shape "
            f"{new_inputs.shape}"
        )
    latents = fit.at(new_inputs, num_draws)
    check_finite(weights=latents.weights, H=latents.gated_H)
    return PredictiveDraws(new_inputs, fit.model.outputs, latents)


def summarise(draws: PredictiveDraws, *, interval: float = 0.9, include_noise: bool = True) -> xr.Dataset:
    """``predict``'s Dataset."""
    latents = draws.latents
    if not include_noise:
        latents = latents._replace(noise_variance=jnp.zeros_like(latents.noise_variance))
    tails = jnp.asarray([0.5 - interval / 2, 0.5 + interval / 2], latents.basis.dtype)
    values = zip(("mean", "sd", "lower", "upper"), _moments(latents, tails), strict=True)
    return xr.Dataset(
        {name: (("time", "output"), np.asarray(value)) for name, value in values},
        coords={"output": list(draws.outputs), **time_coordinate(draws.new_inputs)},
        attrs={"interval": interval, "includes_noise": int(include_noise)},
    )


def log_density(draws: PredictiveDraws, new_y: Any) -> Float[np.ndarray, "time output"]:
    """``log_predictive_density`` as a plain array. Raises a ValueError for cells of another shape."""
    cells = checks.by_time("new_y", new_y, draws.new_inputs, len(draws.outputs))
    return np.asarray(_log_density(draws.latents, jnp.asarray(cells)))


def log_densities(draws: PredictiveDraws, new_y: Any) -> Float[np.ndarray, "draw time output"]:
    """Each cell's log density given each draw, of which ``log_density`` is the log of the mean."""
    cells = checks.by_time("new_y", new_y, draws.new_inputs, len(draws.outputs))
    return np.swapaxes(np.asarray(_log_densities(draws.latents, jnp.asarray(cells))), 0, 1)


def cdf(draws: PredictiveDraws, new_y: Any) -> Float[np.ndarray, "time output"]:
    """P(y_i(t) <= each cell of ``new_y`` | Y): its probability integral transform, uniform where all is right."""
    cells = checks.by_time("new_y", new_y, draws.new_inputs, len(draws.outputs))
    return np.asarray(_cdf(draws.latents, jnp.asarray(cells)))


@jax.jit
def _moments(draws: LatentDraws, tails: Float[Array, " level"]):
    def moments(loc, variance):
        sd = jnp.sqrt(variance.mean(0) + loc.var(0))
        return loc.mean(0), sd, *_mixture_quantiles(loc, jnp.sqrt(variance), tails)

    return _over_times(moments, draws)


@jax.jit
def _log_density(draws: LatentDraws, new_y: Float[Array, "new output"]):
    def density(loc, variance, cell):
        return logsumexp(norm.logpdf(cell, loc, jnp.sqrt(variance)), axis=0) - jnp.log(len(loc))

    return _over_times(density, draws, new_y)


@jax.jit
def _log_densities(draws: LatentDraws, new_y: Float[Array, "new output"]):
    return _over_times(lambda loc, variance, cell: norm.logpdf(cell, loc, jnp.sqrt(variance)), draws, new_y)


@jax.jit
def _cdf(draws: LatentDraws, new_y: Float[Array, "new output"]):
    return _over_times(lambda loc, variance, cell: norm.cdf(cell, loc, jnp.sqrt(variance)).mean(0), draws, new_y)


def _over_times(function: Callable, draws: LatentDraws, *cells: Float[Array, "new output"]):
    """``function(loc, variance, *cell)`` at each time, loc and variance being (draw, output)."""
    num_draws, num_outputs, num_latents = draws.gated_H.shape

    def at_time(here):
        basis, places, latent_variance, own, *cell = here
        weights = draws.weights if places is None else draws.weights[:, places]
        columns = jax.nn.one_hot(draws.owner, num_latents, dtype=basis.dtype) * basis[:, None]
        loc = jnp.einsum("sij,sj->si", draws.gated_H, weights @ columns)
        variance = draws.gated_H**2 @ latent_variance + draws.noise_variance
        if own[0] is not None:
            loc, variance = loc + own[0], variance + own[1]
        # A floor for f without noise where nothing is left open: the quantiles divide by the sd.
        return function(loc, jnp.clip(variance, jnp.finfo(loc.dtype).tiny ** 0.5), *cell)

    size = max(1, min(NUMBERS_AT_A_TIME // (num_draws * num_outputs), len(draws.basis)))
    times = (draws.basis, draws.places, draws.latent_variance.T, (draws.own_mean, draws.own_variance), *cells)
    return jax.lax.map(at_time, times, batch_size=size)


def _mixture_quantiles(loc, scale, levels) -> Float[Array, "level output"]:
    """Quantiles of the equal mixture of normals over the first axis, by bisection of its cdf."""
    low, high = (loc - 10 * scale).min(0), (loc + 10 * scale).max(0)

    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        below = norm.cdf(middle[:, None], loc, scale).mean(1) < levels[:, None]
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = tuple(jnp.broadcast_to(edge, (len(levels), *edge.shape)) for edge in (low, high))
    low, high = jax.lax.fori_loop(0, 30, halve, start)
    return 0.5 * (low + high)
