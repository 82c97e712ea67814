"""The temperature of the concrete gates (paper, App. B.7)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

LOWEST, HIGHEST = 0.66, 10.0


def annealed_temperature(step: Float[Array, "..."] | float, num_steps: int) -> Float[Array, "..."]:
    """App. B.7: T(n, N) = 0.66 + (10 - 0.66) exp(-(n - 0.75 N)^2 / (0.083 N)^2) at step n of N.

    It starts at 0.66, so that all else settles before latents drop out, rises to 10 at three quarters of the steps and
    ends at 0.661.

    Examples
    --------
    >>> [round(float(annealed_temperature(n, 100)), 3) for n in (0, 50, 75, 100)]
    [0.66, 0.661, 10.0, 0.661]
    """
    return LOWEST + (HIGHEST - LOWEST) * jnp.exp(-(((step - 0.75 * num_steps) / (0.083 * num_steps)) ** 2))
