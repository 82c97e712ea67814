"""The latents' features against dense Gram matrices: at the inputs, at new ones, and where a matrix is singular."""

import jax.numpy as jnp
import numpy as np
import pytest
import reference
from test_processes import COVARIANCES, T
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import pivots
from alps_ppl.gibbs.features import latent_features
from alps_ppl.gibbs.pivots import pivoted_cholesky
from alps_ppl.gibbs.statistics import statistics


@pytest.fixture(scope="module")
def phi():
    return latent_features(COVARIANCES, jnp.asarray(T), names="abcde", tolerance=1e-12)


def test_features_factor_the_gram_matrix():
    for j, covariance in enumerate(COVARIANCES):
        phi, pivots = pivoted_cholesky(covariance, jnp.asarray(T), max_rank=7, tolerance=1e-12)
        np.testing.assert_allclose(phi @ phi.T, reference.gram(covariance, T, T), atol=1e-9)
        assert np.allclose(np.triu(phi[pivots], 1), 0)
        assert phi.shape[1] == (2 if j in (1, 3) else 7)


def test_pivots_from_a_few_rows_at_a_time(monkeypatch):
    """Nine candidates at first: what they leave over joins them until every input is within the tolerance."""
    monkeypatch.setattr(pivots, "ROWS_AT_A_TIME", 9)
    t = jnp.asarray(np.concatenate([np.linspace(0, 3, 30), [10.0, 10.1, 10.2]]))
    smooth = kernels.ExpSquared(scale=2.0)
    found = latent_features([smooth], t, names="a", tolerance=1e-9)
    phi = found.phi()
    np.testing.assert_allclose(phi @ phi.T, smooth(t, t), atol=1e-7)
    y = np.where(np.arange(33) % 4 == 0, np.nan, np.sin(np.asarray(t)))[:, None]
    stats, observed = statistics(found, jnp.asarray(y)), ~np.isnan(y[:, 0])
    np.testing.assert_allclose(stats.gram[0], phi[observed].T @ phi[observed], atol=1e-9)
    np.testing.assert_allclose(stats.projection[0], phi[observed].T @ y[observed, 0], atol=1e-9)


def test_pivots_end_where_round_off_is_left(monkeypatch):
    monkeypatch.setattr(pivots, "ROWS_AT_A_TIME", 64)
    t = jnp.asarray(np.sort(np.random.default_rng(0).uniform(0, 100, 200)))
    phi = latent_features([kernels.ExpSquared(scale=40.0)], t, names="a", tolerance=1e-15).phi()
    np.testing.assert_allclose(phi @ phi.T, kernels.ExpSquared(scale=40.0)(t, t), atol=1e-6)


def test_features_extend_to_new_inputs(phi):
    new = np.array([0.5, T[2], 9.0])
    star, _, residual, _ = phi.extend(jnp.asarray(new))
    for j, covariance in enumerate(COVARIANCES):
        own = phi.owner == j
        star_j = np.asarray(star)[:, own]
        np.testing.assert_allclose(star_j @ phi.phi()[:, own].T, reference.gram(covariance, new, T), atol=1e-6)
        total = (star_j**2).sum(1) + np.asarray(residual[j])
        np.testing.assert_allclose(total, np.diag(reference.gram(covariance, new, new)), atol=1e-6)
    assert abs(np.asarray(residual)[:, 1]).max() < 1e-9


def test_weights_from_latents_and_back(phi):
    w = np.random.default_rng(4).normal(size=(3, phi.num_features))
    x = np.stack([(phi.phi() * (phi.owner == j)) @ w.T for j in range(5)]).transpose(2, 0, 1)
    np.testing.assert_allclose(phi.weights(jnp.asarray(x)), w, atol=1e-6)


def test_where_a_gram_matrix_is_singular():
    """Equal inputs, a smooth covariance on close ones, times in unix seconds, and a covariance that is zero."""
    t = jnp.linspace(0, 4 * jnp.pi, 100)
    phi, _ = pivoted_cholesky(kernels.Matern32(scale=1.0), jnp.ones(4), max_rank=4, tolerance=1e-10)
    np.testing.assert_allclose(phi, np.ones((4, 1)))
    smooth = 3.19 * kernels.ExpSquared(scale=1.47)
    phi, _ = pivoted_cholesky(smooth, t, max_rank=100, tolerance=1e-10)
    np.testing.assert_allclose(phi @ phi.T, smooth(t, t), atol=1e-8)
    phi, _ = pivoted_cholesky(alps.linear_periodic(7.0), 1.6e9 + jnp.arange(40.0), max_rank=40, tolerance=1e-10)
    assert phi.shape == (40, 2)
    nothing, _ = pivoted_cholesky(kernels.DotProduct(), jnp.zeros(5), max_rank=5, tolerance=1e-10)
    assert nothing.shape == (5, 0)


def test_a_covariance_without_finite_variances_is_an_error():
    with pytest.raises(ValueError, match=r"latent 'wrong': .*finite variances"):
        pivoted_cholesky(kernels.Exp(scale=np.nan), jnp.ones(3), max_rank=5, tolerance=1e-10, name="wrong")
