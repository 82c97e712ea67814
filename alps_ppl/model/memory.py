"""What an output does for itself: a private memory beside its white noise.

An output's own part has covariance s_i^2 C with C(t, t') = rho exp(-|t - t'| / l) + (1 - rho) [t = t'], a Matern-1/2
memory of share rho and lengthscale l; rho = 0 is the paper's white noise. (rho, l) is one of the points of a grid. The
memory is Markov, so that a scalar Kalman filter whitens a series: all times are sorted in this module's functions.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints

from alps_ppl import checks
from alps_ppl.model.tails import NoiseFactors

SHARES = (0.0, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999)
NUM_LENGTHSCALES = 10
# How many numbers the paths of some draws may have at a time.
NUMBERS_AT_A_TIME = 2_000_000


class PrivateMemory(NamedTuple):
    """The grid of a private memory: each point's share rho, lengthscale in the inputs' unit, and log prior."""

    share: Any  # (point,) arrays, NumPy's or JAX's
    lengthscale: Any
    log_prior: Any

    def at(self, point: Int[Array, "*batch"]) -> "PrivateMemory":
        """The grid's values at these points."""
        return PrivateMemory(*(jnp.asarray(values)[point] for values in self))

    @property
    def column(self) -> "PrivateMemory":
        """The values as a column, to broadcast over a filter's other lanes."""
        return PrivateMemory(*(values[:, None] for values in self))


def private_memory(
    inputs: Any, *, shares: Sequence[float] = SHARES, lengthscales: Sequence[float] | None = None
) -> PrivateMemory:
    """A grid for ``ALPS(private_memory=...)``: every share is as probable, and so is every lengthscale.

    Parameters
    ----------
    inputs
        (time,), what will be fitted.
    shares
        rho, from 0 to below 1: which part of an output's own variance is its memory's. 0 has no lengthscale.
    lengthscales
        In the inputs' unit. Default ten, evenly spread by ratio from the median step to twice the inputs' span.

    Raises a ValueError for inputs of several columns or of one time, and for other shares and lengthscales.
    """
    values = np.asarray(checks.times(inputs), np.float64)
    times = np.unique(values)
    if values.ndim != 1 or len(times) < 2:
        got = f"shape {values.shape}" if values.ndim != 1 else f"{len(times)}"
        raise ValueError(f"inputs: a private memory needs one column of at least two different times, got {got}")
    rho = checks.numbers("shares", shares)
    if rho.ndim != 1 or not rho.size or not ((rho >= 0) & (rho < 1)).all() or len(set(rho)) < len(rho):
        raise ValueError(f"shares: expected different numbers from 0 to below 1, got {checks.short(shares)}")
    scales = np.geomspace(np.median(np.diff(times)), 2 * np.ptp(times), NUM_LENGTHSCALES)
    if lengthscales is not None:
        scales = np.atleast_1d(checks.numbers("lengthscales", lengthscales))
    scales = checks.positive("lengthscales", scales, (scales.shape,) if scales.size else (), "at least one number")
    points = [(r, scale) for r in rho for scale in (scales if r > 0 else scales[:1])]
    weights = np.concatenate([np.full(len(scales), 1 / len(scales)) if r > 0 else [1.0] for r in rho]) / len(rho)
    share, lengthscale = np.array(points).T
    return PrivateMemory(share, lengthscale, np.log(weights))


class FilterState(NamedTuple):
    """Where a filter is: the time of the last row, and the memory's variance given all until then, (*lane,)."""

    time: Any
    variance: Any


