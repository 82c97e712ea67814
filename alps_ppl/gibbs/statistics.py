"""The data as a sweep needs them: sufficient statistics, computed once.

Of latents in weight space, x_j = Phi_j w_j with w_j ~ N(0, I), the likelihood needs Phi^T Phi and Phi^T Y only. So a
sweep doesn't touch the n times; only the states of Markov latents do, once each. Sums over times run over the observed
cells.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs.families import Family
from alps_ppl.gibbs.features import Features
from alps_ppl.gibbs.layout import Layout
from alps_ppl.gibbs.pivots import row_slices
from alps_ppl.gibbs.whitening import add_rows, no_rows, padded
from alps_ppl.model.memory import PrivateMemory


class StateStatistics(NamedTuple):
    """What a sweep needs of the data and of the Markov latents' state space, at the sorted distinct times."""

    steps: Float[Array, " time"]  # from the time before, infinite at the first
    transition: Float[Array, "time dim dim"]  # A_t of s_t = A_t s_{t-1} + e_t
    precision: Float[Array, "time dim dim"]  # Cov[e_t]^-1
    half_log_det: Float[Array, ""]  # of the states' prior precision
    observe: Float[Array, "latent dim"]  # x(t) = observe @ s_t, of the Markov latents
    phi: Float[Array, "time feature"]
    counts: Float[Array, "pattern time"]  # observed rows
    sums: Float[Array, "time output"]  # of y over the observed rows


class PrivateStatistics(NamedTuple):
    """The same with each output's own covariance C_g in the place of I, for every point g of the private memory's grid.

    Where there are Markov latents, C_g^-1 isn't banded, and only what is of y alone is there: ``gram`` and
    ``projection`` have no features then, nor where noise is Student's.
    """

    memory: PrivateMemory
    gram: Float[Array, "point pattern feature feature"]  # Phi^T C^-1 Phi
    projection: Float[Array, "point output feature"]  # Phi^T C^-1 y_i
    sum_squares: Float[Array, "point output"]  # y_i^T C^-1 y_i
    half_log_det: Float[Array, "point output"]


class Cells(NamedTuple):
    """Every cell, where sums over times won't do: beside private memories as states, and where noise is Student's.

    Rows are sorted by time: ``order`` takes y's to them, and ``row`` is the states' time of each.
    """

    times: Float[Array, " row"]
    y: Float[Array, "row output"]  # 0 where it is missing
    precision: Float[Array, "row output"]  # of a cell's white noise beside others', 0 where it is missing
    order: Int[Array, " row"]
    row: Int[Array, " row"]
    phi: Float[Array, "row feature"] | None = None  # where noise is Student's


class ScaleStatistics(NamedTuple):
    """A process of an unknown scale at every point of its grid: a ``Family`` as a sweep needs it.

    ``maps`` take a latent's own weights to its features'. The state space of a latent with Markov states is that of the
    point, and ``half_log_det`` what it adds to that of all states' prior precision.
    """

    log_prior: Float[Array, " point"]
    maps: Float[Array, "point feature rank"]
    transition: Any = None  # (point, time, dim, dim)
    precision: Any = None
    half_log_det: Any = None  # (point,)


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
    private: PrivateStatistics | None = None
    cells: Cells | None = None
    point: Any = None  # of the grid, where each output is: ``given``
    half_log_det: Any = None  # (output,), of the covariances in the place of I
    scales: tuple[ScaleStatistics, ...] = ()
    to_features: Any = None  # (feature, own weight), where scales are unknown: ``at_scales``

    @property
    def memory(self) -> PrivateMemory:
        """Share and lengthscale of each output's memory, where ``given`` put them."""
        assert self.private is not None
        return self.private.memory.at(self.point)

    def given(self, point: Int[Array, " output"] | None) -> "Statistics":
        """The statistics of the likelihood in which each output's own covariance is that of a point of the grid."""
        if self.private is None:
            return self._of_own_weights()
        private, output = self.private, jnp.arange(len(self.pattern))
        if self.states is not None:
            return self._of_own_weights()._replace(point=point)
        here = self._replace(
            gram=private.gram[point, self.pattern],
            pattern=output,
            projection=private.projection[point, output],
            sum_squares=private.sum_squares[point, output],
            half_log_det=private.half_log_det[point, output],
            point=point,
        )
        return here._of_own_weights()

    def _of_own_weights(self) -> "Statistics":
        """Of the latents' own weights at their scales in the place of the features'."""
        M = self.to_features
        if M is None:
            return self
        states = None if self.states is None else self.states._replace(phi=self.states.phi @ M)
        return self._replace(gram=M.T @ self.gram @ M, projection=self.projection @ M, states=states, to_features=None)

    def split(self, weights: Float[Array, " weight"]) -> tuple[Array, Array]:
        """The latents' own weights of features, and the states (time, dim)."""
        M, dim = self.to_features, 1 if self.states is None else self.states.observe.shape[-1]
        r = self.projection.shape[-1] if M is None else M.shape[-1]
        return weights[:r], weights[r:].reshape(-1, dim)


