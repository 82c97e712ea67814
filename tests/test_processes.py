"""The processes against dense matrices: densities, features, the sparse marginals and their KL."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from conftest import periodic
from numpyro.distributions.kl import kl_divergence
from scipy import stats
from tinygp import kernels

import alps_ppl as alps
import alps_ppl.features
from alps_ppl.conditionals import statistics
from alps_ppl.covariances import equal_covariance_groups, grams
from alps_ppl.features import features, pivoted_cholesky
from alps_ppl.processes import GaussianProcess, SparseGaussianProcess, default_jitter

COVARIANCES = [
    kernels.ExpSquared(scale=0.8),
    alps.linear_periodic(1.7),
    kernels.Exp(scale=1.1),
    alps.linear_periodic(2.3),
    2.0 * periodic(1.3) + kernels.Matern52(scale=2.0),
]
T = np.sort(np.random.default_rng(0).uniform(0, 4, 7))


def test_grams_are_pair_by_pair_and_in_order():
    expected = np.stack([reference.gram(covariance, T, T[:3]) for covariance in COVARIANCES])
    np.testing.assert_allclose(grams(COVARIANCES, jnp.asarray(T), jnp.asarray(T[:3])), expected, atol=1e-12)


def test_equal_covariances_are_found():
    twice = [alps.linear_periodic(7), alps.linear_periodic(17), alps.linear_periodic(7.0), kernels.Exp(scale=7.0)]
    assert equal_covariance_groups(twice) == [0, 1, 0, 2]


def test_linear_periodic_is_linear_on_the_circle():
    circle = np.stack([np.sin(2 * np.pi * T / 1.7), np.cos(2 * np.pi * T / 1.7)])
    np.testing.assert_allclose(alps.linear_periodic(1.7)(T, T), circle.T @ circle, atol=1e-12)


def test_gaussian_process_density_is_the_dense_normal():
    x = np.random.default_rng(1).normal(size=(2, 5, 7))
    process = GaussianProcess(COVARIANCES, jnp.asarray(T), jitter=1e-3)
    expected = 0.0
    for j, covariance in enumerate(COVARIANCES):
        K = reference.gram(covariance, T, T)
        K += 1e-3 * np.trace(K) / 7 * np.eye(7)
        expected = expected + stats.multivariate_normal(cov=K).logpdf(x[:, j])
    np.testing.assert_allclose(process.log_prob(x), expected, rtol=1e-10)


def test_gaussian_process_draws_have_its_covariance(key):
    draws = np.asarray(GaussianProcess(COVARIANCES, jnp.asarray(T)).sample(key, (40_000,)))
    for j, covariance in enumerate(COVARIANCES):
        K = reference.gram(covariance, T, T)
        second = draws[:, j].T @ draws[:, j] / len(draws)
        scale = np.sqrt(np.outer(np.diag(K), np.diag(K)) + K**2)
        assert (abs(second - K) < 6 * scale / np.sqrt(len(draws)) + 1e-6).all()


def test_no_matrix_is_built_before_it_is_asked_for():
    process = GaussianProcess(COVARIANCES, jnp.arange(3_000_000.0))
    assert process.event_shape == (5, 3_000_000)
    assert process.variance.shape == (5, 3_000_000)


@pytest.fixture
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
    K = reference.gram(COVARIANCES[j], z, z)
    K += default_jitter(jnp.float64) * np.trace(K) / len(z) * np.eye(len(z))
    L = np.linalg.cholesky(K)
    factor = L @ np.asarray(sparse.scale_tril[j])
    return L @ np.asarray(sparse.loc[j]), factor @ factor.T, K


@pytest.mark.parametrize("j", range(5))
def test_sparse_marginals_are_the_papers(sparse, j):
    m, S, _ = unwhitened(sparse, j)
    mean, variance = reference.sparse_marginals(COVARIANCES[j], T, sparse.inducing_inputs, m, S, 1e-8)
    # A rank-2 covariance's K_zz, inverted by the reference, has a condition number of 1e8.
    np.testing.assert_allclose(sparse.mean[j], mean, atol=1e-6)
    np.testing.assert_allclose(sparse.variance[j], variance, atol=1e-6)


def test_kl_is_the_papers(sparse):
    expected = sum(reference.gaussian_kl(*unwhitened(sparse, j)) for j in range(5))
    kl = kl_divergence(sparse, GaussianProcess(COVARIANCES, sparse.inputs))
    assert float(kl) == pytest.approx(expected, rel=1e-6)


def test_kl_is_the_monte_carlo_one(sparse, key):
    """E_q[log q(u) - log p(u)] over whitened inducing variables, within 4 MCSE."""
    import numpyro.distributions as dist

    q = dist.MultivariateNormal(sparse.loc, scale_tril=sparse.scale_tril)
    u = q.sample(key, (20_000,))
    ratio = np.asarray((q.log_prob(u) - dist.Normal().log_prob(u).sum(-1)).sum(-1))
    kl = float(kl_divergence(sparse, GaussianProcess(COVARIANCES, sparse.inputs)))
    assert abs(ratio.mean() - kl) < 4 * ratio.std() / np.sqrt(len(ratio))


def test_sparse_density_is_the_product_of_its_marginals(sparse):
    x = np.random.default_rng(3).normal(size=(5, 7))
    expected = stats.norm(sparse.mean, np.sqrt(sparse.variance)).logpdf(x).sum()
    assert float(sparse.log_prob(x)) == pytest.approx(expected, rel=1e-12)


def test_sparse_draws(sparse, key):
    draws = np.asarray(sparse.sample(key, (40_000,)))
    sd = np.sqrt(np.asarray(sparse.variance))
    assert (abs(draws.mean(0) - sparse.mean) < 6 * sd / 200).all()
    assert (abs(draws.var(0) / sd**2 - 1) < 6 * np.sqrt(2) / 200).all()


@pytest.mark.parametrize(
    ("z", "t"),
    [
        (np.zeros(4), T),  # inducing inputs that are equal
        (np.arange(4) * 1.7, np.arange(4) * 1.7),  # one period apart, and on the data
        # More of them than times, which are equal.
        pytest.param(np.linspace(0, 3, 12), np.array([1.0, 1.0, 1.0]), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_gradients_are_finite_where_matrices_are_singular(z, t, dtype):
    covariances = [*COVARIANCES, kernels.Matern32(scale=1.0)]
    loc, tril = jnp.ones((6, len(z)), dtype), jnp.broadcast_to(jnp.eye(len(z), dtype=dtype), (6, len(z), len(z)))

    def total(z, loc, tril):
        mean, variance = SparseGaussianProcess(covariances, jnp.asarray(t, dtype), z, loc, tril).marginals()
        return (mean + jnp.sqrt(variance)).sum()

    with jax.enable_x64(dtype == jnp.float64):
        for leaf in jax.grad(total, (0, 1, 2))(jnp.asarray(z, dtype), loc, tril):
            assert leaf.dtype == dtype
            assert np.isfinite(leaf).all()


@pytest.mark.parametrize("j", range(5))
def test_features_factor_the_gram_matrix(j):
    phi, pivots = pivoted_cholesky(COVARIANCES[j], jnp.asarray(T), max_rank=7, tolerance=1e-12)
    np.testing.assert_allclose(phi @ phi.T, reference.gram(COVARIANCES[j], T, T), atol=1e-9)
    assert np.allclose(np.triu(phi[pivots], 1), 0)
    if j in (1, 3):
        assert phi.shape[1] == 2


@pytest.mark.parametrize("block", [20, 7, 5])
def test_pivots_from_blocks_of_inputs(block, monkeypatch):
    """Candidates are few at first: what they leave over joins them until every input is within the tolerance."""
    monkeypatch.setattr(alps_ppl.features, "BLOCK", block)
    t = jnp.asarray(np.concatenate([np.linspace(0, 3, 30), [10.0, 10.1, 10.2]]))
    for covariance in (alps.linear_periodic(7.0), kernels.ExpSquared(scale=2.0), kernels.DotProduct()):
        phi = features([covariance], t, names="a", tolerance=1e-9)
        np.testing.assert_allclose(phi.phi() @ phi.phi().T, reference.gram(covariance, t, t), atol=1e-7)
        y = np.where(np.arange(33) % 4 == 0, np.nan, np.sin(np.asarray(t)))[:, None]
        stats, observed = statistics(phi, jnp.asarray(y)), ~np.isnan(y[:, 0])
        np.testing.assert_allclose(stats.gram[0], phi.phi()[observed].T @ phi.phi()[observed], atol=1e-9)
        np.testing.assert_allclose(stats.projection[0], phi.phi()[observed].T @ y[observed, 0], atol=1e-9)


def test_pivots_end_where_round_off_is_left(monkeypatch):
    monkeypatch.setattr(alps_ppl.features, "BLOCK", 64)
    t = jnp.asarray(np.sort(np.random.default_rng(0).uniform(0, 100, 200)))
    phi = features([kernels.ExpSquared(scale=40.0)], t, names="a", tolerance=1e-15)
    np.testing.assert_allclose(phi.phi() @ phi.phi().T, kernels.ExpSquared(scale=40.0)(t, t), atol=1e-6)


def test_features_extend_to_new_inputs():
    phi = features(COVARIANCES, jnp.asarray(T), names="abcde", tolerance=1e-12)
    new = np.array([0.5, T[2], 9.0])
    star, _, residual, _ = phi.extend(jnp.asarray(new))
    for j, covariance in enumerate(COVARIANCES):
        own = phi.owner == j
        star_j = np.asarray(star)[:, own]
        np.testing.assert_allclose(star_j @ phi.phi()[:, own].T, reference.gram(covariance, new, T), atol=1e-6)
        total = (star_j**2).sum(1) + np.asarray(residual[j])
        np.testing.assert_allclose(total, np.diag(reference.gram(covariance, new, new)), atol=1e-6)
    assert abs(np.asarray(residual)[:, 1]).max() < 1e-9


def test_weights_from_latents_and_back():
    phi = features(COVARIANCES, jnp.asarray(T), names="abcde", tolerance=1e-12)
    w = np.random.default_rng(4).normal(size=(3, phi.num_features))
    x = np.stack([(phi.phi() * (phi.owner == j)) @ w.T for j in range(5)]).transpose(2, 0, 1)
    np.testing.assert_allclose(phi.weights(jnp.asarray(x)), w, atol=1e-6)


def test_duplicated_inputs_and_a_zero_column():
    phi, _ = pivoted_cholesky(kernels.Matern32(scale=1.0), jnp.ones(4), max_rank=4, tolerance=1e-10)
    np.testing.assert_allclose(phi, np.ones((4, 1)))
    t = jnp.linspace(0, 4 * jnp.pi, 100)
    smooth = 3.19 * kernels.ExpSquared(scale=1.47)
    phi, _ = pivoted_cholesky(smooth, t, max_rank=100, tolerance=1e-10)
    np.testing.assert_allclose(phi @ phi.T, smooth(t, t), atol=1e-8)
    with pytest.raises(ValueError, match=r"latent 'wrong': expected its covariance to have finite variances"):
        pivoted_cholesky(kernels.ExpSquared(scale=np.nan) * -1.0, t, max_rank=5, tolerance=1e-10, name="wrong")
    nothing, _ = pivoted_cholesky(kernels.DotProduct(), jnp.zeros(5), max_rank=5, tolerance=1e-10)
    assert nothing.shape == (5, 0)