class Filter(NamedTuple):
    """The Kalman filter of a memory of variance rho under white noise of variance 1 - rho, at sorted times.

    Per time: ``decay`` from the time before; ``prior``, the memory's variance given what was seen before; ``gain``,
    the weight of what is seen now, and ``inverse_sd``, of a value given those before: both 0 where nothing is.
    """

    decay: Float[Array, "time *lane"]
    prior: Float[Array, "time *lane"]
    gain: Float[Array, "time *lane"]
    inverse_sd: Float[Array, "time *lane"]

    @property
    def half_log_det(self) -> Float[Array, "*lane"]:
        """Log |C| / 2 over the observed times."""
        return -jnp.log(jnp.where(self.inverse_sd > 0, self.inverse_sd, 1.0)).sum(0)

    @property
    def left(self) -> Float[Array, "time *lane"]:
        """The memory's variance given what was seen until then."""
        return self.prior * (1 - self.gain)

    def whiten(self, values: Float[Array, "time *lane"]) -> Float[Array, "time *lane"]:
        """C^-1/2 ``values``, and 0 where nothing is observed."""
        return self.run(values, jnp.zeros(values.shape[1:], values.dtype))[1]

    def run(self, values: Float[Array, "time *lane"], mean: Float[Array, "*lane"]) -> tuple[Array, Array]:
        """``whiten`` from a memory's ``mean`` at the time before; and the mean at the last time, first."""

        def step(mean, here):
            decay, gain, inverse_sd, value = here
            surprise = value - decay * mean
            return decay * mean + gain * surprise, inverse_sd * surprise

        return jax.lax.scan(step, mean, (self.decay, self.gain, self.inverse_sd, values))

    def smooth(self, values: Float[Array, "time *lane"], noise: Array | None = None) -> tuple[Array, Array]:
        """The memory's mean and variance at every time given all observed ``values``.

        With standard normals ``noise`` of the values' shape, a draw of its path in the place of the mean.
        """

        def forward(mean, here):
            decay, gain, value = here
            mean = decay * mean + gain * (value - decay * mean)
            return mean, mean

        _, means = jax.lax.scan(forward, jnp.zeros(values.shape[1:], values.dtype), (self.decay, self.gain, values))
        left = self.left
        later = jnp.concatenate([self.prior[1:], jnp.ones_like(self.prior[:1])])
        decay = jnp.concatenate([self.decay[1:], jnp.zeros_like(self.decay[:1])])
        back = decay * left / jnp.where(later > 0, later, 1.0)
        drawn = jnp.zeros_like(values) if noise is None else jnp.sqrt(jnp.clip(left * (1 - back * decay), 0.0)) * noise

        def backward(after, here):
            mean, left, back, decay, later, step = here
            value = mean + back * (after[0] - decay * mean) + step
            variance = left + back**2 * (after[1] - later)
            return (value, variance), (value, variance)

        start = jnp.zeros(values.shape[1:], values.dtype), jnp.zeros(self.prior.shape[1:], values.dtype)
        steps = (means, left, back, decay, later, drawn)
        return jax.lax.scan(backward, start, steps, reverse=True)[1]


def kalman(
    memory: PrivateMemory,
    times: Float[Array, " time"],
    precision: Array,
    dtype: Any = None,
    start: FilterState | None = None,
) -> Filter:
    """The filter of ``memory``'s points at sorted ``times``, that goes on from ``start``; lanes broadcast.

    ``precision`` (time, lane) divides each cell's white noise variance: 1 or True for a cell as any other, 0 or False
    for one that is missing.
    """
    rho, lengthscale = (jnp.asarray(values, dtype) for values in memory[:2])
    precision = precision.astype(rho.dtype)
    shape = jnp.broadcast_shapes(rho.shape, precision.shape[1:])
    before, left = (-jnp.inf, jnp.zeros(shape, rho.dtype)) if start is None else start
    steps = jnp.diff(times, prepend=before)

    def step(left, here):
        since, precision = here
        seen = precision > 0
        decay = jnp.exp(-since / lengthscale)
        prior = decay**2 * left + rho * (1 - decay**2)
        variance = prior + (1 - rho) / jnp.where(seen, precision, 1.0)
        gain = jnp.where(seen, prior / variance, 0.0)
        inverse_sd = jnp.where(seen, 1 / jnp.sqrt(variance), 0.0)
        return prior * (1 - gain), (jnp.broadcast_to(decay, shape), prior, gain, inverse_sd)

    return Filter(*jax.lax.scan(step, left, (steps.astype(rho.dtype), precision))[1])


