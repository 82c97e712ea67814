"""What the statistics say at given weights: inner products of latents and outputs, and the residuals' statistics."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs.statistics import Statistics
from alps_ppl.model.memory import kalman


class Moments(NamedTuple):
    """The statistics at given weights: inner products of latents and outputs over each output's observed times."""

    xx: Float[Array, "output latent latent"]  # x_j^T x_k
    xy: Float[Array, "output latent"]  # x_j^T y_i


def moments(stats: Statistics, weights: Float[Array, " weight"], num_latents: int) -> Moments:
    """x_j^T x_k and x_j^T y_i at these weights; with a private memory x_j^T C_i^-1 x_k and x_j^T C_i^-1 y_i."""
    w, states = stats.split(weights)
    W = jax.nn.one_hot(stats.owner[: len(w)], num_latents, dtype=w.dtype) * w[:, None]  # X = Phi W
    if stats.states is None:
        return Moments((W.T @ (stats.gram @ W))[stats.pattern], stats.projection @ W)
    s = stats.states
    x = s.phi @ W + states @ s.observe.T
    if stats.private is None:
        return Moments(jnp.einsum("pt,tj,tk->pjk", s.counts, x, x)[stats.pattern], s.sums.T @ x)
    cells: Any = stats.cells
    filter_ = kalman(stats.memory.column, cells.times, cells.precision[..., None])
    columns = jnp.broadcast_to(x[cells.row][:, None], (*cells.y.shape, num_latents))
    white = filter_.whiten(jnp.concatenate([columns, cells.y[..., None]], -1))
    products = jnp.einsum("tij,tik->ijk", white, white)
    return Moments(products[:, :-1, :-1], products[:, :-1, -1])


def weights_squares(stats: Statistics, weights: Float[Array, " weight"], num_latents: int) -> Float[Array, " latent"]:
    """w_j^T P w_j for each latent, P its weights' prior precision: the identity but for states."""
    w, states = stats.split(weights)
    squares = jax.ops.segment_sum(w**2, stats.owner[: len(w)], num_segments=num_latents)
    if stats.states is None:
        return squares
    s = stats.states
    innovation = innovations(s.transition, states)
    square = (innovation * jnp.einsum("tde,te->td", s.precision, innovation)).sum(0)
    return squares.at[stats.owner[len(w) : len(w) + len(square)]].add(square)


def innovations(transition: Float[Array, "time d d"], path: Float[Array, "time d"]) -> Float[Array, "time d"]:
    """E_t of s_t = A_t s_{t-1} + e_t."""
    before = jnp.concatenate([jnp.zeros_like(path[:1]), path[:-1]])
    return path - jnp.einsum("tde,te->td", transition, before)


def gated_weights(
    stats: Statistics, weights: Float[Array, " weight"], gated: Float[Array, "output latent"]
) -> tuple[Float[Array, "output feature"], Float[Array, "time dim"]]:
    """V with f_i = Phi v_i of the features, and the states, whose part is ``states @ observe^T @ gated^T``."""
    w, states = stats.split(weights)
    v = gated[:, stats.owner[: len(w)]] * w
    return v if stats.to_features is None else v @ stats.to_features.T, states


def residual_statistics(
    stats: Statistics,
    weights: Float[Array, " weight"],
    H: Float[Array, "output latent"],
    b: Float[Array, " latent"],
    alone: tuple[Int[Array, ""], Int[Array, " output"]] | None = None,
) -> Statistics:
    """The statistics of the residuals y_i - f_i in the place of y_i, where there is a private memory.

    With ``alone``, an output and the points of all outputs, the private sums of squares may be NaN but for all points
    of that output and these points of the others: each point of each output is a pass over the times.
    """
    private: Any = stats.private
    gated = H * b
    v, states = gated_weights(stats, weights, gated)
    if stats.states is None:

        def of_output(output):
            projected = private.gram[:, stats.pattern[output]] @ v[output]
            left = private.projection[:, output] - projected
            return left, private.sum_squares[:, output] - (private.projection[:, output] + left) @ v[output]

        projection, squares = jax.lax.map(of_output, jnp.arange(len(v)))
        projection = jnp.swapaxes(projection, 0, 1)
        return stats._replace(private=private._replace(projection=projection, sum_squares=jnp.clip(squares.T, 0.0)))
    s, cells = stats.states, stats.cells
    assert cells is not None
    f = s.phi @ v.T + states @ s.observe.T @ gated.T
    errors = jnp.where(cells.precision > 0, cells.y - f[cells.row], 0.0)
    sums = jnp.zeros_like(s.sums).at[cells.row].add(cells.precision * errors)

    def squares_of(memory, outputs):
        filter_ = kalman(memory, cells.times, cells.precision[:, None, outputs])
        return (filter_.whiten(jnp.broadcast_to(errors[:, None, outputs], filter_.gain.shape)) ** 2).sum(0)

    everywhere = slice(None)
    if alone is None:
        sum_squares = squares_of(private.memory.column, everywhere)
    else:
        output, points = alone
        sum_squares = jnp.full_like(private.sum_squares, jnp.nan)
        sum_squares = sum_squares.at[points, jnp.arange(len(points))].set(
            squares_of(private.memory.at(points), everywhere)[0]
        )
        sum_squares = sum_squares.at[:, output].set(squares_of(private.memory.column, output[None])[:, 0])
    return stats._replace(
        projection=sums.T @ s.phi,
        sum_squares=(cells.precision * errors**2).sum(0),
        states=s._replace(sums=sums),
        private=private._replace(sum_squares=sum_squares),
        cells=cells._replace(y=errors),
    )
