"""The latents as the sampler holds them: x_j = Phi_j w_j with w_j ~ N(0, I), or a chain of Markov states."""

import math
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int
from tinygp.kernels.quasisep import Quasisep

from alps_ppl.gibbs.pivots import RankError, choose_pivots, diagonal, interpolation
from alps_ppl.gibbs.statespace import StateSpace, interpolate, markov_terms, state_space, states_resolve
from alps_ppl.model.covariances import Covariance

# Up to this rank, or an eighth of the times and four times this rank, features cost less than states.
LOW_RANK = 64


class Layout(NamedTuple):
    """How the latents share the vector of weights: each one's features side by side, then the states time by time.

    Hashable, so that a compiled program depends on it and not on the data.
    """

    ranks: tuple[int, ...]  # (latent,)
    state_owner: tuple[int, ...] = ()  # (dim,): whose each state of a time is
    num_state_times: int = 0

    @property
    def owner(self) -> Int[np.ndarray, " weight"]:
        """Which latent each weight belongs to."""
        states = np.tile(np.array(self.state_owner, int), self.num_state_times)
        return np.concatenate([np.repeat(np.arange(len(self.ranks)), self.ranks), states])

    @property
    def own_features(self) -> Int[np.ndarray, "latent rank"]:
        """Each latent's features, padded to the largest rank with the number of features."""
        return self.features_of([[j] for j in range(len(self.ranks))])

    def features_of(self, groups: Sequence[Sequence[int]]) -> Int[np.ndarray, "group rank"]:
        """The features of all latents of each group, padded to the largest number with that of all features."""
        ends = np.cumsum(self.ranks)
        own = [np.concatenate([np.arange(ends[j] - self.ranks[j], ends[j]) for j in group]) for group in groups]
        padded = np.full((len(groups), max(map(len, own))), sum(self.ranks))
        for row, features in zip(padded, own, strict=True):
            row[: len(features)] = features
        return padded

    def swapped(self, pairs: Sequence[tuple[int, int]]) -> Int[np.ndarray, " weight"]:
        """The places of all weights after the latents of each pair, of one covariance, changed theirs."""
        owner = self.owner
        places = np.arange(len(owner))
        for j, k in pairs:
            places[owner == j], places[owner == k] = np.flatnonzero(owner == k), np.flatnonzero(owner == j)
        return places


class Features(NamedTuple):
    """x_j = Phi_j w_j, w_j ~ N(0, I): a pivoted Cholesky factor of each latent's Gram matrix.

    ``pivots`` are the times that latent j's features interpolate and ``pivot_tril`` the Cholesky factor of its Gram
    matrix there; Phi itself is computed where it is needed. Terms of a covariance without a low rank but with a Markov
    form, ``terms``, have states in ``space`` instead, whose values follow the features' weights.
    """

    pivots: list[Int[np.ndarray, " rank"]]
    pivot_tril: list[Float[np.ndarray, "rank rank"]]
    rest: list[Covariance | None]
    times: Float[np.ndarray, "time *column"]
    terms: dict[int, Sequence[Quasisep]]
    space: StateSpace | None

    @property
    def owner(self) -> Int[np.ndarray, " weight"]:
        """Which latent each weight belongs to."""
        return self.layout.owner

    @property
    def layout(self) -> Layout:
        """The shape of the weights."""
        ranks = tuple(map(len, self.pivots))
        return Layout(ranks) if self.space is None else Layout(ranks, tuple(self.space.owner), len(self.space.times))

    @property
    def num_latents(self) -> int:
        return len(self.pivots)

    @property
    def num_features(self) -> int:
        """The ranks' sum: how many of the weights aren't states."""
        return sum(map(len, self.pivots))

    @property
    def row(self) -> Int[np.ndarray, " time"]:
        """Which of the states' times each input is; with states only."""
        return np.searchsorted(self.space.times, self.times)  # type: ignore[union-attr]

    @property
    def first(self) -> Int[np.ndarray, " distinct"]:
        """The first input at each of the states' times; with states only."""
        return np.unique(self.row, return_index=True)[1]

    @property
    def observe(self) -> Float[np.ndarray, "latent dim"]:
        """X(t) = observe @ s_t, of the Markov latents; with states only."""
        space = self.space
        return space.observe * (space.owner == np.arange(self.num_latents)[:, None])  # type: ignore[union-attr]

    def phi(self, inputs: Float[np.ndarray, "row *column"] | None = None) -> Float[np.ndarray, "row feature"]:
        """[Phi_1 ... Phi_m], the latents' features side by side, at ``inputs`` (None: all that there are)."""
        rows = jnp.asarray(self.times if inputs is None else inputs)
        latents = zip(self.rest, self.pivots, self.pivot_tril, strict=True)
        parts = [interpolation(k, rows, jnp.asarray(self.times[pivots]), tril) for k, pivots, tril in latents]
        return np.concatenate(parts, 1)

    def latents(
        self, weights: Float[Array, " weight"], phi: Float[Array, "time feature"]
    ) -> Float[Array, "latent time"]:
        """X at the inputs, whose features are ``phi``."""
        return latents_at(self.layout, self.basis(phi), weights)

    def basis(self, phi: Float[Array, "time feature"]) -> tuple:
        """``phi``, and where there are states what observes them and at which of their times each input is."""
        return (phi,) if self.space is None else (phi, self.observe, self.row)

    def weights(self, x: Float[Array, "*draw latent time"]) -> Float[Array, "*draw weight"]:
        """The weights of latents that lie in the features' span: x_j at its pivots is L_j w_j.

        Of the Markov latents' states, which x alone doesn't tell, the smallest that give these x.
        """
        parts = []
        num_draws = math.prod(x.shape[:-2])
        if self.space is not None:
            states = (x.mT[..., self.first, :] @ np.linalg.pinv(self.observe).T).reshape(*x.shape[:-2], -1)
            x = x - _observed(self.observe, states)[..., self.row, :].mT
            parts = [states.reshape(num_draws, -1)]
        solves = [
            solve_triangular(jnp.asarray(tril, x.dtype), x[..., j, pivots].reshape(num_draws, -1).T, lower=True).T
            if len(pivots)
            else jnp.zeros((num_draws, 0), x.dtype)
            for j, (pivots, tril) in enumerate(zip(self.pivots, self.pivot_tril, strict=True))
        ]
        return jnp.concatenate([*solves, *parts], -1).reshape(*x.shape[:-2], -1)

    def extend(self, new_inputs: Float[Array, "new *column"]) -> tuple:
        """``LatentDraws``' basis, owner, latent_variance and places: the latents at new inputs given the weights.

        The prior variance that the weights leave open is k** - Phi* Phi*^T of features, and of states the variance
        between the neighbouring times' states.
        """
        r, dtype = self.num_features, new_inputs.dtype
        basis, owner = self.phi(np.asarray(new_inputs)), self.owner[:r]
        prior = [np.zeros(len(new_inputs)) if k is None else np.asarray(diagonal(k, new_inputs)) for k in self.rest]
        residual = np.clip(
            np.stack(prior) - ((basis**2) @ (owner[:, None] == np.arange(self.num_latents))).T, 0.0, None
        )
        if self.space is None:
            return jnp.asarray(basis, dtype), owner, jnp.asarray(residual, dtype), None
        new_times = np.asarray(new_inputs, np.float64)
        index, coefficients, open_ = interpolate(self.terms, self.space, new_times, self.num_latents)
        features = np.broadcast_to(np.arange(r), (len(new_inputs), r))
        return (
            jnp.asarray(np.concatenate([basis, coefficients], -1), dtype),
            np.concatenate([owner, self.space.owner, self.space.owner]),
            jnp.asarray(residual + open_, dtype),
            np.concatenate([features, r + index], -1),
        )


