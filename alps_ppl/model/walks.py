"""Covariances of what doesn't come back to a mean: random walks, whose states are Markov, and a step at a time.

A walk starts at ``start``, and its variance grows from there by the distance, to either side. It goes on from where it
is: a forecast of it stays at the last level, or follows the last slope.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from tinygp import kernels

from alps_ppl.model.covariances import Covariance


class Wiener(kernels.Kernel):
    """A walk's covariance, from its states': s(start) ~ N(0, P), then s(t) = F(t - start) s(start) + noise.

    The first state is the walk. This one has no other; an integrated walk has its slope.
    """

    start: Any
    span: Any

    def flow(self, since: Float[Array, "*batch"]) -> Float[Array, "*batch dim dim"]:
        """F: the states after a time without noise."""
        return jnp.ones((*jnp.shape(since), 1, 1))

    def noise(self, since: Float[Array, "*batch"]) -> Float[Array, "*batch dim dim"]:
        """The covariance of what has come to the states in a time; one before ``start`` is negative."""
        return (jnp.abs(since) / self.span)[..., None, None]

    def at_start(self) -> Float[Array, "dim dim"]:
        """P."""
        return jnp.full((1, 1), 0.5)

    def marginal(self, times: Float[Array, "*batch"]) -> Float[Array, "*batch dim dim"]:
        """Cov[s(t)]."""
        F = self.flow(times - self.start)
        return F @ self.at_start() @ F.mT + self.noise(times - self.start)

    def joint(self, before: Float[Array, "*batch"], after: Float[Array, "*batch"]) -> Float[Array, "*batch dim dim"]:
        """Cov[s(after), s(before)]: both come from the states between them that are nearest to ``start``."""
        between = jnp.clip(self.start, before, after)
        return self.flow(after - between) @ self.marginal(between) @ self.flow(before - between).mT

    def transition(
        self, before: Float[Array, "*batch"], after: Float[Array, "*batch"]
    ) -> tuple[Float[Array, "*batch dim dim"], Float[Array, "*batch dim dim"]]:
        """A and Q of s(after) = A s(before) + e, e ~ N(0, Q)."""
        joint = self.joint(before, after)
        A = jnp.linalg.solve(self.marginal(before).mT, joint.mT).mT
        from_start = (before >= self.start)[..., None, None]  # no difference of nearly equal numbers
        A = jnp.where(from_start, self.flow(after - before), A)
        Q = jnp.where(from_start, self.noise(after - before), self.marginal(after) - A @ joint.mT)
        return A, Q

    def evaluate(self, X1, X2):
        """K(t, t')."""
        return self.joint(jnp.minimum(X1, X2), jnp.maximum(X1, X2))[..., 0, 0]


class RandomWalk(Wiener):
    """See ``random_walk``."""


class IntegratedWalk(Wiener):
    """See ``integrated_walk``."""

    def flow(self, since):
        """F: the value goes on by the slope."""
        since, one = jnp.asarray(since), jnp.ones(jnp.shape(since))
        return _matrix(one, since, 0 * one, one)

    def noise(self, since):
        """The integral's and the slope's."""
        size = jnp.abs(since)
        return 4 / self.span**3 * _matrix(size**3 / 3, since * size / 2, since * size / 2, size)

    def at_start(self):
        """A level and a slope."""
        return jnp.diag(jnp.array([1 / 3, 1.0])) * jnp.array([1.0, self.span**-2.0])


def _matrix(a, b, c, d) -> Float[Array, "*batch 2 2"]:
    return jnp.stack([jnp.stack([a, b], -1), jnp.stack([c, d], -1)], -2)


class Step(kernels.Kernel):
    """See ``step``."""

    at: Any

    def evaluate(self, X1, X2):
        """K(t, t')."""
        return jnp.where((self.at < X1) == (self.at < X2), 1.0, 0.0)


def random_walk(start: float, span: float) -> Covariance:
    """A level that wanders and doesn't come back: after the start k(t, t') = 1/2 + (min(t, t') - start) / span.

    Its variance is 1 on average over the ``span`` (in the inputs' unit) from ``start``: 1/2 of the level at the start,
    and of all that comes to it. Raises a ValueError unless both are finite and ``span`` is positive.
    """
    return RandomWalk(*_checked("random_walk", start, span))


def integrated_walk(start: float, span: float) -> Covariance:
    """A line whose slope wanders, the integral of a random walk, with a level and a slope at the start.

    With u = (t - start) / span, it is sqrt(1/3) a + b u + 2 int_0^u W, a and b standard normals and W a Wiener process.
    Its variance is 1 on average over the ``span`` (in the inputs' unit) from ``start``, a third each of its level, its
    first slope and of how that changes. Raises a ValueError unless both are finite and ``span`` is positive.
    """
    return IntegratedWalk(*_checked("integrated_walk", start, span))


def step(at: float) -> Covariance:
    """A shift of level: one up to the time ``at``, and from there on another, both of variance 1.

    An output that is centred over a table has neither level at zero, so that a step from zero would leave the level
    before it to whatever else is offered. Where the time isn't known, give a range:
    ``ALPS(covariance_ranges={"shift": {"at": (low, high)}})``. Raises a ValueError unless ``at`` is finite.
    """
    if not _is_finite(at):
        raise ValueError(f"step: expected a finite time, got {at!r}")
    return Step(float(at))


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.ndim(value) == 0 and np.isfinite(value))
    except TypeError:  # no number at all
        return False


def _checked(name: str, start: float, span: float) -> tuple[float, float]:
    if not (_is_finite(start) and _is_finite(span) and span > 0):
        raise ValueError(f"{name}: expected a finite start and a positive, finite span, got {start!r}, {span!r}")
    return float(start), float(span)
