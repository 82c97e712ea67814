"""Inducing inputs: where they start, and whether there are enough of them."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from alps_ppl import checks
from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import Covariance, prior_variances
from alps_ppl.model.processes import default_jitter

# The part of a latent's variance, on average over the inputs, that inducing inputs may leave open at the start: 20 for
# a memory of 5 in 80 times leave .23, and flipped its gate.
MOST_LEFT, GOOD = 0.2, 0.1
# More are no remedy.
MOST_TRIED = 640


def initial_inducing_inputs(inputs: Float[Array, "time *column"], num_inducing: int) -> Array:
    """Inducing inputs spread evenly over each column's range; several columns are shuffled against one another.

    Of one column, a gap in the times longer than the spacing counts as one spacing: between two campaigns years apart
    there is nothing to interpolate.
    """
    columns = np.asarray(inputs, np.float64).reshape(len(inputs), -1).T
    # Half a spacing inside the ends; the shuffles make it a Latin hypercube.
    grid = (np.arange(num_inducing) + 0.5) / num_inducing
    if len(columns) == 1:
        times = np.sort(columns[0])
        steps = cut = np.diff(times)
        for _ in range(100):  # the spacing is that of what is left
            cut = np.minimum(steps, cut.sum() / num_inducing)
        places = np.interp(grid * cut.sum(), np.concatenate([[0.0], cut.cumsum()]), times)
        return jnp.asarray(places.reshape(num_inducing, *np.shape(inputs)[1:]))
    rng = np.random.default_rng(0)
    spread = [
        column.min() + np.ptp(column) * (grid if k == 0 else rng.permutation(grid)) for k, column in enumerate(columns)
    ]
    return jnp.asarray(np.stack(spread, -1).reshape(num_inducing, *np.shape(inputs)[1:]))


_gram = jax.jit(lambda covariance, z, t: covariance(z, t))


def unresolved(model: ALPS, inputs: Float[Array, "time *column"], num_inducing: int) -> list[str]:
    """What to say of each latent that so many inducing inputs can't resolve, and how many could.

    Nothing of inputs of several columns: over those, inducing inputs find their places while they are learnt.
    """
    found: list[str] = []
    if inputs.ndim > 1:
        return found
    for name, covariance in dict(zip(model.copy_of, model.covariances, strict=True)).items():
        left = _left(covariance, inputs, num_inducing, model.jitter)
        if left <= MOST_LEFT:
            continue
        enough = num_inducing
        while enough < min(len(inputs), MOST_TRIED) and _left(covariance, inputs, enough, model.jitter) > GOOD:
            enough = min(2 * enough, len(inputs))
        is_enough = _left(covariance, inputs, enough, model.jitter) <= GOOD
        remedy = f"about {enough} would resolve it (num_inducing={enough})" if is_enough else "no number would do"
        found.append(
            f"latent {name!r}: {num_inducing} inducing inputs leave {left:.0%} of its variance open, and SVI may be "
            f"wrong about its gate; {remedy}, and the Gibbs sampler has none"
        )
    return found


def _left(covariance: Covariance, inputs: Array, num_inducing: int, jitter: float | None) -> float:
    """The part of a latent's variance at the inputs that inducing inputs leave open at their start."""
    z = initial_inducing_inputs(inputs, min(num_inducing, len(inputs)))
    some = checks.some_of(inputs)
    K_zz, K_zt = (np.asarray(_gram(covariance, z, t), np.float64) for t in (z, some))
    prior = np.asarray(prior_variances((covariance,), some)[0], np.float64)
    scale = np.trace(K_zz) / len(K_zz)
    if not (np.isfinite(K_zz).all() and scale > 0 and prior.sum() > 0):
        return 0.0
    relative = default_jitter(jnp.asarray(K_zz).dtype) if jitter is None else jitter
    jittered = K_zz + max(relative, 1e-10) * scale * np.eye(len(K_zz))
    explained = np.einsum("zt,zt->t", K_zt, np.linalg.solve(jittered, K_zt))
    return float(np.clip(prior - explained, 0, None).sum() / prior.sum())