def _observed(observe, states: Float[Array, "*draw state"]) -> Float[Array, "*draw time latent"]:
    observe = jnp.asarray(observe.T, states.dtype)
    return states.reshape(*states.shape[:-1], -1, len(observe)) @ observe


def latents_at(layout: Layout, basis: tuple, weights: Float[Array, " weight"]) -> Float[Array, "latent time"]:
    """X at the inputs of a ``Features.basis``."""
    r, num_latents = sum(layout.ranks), len(layout.ranks)
    columns = jax.nn.one_hot(layout.owner[:r], num_latents, dtype=weights.dtype) * weights[:r, None]
    x = jnp.asarray(basis[0], weights.dtype) @ columns
    if len(basis) > 1:
        observe, row = basis[1:]
        x += _observed(observe, weights[r:])[row]
    return x.T


def latent_features(
    covariances: Sequence[Covariance],
    inputs: Float[Array, "time *column"],
    *,
    names: Sequence[str],
    max_rank: int = 2000,
    tolerance: float | None = None,
    states: bool = True,
) -> Features:
    """The features of all latents at ``inputs``, in float64 NumPy arrays, and the states of those without a low rank.

    ``tolerance`` is relative (None: 1e-10 in float64, 1e-5 in float32). A covariance of one-dimensional inputs whose
    rank is above 64 and an eighth of the times (256 at most) has states for its Markov terms, if the precision can
    tell them apart and ``states`` is true.
    """
    if tolerance is None:
        tolerance = 1e-10 if jnp.finfo(inputs.dtype).bits == 64 else 1e-5
    low_rank = min(max_rank, max(LOW_RANK, min(len(inputs) // 8, 4 * LOW_RANK)))
    times = np.unique(np.asarray(inputs, np.float64))
    factors: list[tuple] = []
    markovian: list[int] = []
    for j, (covariance, name) in enumerate(zip(covariances, names, strict=True)):
        factor = partial(choose_pivots, inputs=inputs, tolerance=tolerance, name=name)
        markov, others = markov_terms(covariance) if states and inputs.ndim == 1 else ([], [covariance])
        try:
            factors.append(factor(covariance, max_rank=low_rank if markov else max_rank))
        except RankError:
            if not markov:
                raise
            if not states_resolve(markov, times, inputs.dtype):
                factors.append(factor(covariance, max_rank=max_rank))
                continue
            markovian.append(j)
            factors.append(
                factor(reduce(add, others), max_rank=max_rank) if others else (np.zeros(0, int), np.zeros((0, 0)))
            )
    return assemble(covariances, inputs, factors, markovian)


def assemble(
    covariances: Sequence[Covariance],
    inputs: Float[Array, "time *column"],
    factors: Sequence[tuple[Int[np.ndarray, " rank"], Float[np.ndarray, "rank rank"]]],
    markovian: Sequence[int],
) -> Features:
    """Features of known ``factors``, each latent's pivots and Cholesky factor there; ``markovian`` ones have states."""
    times = np.asarray(inputs, np.float64)
    rest: list[Any] = list(covariances)
    terms: dict[int, Sequence[Quasisep]] = {}
    for j in markovian:
        terms[j], others = markov_terms(covariances[j])
        rest[j] = reduce(add, others) if others else None
    return Features(
        pivots=[pivots for pivots, _ in factors],
        pivot_tril=[tril for _, tril in factors],
        rest=rest,
        times=times,
        terms=terms,
        space=state_space(terms, np.unique(times)) if terms else None,
    )
