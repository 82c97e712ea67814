"""The data as a sweep needs them: sufficient statistics, computed once, and inner products at given weights.

Of latents in weight space, x_j = Phi_j w_j with w_j ~ N(0, I), the likelihood needs Phi^T Phi and Phi^T Y only. So a
sweep doesn't touch the n times; only the states of Markov latents do, once each. Sums over times run over the observed
cells.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs.features import Features, row_slices


class StateStatistics(NamedTuple):
    """What a sweep needs of the data and of the Markov latents' state space, at the sorted distinct times."""

    transition: Float[Array, "time dim dim"]  # A_t of s_t = A_t s_{t-1} + e_t
    precision: Float[Array, "time dim dim"]  # Cov[e_t]^-1
    half_log_det: Float[Array, ""]  # of the states' prior precision
    observe: Float[Array, "latent dim"]  # x(t) = observe @ s_t, of the Markov latents
    phi: Float[Array, "time feature"]
    counts: Float[Array, "pattern time"]  # observed rows
    sums: Float[Array, "time output"]  # of y over the observed rows


class Statistics(NamedTuple):
    """All that a sweep needs of the data; a *pattern* is a set of outputs with the same missing cells.

    The weights of all latents are the features' and then, where there are Markov latents, their states (time by dim).
    """

    gram: Float[Array, "pattern feature feature"]  # Phi^T Phi over the pattern's observed times
    pattern: Int[Array, " output"]
    projection: Float[Array, "output feature"]  # Phi^T y_i
    sum_squares: Float[Array, " output"]  # y_i^T y_i
    num_observed: Float[Array, " output"]
    owner: Int[Array, " weight"]  # which latent a weight belongs to
    states: StateStatistics | None = None

    def split(self, weights: Float[Array, " weight"]) -> tuple[Array, Array]:
        """The features' weights, and the states (time, dim)."""
        r, dim = self.projection.shape[-1], 1 if self.states is None else self.states.observe.shape[-1]
        return weights[:r], weights[r:].reshape(-1, dim)


class Moments(NamedTuple):
    """The statistics at given weights: inner products of latents and outputs over each output's observed times."""

    xx: Float[Array, "output latent latent"]  # x_j^T x_k
    xy: Float[Array, "output latent"]  # x_j^T y_i


def statistics(features: Features, y: Float[Array, "time output"]) -> Statistics:
    """The sufficient statistics, summed in float64 and returned in ``y``'s precision."""
    values = np.asarray(y, np.float64)
    observed = ~np.isnan(values)
    filled = np.where(observed, values, 0.0)
    patterns, pattern = np.unique(observed, axis=1, return_inverse=True)
    array = partial(jnp.asarray, dtype=y.dtype)
    r = features.num_features
    gram, projection = np.zeros((patterns.shape[1], r, r)), np.zeros((values.shape[1], r))
    for rows in row_slices(len(values)):
        phi = features.phi(features.times[rows])
        gram += np.stack([(phi * seen[:, None]).T @ phi for seen in patterns[rows].T])
        projection += filled[rows].T @ phi
    return Statistics(
        gram=array(gram),
        pattern=jnp.asarray(pattern.reshape(-1)),
        projection=array(projection),
        sum_squares=array((filled**2).sum(0)),
        num_observed=array(observed.sum(0)),
        owner=jnp.asarray(features.owner),
        states=_state_statistics(features, patterns, filled, array) if features.space is not None else None,
    )


def _state_statistics(features: Features, patterns, filled, array) -> StateStatistics:
    space, row = features.space, features.row
    assert space is not None

    def per_time(columns):
        return np.stack([np.bincount(row, column, len(space.times)) for column in columns.T])

    return StateStatistics(
        transition=array(space.transition),
        precision=array(space.precision),
        half_log_det=array(0.5 * np.linalg.slogdet(space.precision)[1].sum()),
        observe=array(features.observe),
        phi=array(features.phi(features.times[features.first])),
        counts=array(per_time(patterns.astype(float))),
        sums=array(per_time(filled).T),
    )


def moments(stats: Statistics, weights: Float[Array, " weight"], num_latents: int) -> Moments:
    """x_j^T x_k and x_j^T y_i at these weights."""
    w, states = stats.split(weights)
    W = jax.nn.one_hot(stats.owner[: len(w)], num_latents, dtype=w.dtype) * w[:, None]  # X = Phi W
    if stats.states is None:
        return Moments((W.T @ (stats.gram @ W))[stats.pattern], stats.projection @ W)
    s = stats.states
    x = s.phi @ W + states @ s.observe.T
    return Moments(jnp.einsum("pt,tj,tk->pjk", s.counts, x, x)[stats.pattern], s.sums.T @ x)


def weights_squares(stats: Statistics, weights: Float[Array, " weight"], num_latents: int) -> Float[Array, " latent"]:
    """w_j^T P w_j for each latent, P its weights' prior precision: the identity but for states."""
    w, states = stats.split(weights)
    squares = jax.ops.segment_sum(w**2, stats.owner[: len(w)], num_segments=num_latents)
    if stats.states is None:
        return squares
    s = stats.states
    before = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
    innovation = states - jnp.einsum("tde,te->td", s.transition, before)
    square = (innovation * jnp.einsum("tde,te->td", s.precision, innovation)).sum(0)
    return squares.at[stats.owner[len(w) : len(w) + len(square)]].add(square)
