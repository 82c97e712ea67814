"""Unknown scales: a parameter of a covariance that is drawn from a range, in the place of a number.

The range is a grid. A lengthscale's points differ by a ratio, since its evidence is smooth in its logarithm; a period's
are evenly spread in frequency, since two periods are told apart by how far they drift over the whole series. The prior
is log-uniform on either. The time of a step isn't a scale, but is drawn in the same way: its points are evenly spread,
and the prior is uniform.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints
from tinygp import kernels

from alps_ppl.model.covariances import Covariance, with_parameters
from alps_ppl.model.walks import Step

# From one lengthscale to the next, a ratio.
RATIO = 1.2
# From one period to the next, so many cycles of drift over the series: what is taken, and the most that may be. At the
# first, the nearest point to a cycle of ten times the noise's variance loses at most .4 nats in 1,500 cells.
DRIFT, LARGEST_DRIFT = 1 / 128, 1 / 32
MOST_POINTS = 4_000
# Of a step's time over a range without a number of points: as many features hold them all.
POINTS_OF_A_STEP = 200
PERIODIC = (kernels.Cosine, kernels.ExpSineSquared)
Kind = Literal["lengthscale", "period", "time"]


class ScaleGrid(NamedTuple):
    """The points of an unknown scale in the inputs' unit, and the log prior of each."""

    values: Any  # (point,) arrays, NumPy's or JAX's
    log_prior: Any

    def nearest(self, value: Float[Array, "*batch"]) -> Int[Array, "*batch"]:
        """The point of each value."""
        return jnp.argmin(jnp.abs(jnp.asarray(self.values) - jnp.asarray(value)[..., None]), -1).astype(jnp.int32)


class UnknownScale(NamedTuple):
    """A latent's parameter, by its path in the covariance, and its grid."""

    path: str
    grid: ScaleGrid


def scale_grid(low: float, high: float, points: int, kind: Kind) -> ScaleGrid:
    """``points`` of them from low to high, log-uniform; a step's times uniform."""
    if kind == "time":
        return ScaleGrid(np.linspace(low, high, points), np.full(points, -np.log(points)))
    values = 1 / np.linspace(1 / low, 1 / high, points) if kind == "period" else np.geomspace(low, high, points)
    weights = np.gradient(np.log(values))
    return ScaleGrid(values, np.log(weights / weights.sum()))


def kind_of(covariance: Covariance, path: str) -> Kind:
    """What a parameter is: a period, a step's time, or else a lengthscale."""
    owner: Any = covariance
    for part in path.split(".")[:-1]:
        owner = getattr(owner, part)
    if isinstance(owner, Step):
        return "time"
    return "period" if isinstance(owner, PERIODIC) and path.split(".")[-1] == "scale" else "lengthscale"


def num_points(low: float, high: float, span: float, kind: Kind) -> int:
    """How many points a range needs over a series of this span."""
    if kind == "time":
        return POINTS_OF_A_STEP
    if kind == "period":
        return max(2, math.ceil((1 / low - 1 / high) * span / DRIFT) + 1)
    return max(2, math.ceil((math.log(high) - math.log(low)) / math.log(RATIO)) + 1)


def check_grid(latent: str, covariance: Covariance, unknown: UnknownScale, inputs: Float[Array, " time"]) -> None:
    """A ValueError for a step's times outside of the inputs, and for periods too far apart for their span."""
    name, kind = f"covariance_ranges[{latent!r}]", kind_of(covariance, unknown.path)
    values = np.asarray(unknown.grid.values)
    low, high = values[0], values[-1]
    first, last = inputs.min(), inputs.max()
    if kind == "time" and not (first <= low and high < last):
        raise ValueError(
            f"{name}: expected a step's times within the fitted ones, from {first:.10g} to before {last:.10g}, got "
            f"{low:.10g} to {high:.10g}"
        )
    span = float(last - first)
    if kind == "period" and (1 / low - 1 / high) / (len(values) - 1) * span > LARGEST_DRIFT:
        needed = num_points(low, high, span, "period")
        remedy = f"give (low, high, {needed})" if needed <= MOST_POINTS else "narrow the range"
        raise ValueError(
            f"{name}: {len(values)} points from {low:g} to {high:g} are too few for a series of length {span:g}: from "
            f"one to the next, a cycle drifts by over 1/{1 / LARGEST_DRIFT:g}; {remedy}"
        )


def along(covariance: Covariance, unknown: UnknownScale) -> Covariance:
    """The covariances at all points, stacked leaf by leaf."""
    values = jnp.asarray(unknown.grid.values)
    one = with_parameters(covariance, {unknown.path: jnp.zeros(())})
    stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (len(values), *jnp.shape(leaf))), one)
    return with_parameters(stacked, {unknown.path: values})


class Averaged(kernels.Kernel):
    """The mean of the covariances at all points of an unknown scale: its features resolve every one of them."""

    each: Covariance

    def evaluate(self, X1, X2):
        """K(t, t')."""
        return jax.vmap(lambda covariance: covariance.evaluate(X1, X2))(self.each).mean()


class _OnPoints(constraints.Constraint):
    """One of finitely many numbers."""

    is_discrete = True

    def __call__(self, x):
        return jnp.isfinite(x)

    def feasible_like(self, prototype):
        return jnp.ones_like(prototype)

    def tree_flatten(self):
        return (), ((), {})

    def __eq__(self, other):
        return isinstance(other, _OnPoints)


class OnGrid(dist.Distribution):
    """An unknown scale's prior: one of the grid's values. A value counts as the nearest point."""

    support = _OnPoints()
    pytree_data_fields = ("values", "log_prior")

    def __init__(self, grid: ScaleGrid, *, validate_args=None):
        self.values, self.log_prior = jnp.asarray(grid.values), jnp.asarray(grid.log_prior)
        super().__init__((), (), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        return self.values[jax.random.categorical(key, self.log_prior, shape=sample_shape)]

    def log_prob(self, value):
        return self.log_prior[ScaleGrid(self.values, self.log_prior).nearest(value)]
