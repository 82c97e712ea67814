"""A sweep's random numbers, all from one draw."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import erf_inv
from jaxtyping import Array, Float, Int


class RandomNumbers(NamedTuple):
    """All of a sweep's random numbers, by the move that takes them; ``key`` is for draws from the gamma family.

    ``acceptance`` has a uniform for each proposal of the marginal moves.
    """

    normal: dict[str, Array]
    uniform: dict[str, Array]
    acceptance: Any = None
    key: Any = None


def random_numbers(key, normal: dict[str, tuple], uniform: dict[str, tuple], dtype) -> RandomNumbers:
    """Standard normals and uniforms of these shapes from one draw."""
    shapes = [*normal.values(), *uniform.values()]
    sizes = [math.prod(shape) for shape in shapes]
    # Open at -1, as in jax.random.normal: an inverse of it is finite, and so is the logarithm of a uniform.
    flat = jax.random.uniform(key, (sum(sizes),), dtype, minval=np.nextafter(np.array(-1, dtype), 0), maxval=1)
    parts = [part.reshape(shape) for part, shape in zip(jnp.split(flat, np.cumsum(sizes)[:-1]), shapes, strict=True)]
    normals = [math.sqrt(2) * erf_inv(part) for part in parts[: len(normal)]]
    uniforms = [0.5 + 0.5 * part for part in parts[len(normal) :]]
    return RandomNumbers(dict(zip(normal, normals, strict=True)), dict(zip(uniform, uniforms, strict=True)))


def index(uniform: Float[Array, "*batch"], size: int) -> Int[Array, "*batch"]:
    """One of 0 to size - 1, from a uniform."""
    return jnp.minimum(uniform * size, size - 1).astype(int)


def categorical(probs: Float[Array, "*batch category"], uniform: Float[Array, "*batch"]) -> Int[Array, "*batch"]:
    """A category by its probability, from a uniform."""
    # By round-off the last sum may be below 1.
    return jnp.minimum((probs.cumsum(-1) < uniform[..., None]).sum(-1), probs.shape[-1] - 1).astype(jnp.int32)
