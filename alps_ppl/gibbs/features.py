"""The latents as the sampler holds them: x_j = Phi_j w_j with w_j ~ N(0, I), or a chain of Markov states."""

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs.families import Family, extend_features, extend_states, family
from alps_ppl.gibbs.layout import Layout
from alps_ppl.gibbs.pivots import RankError, choose_pivots, diagonal, interpolation
from alps_ppl.gibbs.statespace import StateSpace, interpolate, markov_terms, state_space, states_resolve
from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import Covariance
from alps_ppl.model.scales import Averaged, UnknownScale, along

# Up to this rank, or an eighth of the times and four times this rank, features cost less than states.
LOW_RANK = 64
# As many features may hold all values of an unknown scale.
MOST_HELD = 200
# With more, those of a Markov process of unknown scale are states: a point of its grid would cost their cube.
FEW_HELD = 16


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
    terms: dict[int, Sequence[Covariance]]
    space: StateSpace | None
    families: tuple[Family, ...] = ()  # of the processes with an unknown scale
    num_rows: int = 0  # of a table of which ``times`` are some; 0 where they are all

    @property
    def owner(self) -> Int[np.ndarray, " weight"]:
        """Which latent each weight belongs to."""
        return self.layout.owner

    @property
    def layout(self) -> Layout:
        """The shape of the weights."""
        held = tuple(map(len, self.pivots))
        ranks = list(held)
        for one in self.families:
            for j in one.latents:
                ranks[j] = one.maps.shape[-1]
        states = () if self.space is None else (tuple(self.space.owner), len(self.space.times))
        if not self.families:
            return Layout(held, *states)
        return Layout(tuple(ranks), *(states or ((), 0)), tuple(one.latents for one in self.families), held)

    def held_weights(self, weights: Float[Array, "*draw weight"], points: Any) -> Array:
        """The features' weights from the latents' own, which at an unknown scale's ``points`` are others."""
        return self._mapped(weights, self.layout.ranks, [one.maps for one in self.families], points)

    def own_weights(self, held: Float[Array, "*draw weight"], points: Int[Array, "*draw scaled"]) -> Array:
        """The latents' own weights, of which ``held_weights`` makes the features' again where that is possible."""
        return self._mapped(held, self.layout.held, [np.linalg.pinv(one.maps, 1e-10) for one in self.families], points)

    def _mapped(
        self, weights, ranks: Sequence[int], maps: Sequence[Float[np.ndarray, "point to rank"]], points
    ) -> Array:
        """The weights, those of unknown scales mapped; ``ranks`` are those before."""
        if not self.families:
            return weights
        ends = np.cumsum(ranks)
        parts = [weights[..., end - rank : end] for end, rank in zip(ends, ranks, strict=True)]
        for k, one in enumerate(self.families):
            here = jnp.asarray(maps[k], weights.dtype)[points[..., k]]
            for j in one.latents:
                parts[j] = jnp.einsum("...tr,...r->...t", here, parts[j])
        return jnp.concatenate([*parts, weights[..., ends[-1] :]], -1)

    @property
    def num_latents(self) -> int:
        return len(self.pivots)

    @property
    def num_features(self) -> int:
        """How many features there are: of the weights of draws, those that aren't states."""
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
        precision = jnp.zeros(0).dtype  # that of the data, whose factor it is
        rows = np.asarray(self.times if inputs is None else inputs, precision)
        latents = zip(self.rest, self.pivots, self.pivot_tril, strict=True)
        parts = [interpolation(k, rows, self.times[pivots].astype(precision), tril) for k, pivots, tril in latents]
        return np.concatenate(parts, 1)

    def latents(
        self, weights: Float[Array, " weight"], phi: Float[Array, "time feature"]
    ) -> Float[Array, "latent time"]:
        """X at the inputs, whose features are ``phi``."""
        return latents_at(self.layout.features, self.basis(phi), weights)

    def basis(self, phi: Float[Array, "time feature"]) -> tuple:
        """``phi``, and where there are states what observes them and at which of their times each input is."""
        return (phi,) if self.space is None else (phi, self.observe, self.row)

    def weights(self, x: Float[Array, "*draw latent time"]) -> Float[Array, "*draw weight"]:
        """The features' weights of latents that lie in their span: x_j at its pivots is L_j w_j.

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
        basis, owner = self.phi(np.asarray(new_inputs)), self.layout.features.owner[:r]
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

    def extend_at(self, new_inputs: Float[Array, "new *column"], visited: Sequence[tuple[int, int]]) -> tuple:
        """``extend`` where scales are unknown: a latent of such a process is one for each point that draws visited.

        ``visited`` are (process, point). The further latents come after all others, (process, point) by (process,
        point); in the place of those that they stand for nothing is left. Also returns their latents' places.
        """
        basis, owner, residual, places = map(np.asarray, self.extend(new_inputs))
        n, r = len(new_inputs), self.num_features
        if self.space is None:
            places = np.broadcast_to(np.arange(r), (n, r))
        scaled = [j for one in self.families for j in one.latents]
        kept = ~np.isin(owner, scaled)
        residual = np.where(np.isin(np.arange(self.num_latents), scaled)[:, None], 0, residual)
        ends = np.cumsum(self.layout.features.ranks)
        parts = [(basis[:, kept], owner[kept], places[:, kept])]
        variances = [residual]
        of: list[int] = []
        for k, point in visited:
            one = self.families[k]
            for j in one.latents:
                where = np.broadcast_to(np.arange(ends[j] - len(self.pivots[j]), ends[j]), (n, len(self.pivots[j])))
                if one.has_states:
                    index, mean, open_ = extend_states(one, point, np.asarray(new_inputs, np.float64))
                    own = np.flatnonzero(self.space.owner == j)  # type: ignore[union-attr]
                    where = r + index // len(own) * len(self.space.owner) + own[index % len(own)]  # type: ignore[union-attr]
                else:
                    pivot_inputs = jnp.asarray(self.times[self.pivots[j]])
                    mean, open_ = extend_features(one.at(point), pivot_inputs, self.pivot_tril[j], new_inputs)
                parts.append((mean, np.full(mean.shape[1], self.num_latents + len(of)), where))
                variances.append(open_[None])
                of.append(j)
        basis, owner, places = (np.concatenate(columns, -1) for columns in zip(*parts, strict=True))
        dtype = new_inputs.dtype
        return jnp.asarray(basis, dtype), owner, jnp.asarray(np.concatenate(variances), dtype), places, of


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
    unknown: Mapping[tuple[int, ...], UnknownScale] | None = None,
) -> Features:
    """The features of all latents at ``inputs``, in float64 NumPy arrays, and the states of those without a low rank.

    ``tolerance`` is relative (None: 1e-10 in float64, 1e-5 in float32). A covariance of one-dimensional inputs whose
    rank is above 64 and an eighth of the times (256 at most) has states for its Markov terms, if the precision can
    tell them apart and ``states`` is true. ``unknown`` are unknown scales, by the latents that have each.
    """
    if tolerance is None:
        tolerance = 1e-10 if jnp.finfo(inputs.dtype).bits == 64 else 1e-5
    low_rank = min(max_rank, max(LOW_RANK, min(len(inputs) // 8, 4 * LOW_RANK)))
    times = np.unique(np.asarray(inputs, np.float64))
    factors: list[tuple] = []
    markovian: list[int] = []
    of_latent = {j: scale for latents, scale in (unknown or {}).items() for j in latents}
    for j, (covariance, name) in enumerate(zip(covariances, names, strict=True)):
        factor = partial(choose_pivots, inputs=inputs, tolerance=tolerance, name=name)
        markov, others = markov_terms(covariance) if states and inputs.ndim == 1 else ([], [covariance])
        scale = of_latent.get(j)
        most = low_rank if markov else max_rank
        if scale is not None:
            covariance, markov = Averaged(along(covariance, scale)), [] if others else markov
            factor = partial(factor, tolerance=tolerance / len(scale.grid.values))
            most = min(low_rank, FEW_HELD) if markov else MOST_HELD
        try:
            factors.append(factor(covariance, max_rank=most))
        except RankError as error:
            if not markov:
                raise (
                    error
                    if scale is None
                    else RankError(
                        f"latent {name!r}: its unknown scale needs more than {MOST_HELD} features on "
                        f"{len(inputs)} inputs; narrow its range, or give a rough and a smooth term a latent each"
                    )
                ) from None
            if not states_resolve(markov, times, inputs.dtype):
                factors.append(factor(covariance, max_rank=max_rank))
                continue
            markovian.append(j)
            factors.append(
                factor(reduce(add, others), max_rank=max_rank) if others else (np.zeros(0, int), np.zeros((0, 0)))
            )
    return assemble(covariances, inputs, factors, markovian, unknown)


def by_latents(model: ALPS) -> dict[tuple[int, ...], UnknownScale]:
    """The unknown scales by their latents' places."""
    return {
        tuple(j for j, of in enumerate(model.copy_of) if of == name): unknown
        for name, unknown in model.unknown_scales.items()
    }


