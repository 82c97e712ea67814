"""A process of an unknown scale: its covariances at all points of the grid, and how one set of features holds them.

The features are those of the covariances' mean, in whose span every one of them lies: at a point, x = Phi M w with w ~
N(0, I), so that the data's statistics of Phi serve all points. With K points the mean covariance is at least each one's
K-th part, and so what Phi leaves out of one is at most K times what it leaves out of the mean.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from alps_ppl.gibbs.statespace import StateSpace, interpolate, markov_terms, state_space
from alps_ppl.model.covariances import Covariance
from alps_ppl.model.scales import UnknownScale, along

# Directions of less than this part of a Gram matrix' largest variance are round-off.
ROUND_OFF = 1e-12


class Family(NamedTuple):
    """The latents of a process of an unknown scale, and their covariances, stacked over the grid's points.

    ``maps`` takes a latent's own weights to its features'; a latent with Markov states has ``spaces`` instead, one
    latent's at each point, and no features.
    """

    latents: tuple[int, ...]
    covariances: Covariance  # (point,) leaves
    maps: Float[np.ndarray, "point feature rank"]
    terms: tuple[Sequence[Covariance], ...] = ()  # (point,)
    spaces: tuple[StateSpace, ...] = ()  # (point,)

    @property
    def has_states(self) -> bool:
        """Whether its latents have Markov states."""
        return bool(self.spaces)

    def at(self, point: int) -> Covariance:
        """The covariance at a point."""
        return _at(self.covariances, point)


def _at(covariances: Covariance, point: int) -> Covariance:
    return jax.tree.map(lambda leaf: leaf[point], covariances)


def family(
    covariance: Covariance,
    unknown: UnknownScale,
    latents: Sequence[int],
    pivot_inputs: Float[Array, "rank *column"],
    tril: Float[np.ndarray, "rank rank"],
    state_times: Float[np.ndarray, " time"] | None,
) -> Family:
    """The family of features that interpolate ``pivot_inputs``, or of states at ``state_times``."""
    covariances = along(covariance, unknown)
    num_points = len(unknown.grid.values)
    if state_times is not None:
        terms = tuple(markov_terms(_at(covariances, k))[0] for k in range(num_points))
        spaces = tuple(state_space({0: one}, state_times) for one in terms)
        return Family(tuple(latents), covariances, np.zeros((num_points, 0, 0)), terms, spaces)
    factors = _factors(np.asarray(_grams(covariances, pivot_inputs), np.float64))
    return Family(tuple(latents), covariances, np.linalg.solve(tril, factors))


_grams = jax.jit(lambda covariances, inputs: jax.vmap(lambda one: one(inputs, inputs))(covariances))
_cross = jax.jit(lambda one, rows, inputs: one(rows, inputs))


def _factors(grams: Float[np.ndarray, "point n n"]) -> Float[np.ndarray, "point n rank"]:
    """F with F F^T = K for each Gram matrix, of the largest rank that one has."""
    values, vectors = np.linalg.eigh(grams)
    kept = np.where(values > ROUND_OFF * values[:, -1:], values, 0.0)
    rank = int((kept > 0).sum(1).max())
    return vectors[..., -rank:] * np.sqrt(kept[:, None, -rank:])


def extend_features(
    one: Covariance, pivot_inputs, tril: Float[np.ndarray, "rank rank"], new_inputs
) -> tuple[Float[np.ndarray, "new rank"], Float[np.ndarray, " new"]]:
    """E[x(new) | weights of the features] where x has the covariance ``one``, and the variance that they leave open."""
    gram = np.asarray(_cross(one, pivot_inputs, pivot_inputs), np.float64)
    cross = np.asarray(_cross(one, new_inputs, pivot_inputs), np.float64)
    values, vectors = np.linalg.eigh(gram)
    keep = values > ROUND_OFF * values[-1]
    projected = cross @ vectors[:, keep]
    prior = np.asarray(jax.vmap(one.evaluate_diag)(new_inputs), np.float64)
    open_ = np.clip(prior - (projected**2 / values[keep]).sum(1), 0.0, None)
    return (projected / values[keep]) @ vectors[:, keep].T @ tril, open_


def extend_states(family: Family, point: int, new_times: Float[np.ndarray, " new"]) -> tuple[Any, Any, Any]:
    """``interpolate`` of one latent at a point: index into its own states, coefficients, variance (new,)."""
    index, coefficients, open_ = interpolate({0: family.terms[point]}, family.spaces[point], new_times, 1)
    return index, coefficients, open_[0]