class _Noise(dist.Distribution):
    """What each output does for itself around ``f``, independent over outputs; event shape (time, output).

    Parameters
    ----------
    f
        (time, output).
    own_variance
        s_i^2, (output,).
    memory
        Shares and lengthscales.
    inputs
        (time,), in any order.
    observed
        y (time, output), whose NaN are left out of the density; None: all are observed.
    factors
        What each cell's white noise variance is multiplied by, (time, output); None: 1.
    """

    support = constraints.independent(constraints.real, 2)
    pytree_data_fields = ("f", "own_variance", "memory", "inputs", "observed", "factors")

    def __init__(
        self, f, own_variance, memory: PrivateMemory, inputs, observed=None, factors=None, *, validate_args=None
    ):
        self.f, self.own_variance, self.memory, self.inputs = f, own_variance, memory, inputs
        self.factors = factors
        self.observed = jnp.ones(f.shape, bool) if observed is None else ~jnp.isnan(observed)
        super().__init__((), f.shape, validate_args=validate_args)

    @property
    def mean(self):
        return self.f


class OutputNoise(_Noise):
    """y_i ~ N(f_i, s_i^2 C_i) over the times; ``memory`` is C_i's share and lengthscale, (output,) each.

    With ``factors`` v the white part of C_i is diag((1 - rho_i) v_i).
    """

    @property
    def precision(self) -> Float[Array, "time output"]:
        """Of each cell's white noise beside that of any other cell, 0 where nothing is observed."""
        return jnp.where(self.observed, 1.0 if self.factors is None else 1 / self.factors, 0.0)

    def sample(self, key, sample_shape=()):
        normal = jax.random.normal(key, (2, *sample_shape, *self.event_shape), self.f.dtype)
        order = jnp.argsort(self.inputs)
        rho = jnp.asarray(self.memory.share, self.f.dtype)
        none = kalman(self.memory, self.inputs[order], jnp.zeros(self.event_shape, bool), self.f.dtype)

        def step(before, here):
            decay, noise = here
            now = decay * before + jnp.sqrt(rho * (1 - decay**2)) * noise
            return now, now

        first = jnp.moveaxis(normal[0], -2, 0)  # times lead
        _, memory = jax.lax.scan(step, jnp.zeros(first.shape[1:], first.dtype), (none.decay, first))
        memory = jnp.moveaxis(memory, 0, -2)[..., jnp.argsort(order), :]
        white = jnp.sqrt((1 - rho) * (1.0 if self.factors is None else self.factors)) * normal[1]
        return self.f + jnp.sqrt(self.own_variance) * (memory + white)

    def log_prob(self, value):
        return self.by_cell(value).sum((-2, -1))

    def innovations(self, value: Float[Array, "*batch time output"]) -> Float[Array, "*batch time output"]:
        """What each cell differs by from its mean given the output's earlier ones, in sds; 0 where it is missing."""
        order, _, white = self._filtered(value)
        return jnp.moveaxis(white, 0, -2)[..., jnp.argsort(order), :]

    def _filtered(self, value: Float[Array, "*batch time output"]) -> tuple[Array, Filter, Array]:
        """The times' order, the filter in it, and the whitened errors (time, *batch, output)."""
        order = jnp.argsort(self.inputs)
        errors = jnp.where(self.observed, value - self.f, 0.0) / jnp.sqrt(self.own_variance)
        lanes = jnp.moveaxis(errors[..., order, :], -2, 0)
        precision = self.precision[order].reshape(len(order), *[1] * (lanes.ndim - 2), -1)
        filter_ = kalman(self.memory, self.inputs[order], precision, self.f.dtype)
        return order, filter_, filter_.whiten(lanes)

    def by_cell(
        self, value: Float[Array, "*batch time output"], tails: NoiseFactors | None = None
    ) -> Float[Array, "*batch time output"]:
        """The log density of each cell given the earlier ones of its output; 0 where nothing is observed.

        With ``tails`` the factor of the cell itself is summed out, and those of the earlier ones are given.
        """
        order, filter_, white = self._filtered(value)
        seen = filter_.inverse_sd > 0
        sd = jnp.sqrt(self.own_variance) / jnp.where(seen, filter_.inverse_sd, 1.0)
        density = norm.logpdf(white * sd, 0.0, sd)
        if tails is not None:
            white_variance = (1 - jnp.asarray(self.memory.share, self.f.dtype))[..., None] * tails.variance
            sds = jnp.sqrt(self.own_variance[..., None] * (filter_.prior[..., None] + white_variance))
            density = logsumexp(norm.logpdf((white * sd)[..., None], 0.0, sds) + tails.log_prior, axis=-1)
        density = jnp.where(seen, density, 0.0)
        return jnp.moveaxis(density, 0, -2)[..., jnp.argsort(order), :]


