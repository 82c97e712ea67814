"""Covariances and processes against dense matrices: Gram matrices, densities, the sparse marginals and their KL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from numpyro.distributions.kl import kl_divergence
from problems import periodic
from scipy import stats
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.model.covariances import equal_covariance_groups, grams, parameters
from alps_ppl.model.processes import GaussianProcess, SparseGaussianProcess, default_jitter

COVARIANCES = [
    kernels.ExpSquared(scale=0.8),
    alps.linear_periodic(1.7),
    kernels.Exp(scale=1.1),
    alps.linear_periodic(2.3),
    2.0 * periodic(1.3) + kernels.Matern52(scale=2.0),
]
T = np.sort(np.random.default_rng(0).uniform(0, 4, 7))


def with_jitter(K, jitter):
    return K + jitter * np.trace(K) / len(K) * np.eye(len(K))


# --- covariances


def test_grams_are_pair_by_pair_and_in_order():
    expected = np.stack([reference.gram(covariance, T, T[:3]) for covariance in COVARIANCES])
    np.testing.assert_allclose(grams(COVARIANCES, jnp.asarray(T), jnp.asarray(T[:3])), expected, atol=1e-12)


def test_equal_covariances_are_found():
    twice = [alps.linear_periodic(7), alps.linear_periodic(17), alps.linear_periodic(7.0), kernels.Exp(scale=7.0)]
    assert equal_covariance_groups(twice) == [0, 1, 0, 2]


def test_linear_periodic_is_linear_on_the_circle():
    circle = np.stack([np.sin(2 * np.pi * T / 1.7), np.cos(2 * np.pi * T / 1.7)])
    np.testing.assert_allclose(alps.linear_periodic(1.7)(T, T), circle.T @ circle, atol=1e-12)


def test_on_column_reads_one_column():
    inputs = np.array([[0.0, 5.0], [1.0, 5.0], [0.0, 7.0]])
    gram = alps.on_column(kernels.ExpSquared(scale=2.0), 1)(inputs, inputs)
    expected = kernels.ExpSquared(scale=2.0)(inputs[:, 1], inputs[:, 1])
    np.testing.assert_allclose(gram, expected, atol=1e-14)


def test_parameters_of_sums_and_products():
    covariance = kernels.Exp(scale=5.0) + 2.0 * kernels.ExpSineSquared(scale=3.0, gamma=1.0)
    assert parameters(covariance) == {
        "kernel1.scale": 5.0,
        "kernel2.kernel1.value": 2.0,
        "kernel2.kernel2.scale": 3.0,
        "kernel2.kernel2.gamma": 1.0,
    }


@pytest.mark.parametrize(
    ("covariance", "arguments", "message"),
    [
        *((alps.linear_periodic, (period,), "positive, finite period") for period in (-3.0, "x", [3.0], 1j)),
        (alps.linear, (0.0, -1.0), "positive, finite scale"),
        (alps.on_column, (kernels.Exp(), "x"), "column's number"),
    ],
)
def test_bad_parameters(covariance, arguments, message):
    with pytest.raises((ValueError, TypeError), match=rf"{covariance.__name__}: .*{message}"):
        covariance(*arguments)


# --- the prior of the latents


def test_gaussian_process_density_is_the_dense_normal():
    x = np.random.default_rng(1).normal(size=(2, 5, 7))
    process = GaussianProcess(COVARIANCES, jnp.asarray(T), jitter=1e-3)
    expected = sum(
        stats.multivariate_normal(cov=with_jitter(reference.gram(covariance, T, T), 1e-3)).logpdf(x[:, j])
        for j, covariance in enumerate(COVARIANCES)
    )
    np.testing.assert_allclose(jax.jit(process.log_prob)(x), expected, rtol=1e-10)


def test_gaussian_process_density_is_finite_for_a_smooth_latent_at_close_inputs():
    t = jnp.linspace(0, 4 * jnp.pi, 100)
    process = GaussianProcess([3.19 * kernels.ExpSquared(scale=1.47)], t)
    assert np.isfinite(jax.jit(process.log_prob)(jnp.sin(t)[None]))


def test_gaussian_process_draws_have_its_covariance(key):
    process = GaussianProcess(COVARIANCES, jnp.asarray(T))
    draws = np.asarray(jax.jit(lambda: process.sample(key, (40_000,)))())
    for j, covariance in enumerate(COVARIANCES):
        K = reference.gram(covariance, T, T)
        second = draws[:, j].T @ draws[:, j] / len(draws)
        scale = np.sqrt(np.outer(np.diag(K), np.diag(K)) + K**2)
        assert (abs(second - K) < 6 * scale / np.sqrt(len(draws)) + 1e-6).all()


def test_no_matrix_is_built_before_it_is_asked_for():
    process = GaussianProcess(COVARIANCES[:1], jnp.arange(300_000.0))
    assert process.event_shape == process.variance.shape == (1, 300_000)


# --- the guide's process


@pytest.fixture(scope="module")
def sparse():
    rng = np.random.default_rng(2)
    z = np.array([0.3, 1.2, 2.2, 3.6])
    loc = rng.normal(size=(5, 4))
    tril = np.tril(rng.normal(size=(5, 4, 4)))
    tril[:, range(4), range(4)] = np.abs(tril[:, range(4), range(4)]) + 0.1
    return SparseGaussianProcess(COVARIANCES, jnp.asarray(T), jnp.asarray(z), jnp.asarray(loc), jnp.asarray(tril))


def unwhitened(sparse, j):
    """The paper's m^z, S^z and K_zz of one latent, from the whitened ones."""
    z = np.asarray(sparse.inducing_inputs)
    K = with_jitter(reference.gram(COVARIANCES[j], z, z), default_jitter(jnp.float64))
    L = np.linalg.cholesky(K)
    factor = L @ np.asarray(sparse.scale_tril[j])
    return L @ np.asarray(sparse.loc[j]), factor @ factor.T, K


