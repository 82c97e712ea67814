"""The temperature of the concrete relaxation (paper, App. B)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

LOWEST, HIGHEST = 0.66, 10.0
PRIOR_TEMPERATURE = 0.5


def annealed_temperature(step: Float[Array, "..."] | float, num_steps: int) -> Float[Array, "..."]:
    """T(n, N) = 0.66 + (10 - 0.66) exp(-(n - 0.75 N)^2 / (0.083 N)^2) at step n of N.

    A bump, not a cooling: 0.66 at the start, 10 at three quarters, 0.661 at the end. Paper, App. B.

    Examples
    --------
    >>> [round(float(annealed_temperature(n, 100)), 3) for n in (0, 50, 75, 100)]
    [0.66, 0.661, 10.0, 0.661]
    """
    return LOWEST + (HIGHEST - LOWEST) * jnp.exp(-(((step - 0.75 * num_steps) / (0.083 * num_steps)) ** 2))