def assemble(
    covariances: Sequence[Covariance],
    inputs: Float[Array, "time *column"],
    factors: Sequence[tuple[Int[np.ndarray, " rank"], Float[np.ndarray, "rank rank"]]],
    markovian: Sequence[int],
    unknown: Mapping[tuple[int, ...], UnknownScale] | None = None,
) -> Features:
    """Features of known ``factors``, each latent's pivots and Cholesky factor there; ``markovian`` ones have states."""
    times = np.asarray(inputs, np.float64)
    rest: list[Any] = list(covariances)
    terms: dict[int, Sequence[Covariance]] = {}
    for latents, scale in (unknown or {}).items():
        for j in latents:
            rest[j] = Averaged(along(covariances[j], scale))
    for j in markovian:
        terms[j], others = markov_terms(covariances[j])
        rest[j] = reduce(add, others) if others else None
    distinct = np.unique(times)
    families = []
    for latents, scale in (unknown or {}).items():
        pivots, tril = factors[latents[0]]
        state_times = distinct if latents[0] in markovian else None
        families.append(family(covariances[latents[0]], scale, latents, inputs[pivots], tril, state_times))
    return Features(
        pivots=[pivots for pivots, _ in factors],
        pivot_tril=[tril for _, tril in factors],
        rest=rest,
        times=times,
        terms=terms,
        space=state_space(terms, distinct) if terms else None,
        families=tuple(families),
    )