def test_sparse_marginals_are_the_papers(sparse, key):
    """App. B.2's mean and variance; the density is the product of their normals, the draws have them."""

    @jax.jit
    def compiled(sparse, key):
        draws = sparse.sample(key, (40_000,))
        return *sparse.marginals(), draws, sparse.log_prob(draws[0])

    mean, variance, draws, log_prob = (np.asarray(part) for part in compiled(sparse, key))
    for j, covariance in enumerate(COVARIANCES):
        m, S, _ = unwhitened(sparse, j)
        expected = reference.sparse_marginals(covariance, T, sparse.inducing_inputs, m, S, 1e-8)
        # A rank-2 covariance's K_zz, inverted by the reference, has a condition number of 1e8.
        np.testing.assert_allclose([mean[j], variance[j]], expected, atol=1e-6)
    assert (abs(draws.mean(0) - mean) < 6 * np.sqrt(variance) / 200).all()
    assert (abs(draws.var(0) / variance - 1) < 6 * np.sqrt(2) / 200).all()
    assert log_prob == pytest.approx(stats.norm(mean, np.sqrt(variance)).logpdf(draws[0]).sum(), rel=1e-9)


def test_kl_is_the_papers(sparse):
    expected = sum(reference.gaussian_kl(*unwhitened(sparse, j)) for j in range(5))
    kl = kl_divergence(sparse, GaussianProcess(COVARIANCES, sparse.inputs))
    assert float(kl) == pytest.approx(expected, rel=1e-6)


SEVEN = np.arange(7.0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_gradients_are_finite_where_matrices_are_singular(dtype):
    """With regard to all that a process is made of; its eight inducing inputs are more than the times."""
    covariances = [*COVARIANCES, kernels.Matern32(scale=1.0)]
    cases = {
        "equal inducing inputs": (T, np.zeros(8)),
        "one period apart, and on the data": (SEVEN * 1.7, np.arange(8) * 1.7),
        "repeated times, and inducing inputs on them": (SEVEN // 2, np.r_[SEVEN // 2, 3.0]),
        "equal times": (np.ones(7), np.linspace(0, 3, 8)),
    }

    @jax.jit
    @jax.grad
    def gradients(arguments):
        mean, variance = SparseGaussianProcess(*arguments).marginals()
        return (mean + jnp.sqrt(variance)).sum()

    with jax.enable_x64(dtype == jnp.float64):
        loc, tril = np.ones((6, 8)), np.broadcast_to(np.eye(8), (6, 8, 8))
        for name, (t, z) in cases.items():
            arguments = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (tuple(covariances), t, z, loc, tril))
            leaves = gradients(arguments)
            assert abs(leaves[3]).max() > 0.1, name
            for leaf in jax.tree.leaves(leaves):
                assert leaf.dtype == dtype
                assert np.isfinite(leaf).all(), name