def at_scales(
    stats: Statistics, layout: Layout, points: Int[Array, " scaled"], opened: int | None = None
) -> Statistics:
    """The statistics where unknown scales are at these points of their grids.

    With ``opened``, the number of a process with an unknown scale, its latents' weights are those of its features.
    """
    blocks = [jnp.eye(held, dtype=stats.gram.dtype) for held in layout.held]
    states = stats.states
    for k, (latents, scale) in enumerate(zip(layout.scaled, stats.scales, strict=True)):
        for j in latents:
            if k != opened:
                blocks[j] = scale.maps[points[k]]
            if scale.transition is not None:
                assert states is not None
                own = np.flatnonzero(np.array(layout.state_owner) == j)
                here = (slice(None), slice(own[0], own[-1] + 1), slice(own[0], own[-1] + 1))
                states = states._replace(
                    transition=states.transition.at[here].set(scale.transition[points[k]]),
                    precision=states.precision.at[here].set(scale.precision[points[k]]),
                    half_log_det=states.half_log_det + scale.half_log_det[points[k]],
                )
    owner = np.repeat(np.arange(len(blocks)), [block.shape[1] for block in blocks])
    return stats._replace(
        states=states,
        to_features=jax.scipy.linalg.block_diag(*blocks),
        owner=jnp.asarray(np.concatenate([owner, layout.features.owner[sum(layout.held) :]])),
    )


def statistics(
    features: Features,
    y: Float[Array, "time output"],
    private_memory: PrivateMemory | None = None,
    log_priors: Sequence[Any] = (),
    student: bool = False,
    few_shapes: bool = False,
) -> Statistics:
    """The sufficient statistics, summed in float64 and returned in ``y``'s precision.

    ``log_priors`` are those of the points of each unknown scale; ``student`` is whether cells have noise factors.
    ``few_shapes``: one pattern, or one for each output, so that many tables share a compiled program.
    """
    values = np.asarray(y, np.float64)
    observed = ~np.isnan(values)
    filled = np.where(observed, values, 0.0)
    patterns, pattern = np.unique(observed, axis=1, return_inverse=True)
    pattern = pattern.reshape(-1)
    if few_shapes and patterns.shape[1] > 1:
        patterns, pattern = observed, np.arange(observed.shape[1])
    array = partial(jnp.asarray, dtype=y.dtype)
    needs_cells = student or (features.space is not None and private_memory is not None)
    r = features.num_features
    gram, projection = np.zeros((patterns.shape[1], r, r)), np.zeros((values.shape[1], r))
    for rows in row_slices(len(values)):
        phi = features.phi(features.times[rows])
        gram += np.stack([(phi * seen[:, None]).T @ phi for seen in patterns[rows].T])
        projection += filled[rows].T @ phi
    return Statistics(
        gram=array(gram),
        pattern=jnp.asarray(pattern),
        projection=array(projection),
        sum_squares=array((filled**2).sum(0)),
        num_observed=array(observed.sum(0)),
        owner=jnp.asarray(features.owner),
        states=_state_statistics(features, patterns, filled, array) if features.space is not None else None,
        private=private_memory
        and _private_statistics(features, patterns, pattern, filled, private_memory, array, student),
        cells=_cells(features, observed, filled, array, student) if needs_cells else None,
        scales=tuple(
            scale_statistics(one, logs, features, array)
            for one, logs in zip(features.families, log_priors, strict=True)
        ),
    )


def scale_statistics(one: Family, log_prior, features: Features, array) -> ScaleStatistics:
    """One process of an unknown scale; ``array`` makes arrays of the data's precision."""
    scale = ScaleStatistics(array(log_prior), array(one.maps))
    if not one.has_states:
        return scale
    space: Any = features.space
    own = space.owner == one.latents[0]
    now = 0.5 * np.linalg.slogdet(space.precision[:, own][..., own])[1].sum()
    half_log_det = [0.5 * np.linalg.slogdet(at.precision)[1].sum() - now for at in one.spaces]
    return scale._replace(
        transition=array(np.stack([at.transition for at in one.spaces])),
        precision=array(np.stack([at.precision for at in one.spaces])),
        half_log_det=array(half_log_det),
    )


def _cells(features: Features, observed, filled, array, student: bool) -> Cells:
    order = np.argsort(features.times, kind="stable")
    return Cells(
        times=array(features.times[order]),
        y=array(filled[order]),
        precision=array(observed[order]),
        order=jnp.asarray(order),
        row=jnp.asarray(np.zeros(len(order), int) if features.space is None else features.row[order]),
        phi=array(features.phi(features.times[order])) if student else None,
    )


def _private_statistics(features: Features, patterns, pattern, filled, memory: PrivateMemory, array, student):
    """The same sums of columns that each point's Kalman filter has whitened."""
    order = np.argsort(features.times, kind="stable")
    times = features.times[order]
    phi = np.zeros((len(times), 0)) if student or features.space is not None else features.phi(times)
    rows = padded(times, (phi, filled[order], patterns[order]))
    with jax.enable_x64(True):
        start = no_rows(len(memory.share), patterns.shape[1], phi.shape[1], filled.shape[1])
        grid = PrivateMemory(*(np.asarray(values, float) for values in memory))
        sums, half_log_det, *_ = jax.tree.map(np.asarray, _add_rows(grid, start, pattern, *rows))
    gram, projection, squares = map(array, sums)
    return PrivateStatistics(
        PrivateMemory(*map(array, memory)), gram, projection, squares, array(half_log_det[:, pattern])
    )


_add_rows = jax.jit(add_rows)


def _state_statistics(features: Features, patterns, filled, array) -> StateStatistics:
    space, row = features.space, features.row
    assert space is not None

    def per_time(columns):
        return np.stack([np.bincount(row, column, len(space.times)) for column in columns.T])

    return StateStatistics(
        steps=array(np.diff(space.times, prepend=-np.inf)),
        transition=array(space.transition),
        precision=array(space.precision),
        half_log_det=array(0.5 * np.linalg.slogdet(space.precision)[1].sum()),
        observe=array(features.observe),
        phi=array(features.phi(features.times[features.first])),
        counts=array(per_time(patterns.astype(float))),
        sums=array(per_time(filled).T),
    )