class UnknownMemoryNoise(_Noise):
    """``OutputNoise`` with the point of each output's memory summed out; ``memory`` is the grid.

    log p(y_i) = log sum_g p(g) N(y_i; f_i, s_i^2 C_g).
    """

    def log_points(self, value: Float[Array, "time output"]) -> Float[Array, "point output"]:
        """Log p(g) N(y_i; f_i, s_i^2 C_g) of each point and output."""
        order = jnp.argsort(self.inputs)
        errors = jnp.where(self.observed, value - self.f, 0.0)[order] / jnp.sqrt(self.own_variance)
        # The gains are the data's alone; nothing is learnt through them.
        filter_ = kalman(self.memory.column, self.inputs[order], self.observed[order][:, None], self.f.dtype)
        white = filter_.whiten(jnp.broadcast_to(errors[:, None], filter_.gain.shape))
        count = self.observed.sum(0)
        log_normal = 0.5 * (white**2).sum(0) + filter_.half_log_det
        log_normal += 0.5 * count * jnp.log(2 * jnp.pi * self.own_variance)
        return jnp.asarray(self.memory.log_prior, self.f.dtype)[:, None] - log_normal

    def log_prob(self, value):
        return logsumexp(self.log_points(value), axis=0).sum()

    def sample(self, key, sample_shape=()):
        keys = jax.random.split(key)
        shape = (*sample_shape, self.event_shape[1])
        point = jax.random.categorical(keys[0], jnp.asarray(self.memory.log_prior), shape=shape)

        def one(key, point):
            return OutputNoise(self.f, self.own_variance, self.memory.at(point), self.inputs).sample(key)

        if not sample_shape:
            return one(keys[1], point)
        flat = jax.vmap(one)(jax.random.split(keys[1], math.prod(sample_shape)), point.reshape(-1, shape[-1]))
        return flat.reshape(*sample_shape, *self.event_shape)


def own_memories(
    f_of: Callable[[dict[str, Array]], Float[Array, "time output"]],
    grid: PrivateMemory,
    inputs: Float[Array, " time"],
    y: Float[Array, "time output"],
    new_inputs: Float[Array, " new"],
    draws: dict[str, Array],
    rng_key: Array | None = None,
) -> tuple[Float[Array, "new draw output"], Float[Array, "new draw output"]]:
    """Mean and variance of the outputs' memories at new inputs given each draw and y; with a key, paths for means.

    ``draws`` have the points ``memory`` and the own variances ``s2``, (draw, output) each, what ``f_of``, a draw's f at
    ``inputs``, takes, and where noise is Student's each cell's ``factors`` (draw, time, output).
    """
    everywhere = jnp.concatenate([inputs, new_inputs])
    order = jnp.argsort(everywhere)
    new = jnp.argsort(order)[len(inputs) :]
    nothing = jnp.zeros((len(new_inputs), y.shape[1]), y.dtype)

    def of_draw(draw, key):
        precision = jnp.where(jnp.isnan(y), 0.0, 1 / draw.get("factors", jnp.ones(1, y.dtype)))
        errors = jnp.nan_to_num(y - f_of(draw)) / jnp.sqrt(draw["s2"])
        errors = jnp.concatenate([errors, nothing])[order]
        noise = None if rng_key is None else jax.random.normal(key, errors.shape, errors.dtype)
        filter_ = kalman(
            grid.at(draw["memory"]), everywhere[order], jnp.concatenate([precision, nothing])[order], y.dtype
        )
        mean, variance = filter_.smooth(errors, noise)
        return jnp.sqrt(draw["s2"]) * mean[new], draw["s2"] * variance[new]

    num_draws = len(draws["memory"])
    keys = jax.random.split(jax.random.key(0) if rng_key is None else rng_key, num_draws)
    at_a_time = max(1, min(num_draws, NUMBERS_AT_A_TIME // (len(everywhere) * y.shape[1])))
    found = jax.lax.map(lambda both: of_draw(*both), (draws, keys), batch_size=at_a_time)
    return jax.tree.map(lambda part: jnp.swapaxes(part, 0, 1), found)
