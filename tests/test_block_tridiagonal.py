"""The factor of a block tridiagonal precision, beside a dense one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alps_ppl.gibbs import block_tridiagonal as tri


def problem(time: int, dim: int, num_rest: int, seed: int = 0):
    """Blocks of a well conditioned precision, some columns, and the dense precision."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(time, dim, dim))
    diagonal, below = root @ root.mT + (2 + 4 * dim) * np.eye(dim), rng.normal(size=(time, dim, dim))
    dense = np.zeros((time, dim, time, dim))
    for t in range(time):
        dense[t, :, t] = diagonal[t]
        if t:
            dense[t, :, t - 1], dense[t - 1, :, t] = below[t], below[t].T
    return diagonal, below, rng.normal(size=(time, dim, num_rest)), dense.reshape(time * dim, -1)


@pytest.mark.parametrize(
    ("time", "dim", "num_rest"),
    [(1, 2, 1), (127, 1, 2), (128, 1, 1), (129, 1, 4), (139, 2, 3), (143, 3, 1), (130, 4, 2), (128, 5, 2)],
)
def test_the_factor_is_the_dense_one(time, dim, num_rest):
    diagonal, below, rest, dense = problem(time, dim, num_rest)
    factor = tri.factorise(*map(jnp.asarray, (diagonal, below, rest)))
    assert (factor.inner is not None) == (time >= tri.FEWEST_TIMES and dim <= tri.FEW_STATES)

    columns, inverse = rest.reshape(time * dim, -1), np.linalg.inv(dense)
    np.testing.assert_allclose(factor.half_log_det, 0.5 * np.linalg.slogdet(dense)[1], rtol=1e-12)
    np.testing.assert_allclose(factor.products, columns.T @ inverse @ columns, rtol=1e-10, atol=1e-12)
    weights = np.linspace(-1.0, 2.0, num_rest)
    mean = factor.states(jnp.asarray(weights), jnp.zeros((time, dim)))
    np.testing.assert_allclose(mean.ravel(), inverse @ columns @ weights, rtol=1e-9, atol=1e-12)
    # A draw is a matrix times standard normals; the matrix times its transpose is the covariance.
    unit = jnp.eye(time * dim).reshape(-1, time, dim)
    draws = jax.vmap(lambda noise: factor.states(jnp.zeros(num_rest), noise).ravel())(unit)
    np.testing.assert_allclose(draws.T @ draws, inverse, atol=1e-12)


def test_chains_side_by_side_are_each_chain_alone():
    parts = [problem(130, 2, 2, seed)[:3] for seed in range(3)]
    together = jax.vmap(lambda *blocks: tri.factorise(*blocks).products)(
        *map(jnp.asarray, map(np.stack, zip(*parts, strict=True)))
    )
    alone = [tri.factorise(*map(jnp.asarray, blocks)).products for blocks in parts]
    np.testing.assert_allclose(together, jnp.stack(alone), rtol=1e-12)
