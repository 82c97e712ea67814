"""Covariances: tinygp's, two of our own, and the Gram matrices of a whole list of them.

A k(t, t') is a *covariance* here; "kernel" is kept for MCMC.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from tinygp import kernels, transforms

Covariance = kernels.Kernel


def linear_periodic(period: float) -> Covariance:
    """The paper's "linear-periodic" covariance, k(t, t') = cos(2 pi (t - t') / period).

    It is the *linear* covariance on the circle embedding (sin, cos) of t, so it has rank 2 and its
    samples are sine waves of exactly this period: a square wave needs several of them. (The usual
    exp-sine-squared covariance, ``tinygp.kernels.ExpSineSquared``, takes any shape of that period,
    and one such latent alone would fit the square wave.) Paper, section 4.1 and 4.2.

    ``period`` is in the unit of the inputs and must be positive.
    """
    try:
        valid = bool(np.isfinite(period) and period > 0 and np.ndim(period) == 0)
    except (TypeError, ValueError):  # no number at all
        valid = False
    if not valid:
        raise ValueError(
            f"linear_periodic: expected a positive, finite period in the unit of the inputs, got {period!r}"
        )
    return kernels.Cosine(scale=float(period))


class _Linear(kernels.Kernel):
    """(t - center) (t' - center) / scale^2."""

    center: Any
    scale: Any

    def evaluate(self, X1, X2):
        """K(t, t'), the sum over the columns of inputs that have several."""
        return jnp.sum((X1 - self.center) * (X2 - self.center)) / self.scale**2


def linear(center: float, scale: float) -> Covariance:
    """k(t, t') = (t - center) (t' - center) / scale^2: a straight line through zero at ``center``.

    Its variance is 1 at a distance of ``scale`` from there: the middle and the sd of the inputs make it 1 on
    average. (tinygp's ``DotProduct`` is this with 0 and 1.) Raises a ValueError unless both are finite and
    ``scale`` is positive.
    """
    if not (np.isfinite(center) and np.isfinite(scale) and scale > 0):
        raise ValueError(f"linear: expected a finite center and a positive, finite scale, got {center!r}, {scale!r}")
    return _Linear(float(center), float(scale))


class White(kernels.quasisep.Quasisep):
    """1 where the inputs are equal, and 0 elsewhere: in the state space, a state without a memory."""

    def design_matrix(self):
        """It forgets at once."""
        return jnp.array([[-jnp.inf]])

    def stationary_covariance(self):
        """Its variance."""
        return jnp.ones((1, 1))

    def observation_model(self, X):
        """The state itself."""
        return jnp.ones(1)

    def transition_matrix(self, X1, X2):
        """Nothing is left of it at another input."""
        return jnp.where(X1 == X2, 1.0, 0.0)[None, None]

    def evaluate(self, X1, X2):
        """K(t, t')."""
        return jnp.where(X1 == X2, 1.0, 0.0)


def white() -> Covariance:
    """k(t, t') = 1 where t = t', and 0 elsewhere: noise that the outputs share by their column of H.

    In the paper's model, noise that outputs share counts as evidence for processes that aren't there. It is for inputs
    of one column and for the Gibbs sampler: SVI's inducing inputs can't resolve it.
    """
    return White()


def on_column(covariance: Covariance, column: int) -> Covariance:
    """``covariance`` as a function of one column of inputs of shape (time, column)."""
    if not isinstance(covariance, Covariance) or not isinstance(column, (int, np.integer)):
        raise TypeError(
            f"on_column: expected a tinygp covariance and a column's number, got {covariance!r}, {column!r}"
        )
    return transforms.Subspace(int(column), covariance)


def without_factors(covariance: Covariance, scale: Any = 1.0) -> tuple[Any, Covariance]:
    """``scale`` times the numbers that a covariance is multiplied by, however it is written, and what they multiply."""
    if isinstance(covariance, kernels.quasisep.Scale):
        return without_factors(covariance.kernel, scale * covariance.scale)
    if isinstance(covariance, kernels.Product):
        factors = covariance.kernel1, covariance.kernel2
        for factor, other in (factors, factors[::-1]):
            if isinstance(factor, kernels.Constant):
                return without_factors(other, scale * factor.value)
    return scale, covariance


def period_of(covariance: Covariance) -> float | None:
    """The period of a covariance that is linear-periodic but for factors; None for any other."""
    _, core = without_factors(covariance)
    return float(core.scale) if isinstance(core, kernels.Cosine) else None


def parameters(covariance: Covariance) -> dict[str, Any]:
    """A covariance's parameters by their path, attributes joined by dots as in "kernel1.scale"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(covariance)
    return {".".join(str(key).lstrip(".") for key in path): leaf for path, leaf in leaves}


def with_parameters(covariance: Covariance, values: Mapping[str, Any]) -> Covariance:
    """The covariance with other values at these paths."""
    return jax.tree.unflatten(jax.tree.structure(covariance), {**parameters(covariance), **values}.values())


def _structure(covariance: Covariance) -> tuple:
    """What two covariances must share to be evaluated as one batch: everything but the leaves' values."""
    leaves, treedef = jax.tree.flatten(covariance)
    return treedef, tuple(jnp.shape(leaf) for leaf in leaves)


def equal_covariance_groups(covariances: Sequence[Covariance]) -> list[int]:
    """A group number for each covariance, the same for covariances that are equal."""
    seen: dict[tuple, int] = {}
    keys = [  # complex: the roots of a CARMA covariance are
        (_structure(c), tuple(np.asarray(leaf, complex).tobytes() for leaf in jax.tree.leaves(c))) for c in covariances
    ]
    return [seen.setdefault(key, len(seen)) for key in keys]


def _by_structure(covariances: Sequence[Covariance]) -> list[tuple[list[int], Covariance]]:
    """Covariances of one structure, stacked leaf by leaf: [(their places, the stack)]."""
    groups = defaultdict(list)
    for j, covariance in enumerate(covariances):
        groups[_structure(covariance)].append(j)
    return [
        (members, jax.tree.map(lambda *leaves: jnp.stack(leaves), *[covariances[j] for j in members]))
        for members in groups.values()
    ]


def _batched(covariances: Sequence[Covariance], evaluate) -> Array:
    """``evaluate(covariance)`` for each, stacked; covariances of one structure share one vmap.

    Eight linear-periodic latents thus cost one traced covariance, not eight: most of a compilation.
    """
    groups = _by_structure(covariances)
    order = np.argsort(np.concatenate([members for members, _ in groups]))
    # axis_size: a covariance without parameters has no leaf that would tell it.
    blocks = jnp.concatenate([jax.vmap(evaluate, axis_size=len(members))(stack) for members, stack in groups])
    return blocks if len(groups) == 1 else blocks[order]


def grams(
    covariances: Sequence[Covariance], inputs_1: Float[Array, "n1 *column"], inputs_2: Float[Array, "n2 *column"]
) -> Float[Array, "latent n1 n2"]:
    """The Gram matrices k_j(inputs_1, inputs_2) of all latents.

    Parameters
    ----------
    covariances
        Of each latent.
    inputs_1, inputs_2
        (n1,) and (n2,), or (n1, column) and (n2, column).
    """
    return _batched(covariances, lambda covariance: covariance(inputs_1, inputs_2))


@jax.jit
def prior_variances(
    covariances: Sequence[Covariance], inputs: Float[Array, "time *column"]
) -> Float[Array, "latent time"]:
    """``variances``, compiled once for covariances of one structure."""
    return variances(covariances, inputs)


def variances(covariances: Sequence[Covariance], inputs: Float[Array, "time *column"]) -> Float[Array, "latent time"]:
    """The prior variances k_j(t, t) of all latents."""
    return _batched(covariances, lambda covariance: covariance(inputs))
