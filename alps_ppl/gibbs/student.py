"""Student's noise: the statistics at given noise factors, and the draw of the factors.

A cell's white noise has variance v sigma_i^2 (1 - rho_i), v of ``alps_ppl.model.tails``'s grid. Given the factors all
is Gaussian, so that the other moves stay as they are; but the sums over times have to be made anew in every sweep.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs.products import gated_weights
from alps_ppl.gibbs.randomness import RandomNumbers, categorical
from alps_ppl.gibbs.statistics import Statistics
from alps_ppl.gibbs.target import Chain, Target
from alps_ppl.model.memory import Filter, PrivateMemory, kalman
from alps_ppl.model.tails import NoiseFactors

NO_MEMORY = (0.0,), (1.0,), (0.0,)


def at_factors(stats: Statistics, factors: Float[Array, "time output"], point: Any) -> Statistics:
    """The statistics of the likelihood in which cells have these noise factors and outputs these memories.

    Where there are no Markov latents, the memories' grid isn't there any more.
    """
    cells: Any = stats.cells
    precision = cells.precision / factors[cells.order]
    output, phi, y = jnp.arange(precision.shape[1]), cells.phi, cells.y
    if stats.private is not None and stats.states is None:
        filter_ = kalman(stats.private.memory.at(point), cells.times, precision)
        white_y, half_log_det = filter_.whiten(y), filter_.half_log_det

        def whitened(i):
            of_output = Filter(*(part[:, i, None] for part in filter_))
            return of_output.whiten(phi)
    else:
        sd = jnp.sqrt(precision)
        white_y = sd * y
        half_log_det = -jnp.log(jnp.where(precision > 0, sd, 1.0)).sum(0)

        def whitened(i):
            return sd[:, i, None] * phi

    def sums(i):
        white_phi = whitened(i)
        return white_phi.T @ white_phi, white_y[:, i] @ white_phi

    gram, projection = jax.lax.map(sums, output)
    states: Any = stats.states
    private: Any = stats.private if states is not None else None
    if private is not None:
        filter_ = kalman(private.memory.column, cells.times, precision[:, None])
        private = private._replace(half_log_det=filter_.half_log_det)
    if states is not None:
        per_time = jnp.zeros_like(states.sums)
        states = states._replace(
            counts=per_time.at[cells.row].add(precision).T, sums=per_time.at[cells.row].add(precision * y)
        )
    return stats._replace(
        gram=gram,
        pattern=output,
        projection=projection,
        sum_squares=(white_y**2).sum(0),
        states=states,
        private=private,
        cells=cells._replace(precision=precision),
        half_log_det=half_log_det,
    )


def residuals(stats: Statistics, chain: Chain) -> Float[Array, "row output"]:
    """y_i - f_i by the sorted rows, 0 where a cell is missing; ``stats`` are at the chain's scales."""
    cells: Any = stats.cells
    gated = chain.H * chain.b
    v, states = gated_weights(stats, chain.weights, gated)
    f = cells.phi @ v.T
    if stats.states is not None:
        f += (states @ stats.states.observe.T @ gated.T)[cells.row]
    return jnp.where(cells.precision > 0, cells.y - f, 0.0)


def draw_factors(
    grid: NoiseFactors,
    errors: Float[Array, "row output"],
    times: Float[Array, " row"],
    precision: Float[Array, "row output"],
    memory: PrivateMemory,
    uniform: Float[Array, "row output"],
) -> Int[Array, "row output"]:
    """Each cell's factor given the others of its output and all errors, the memory's path integrated out.

    ``errors`` are in sds of an output's own part; ``precision`` is 1 over the factors before the draw, 0 where a cell
    is missing. A pass back leaves p(later errors | r(t)) at every time, and one forth draws each factor from its
    conditional and filters with what it drew (Gerlach, Carter and Kohn 2000, Efficient Bayesian inference for dynamic
    mixture models). A missing cell's is drawn from the prior.
    """
    rho, white = memory.share, 1 - memory.share
    variance, log_prior = (jnp.asarray(part, errors.dtype) for part in grid)
    decay = jnp.exp(-jnp.diff(times)[:, None] / memory.lengthscale)
    nothing = jnp.zeros((1, errors.shape[1]), errors.dtype)

    def back(later, here):
        """Of r(t), what is known of errors after t: exp(-a r^2 / 2 + c r)."""
        a, c = later
        decay, error, precision = here  # the step to the next time, and what is seen there
        a, c = a + precision / white, c + precision * error / white
        shrunk = 1 + rho * (1 - decay**2) * a
        now = decay**2 * a / shrunk, decay * c / shrunk
        return now, now

    _, (a, c) = jax.lax.scan(back, (nothing[0], nothing[0]), (decay, errors[1:], precision[1:]), reverse=True)
    a, c = jnp.concatenate([a, nothing]), jnp.concatenate([c, nothing])

    def forth(before, here):
        mean, left = before
        decay, error, seen, u, a, c = here
        mean, prior = decay * mean, decay**2 * left + rho * (1 - decay**2)
        shrunk = 1 + a * prior
        cell = (prior / shrunk)[:, None] + white[:, None] * variance
        error_left = (error - (mean + prior * c) / shrunk)[:, None]
        logs = log_prior - jnp.where(seen[:, None], 0.5 * (jnp.log(cell) + error_left**2 / cell), 0.0)
        point = categorical(jax.nn.softmax(logs), u)
        gain = jnp.where(seen, prior / (prior + white * variance[point]), 0.0)
        return (mean + gain * (error - mean), prior * (1 - gain)), point

    steps = jnp.concatenate([nothing, decay]), errors, precision > 0, uniform, a, c
    return jax.lax.scan(forth, (nothing[0], nothing[0]), steps)[1]


def draw_cells(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """The cells' factors, then each memory's point with sigma_i^2 integrated out; and what is left of y then."""
    stats, memories = target.at_scales(chain), target.model.private_memory
    tails: Any = target.model.tails
    cells: Any = stats.cells
    errors = residuals(stats, chain)
    grid = PrivateMemory(*(jnp.asarray(part, errors.dtype) for part in memories or NO_MEMORY))
    point = jnp.zeros(errors.shape[1], jnp.int32) if memories is None else chain.memory
    scaled, uniform = errors / jnp.sqrt(chain.noise_variance), random.uniform["noise_factor"]
    points = draw_factors(tails, scaled, cells.times, cells.precision, grid.at(point), uniform)
    precision = jnp.where(cells.precision > 0, 1 / jnp.asarray(tails.variance, errors.dtype)[points], 0.0)

    filter_ = kalman(grid.column, cells.times, precision[:, None])
    squares = (filter_.whiten(jnp.broadcast_to(errors[:, None], filter_.gain.shape)) ** 2).sum(0)
    if memories is not None:
        by_point = grid.log_prior, squares, filter_.half_log_det
        logs = c.log_points(*by_point, stats.num_observed, target.model.noise_variance)
        drawn = categorical(jax.nn.softmax(logs.T), random.uniform["noise"])
        point = jnp.where(jnp.isnan(target.own_variance), drawn, jnp.argmin(grid.share)).astype(jnp.int32)
        chain = chain._replace(memory=point)
    output = jnp.arange(len(point))
    return chain._replace(
        noise_factor=jnp.zeros_like(points).at[cells.order].set(points).astype(jnp.int8),
        residual_squares=squares[point, output],
        half_log_det=filter_.half_log_det[point, output],
    )
