"""SVI of private memories: the point of the grid summed out, paths of the latents, the bound and the predictions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from scipy import stats
from scipy.special import logsumexp
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.model.memory import OutputNoise, PrivateMemory, UnknownMemoryNoise
from alps_ppl.model.processes import SparseGaussianProcess
from alps_ppl.svi.optimisation import white_at_first

GRID = PrivateMemory(np.array([0.0, 0.8, 0.95]), np.array([1.0, 0.7, 3.0]), np.log([0.5, 0.3, 0.2]))
T = np.array([3.0, 0.5, 0.9, 2.0, 2.3, 7.0, 4.4, 5.2, 6.1])
Y = np.random.default_rng(0).normal(size=(9, 2))
Y[1, 0] = Y[[2, 4], 1] = np.nan


def covariance(point, s2, t1=T, t2=T):
    return s2 * reference.own_covariance(GRID.share[point], GRID.lengthscale[point], t1, t2)


def test_the_density_sums_over_all_points():
    """Over every combination of the outputs' points."""
    f, s2 = np.random.default_rng(1).normal(size=Y.shape), np.array([0.4, 1.7])
    found = UnknownMemoryNoise(jnp.asarray(f), jnp.asarray(s2), GRID, jnp.asarray(T), jnp.asarray(Y))
    logs = []
    for points in itertools.product(range(3), repeat=2):
        here = GRID.at(np.array(points))
        one = OutputNoise(jnp.asarray(f), jnp.asarray(s2), here, jnp.asarray(T), jnp.asarray(Y))
        logs.append(float(one.log_prob(np.nan_to_num(Y)) + here.log_prior.sum()))
    np.testing.assert_allclose(found.log_prob(np.nan_to_num(Y)), logsumexp(logs), rtol=1e-10)


def test_its_draws_have_the_mixtures_covariance():
    draws = UnknownMemoryNoise(jnp.zeros(Y.shape), jnp.array([0.5, 2.0]), GRID, jnp.asarray(T))
    draws = np.asarray(draws.sample(jax.random.key(0), (40_000,)))
    for i, s2 in enumerate((0.5, 2.0)):
        expected = sum(w * covariance(g, s2) for g, w in enumerate(np.exp(GRID.log_prior)))
        # Of a mixture of normals of one variance: an entry's sd is at most sqrt(3 - 1) of the variance.
        np.testing.assert_allclose(np.cov(draws[..., i].T), expected, atol=5 * np.sqrt(2 / 40_000) * s2)


def test_paths_of_the_latents():
    """A S A^T between the times, and the residual's variance at each; the mean is that of the marginals."""
    rng = np.random.default_rng(2)
    z, loc, tril = np.linspace(0, 7, 4), rng.normal(size=(2, 4)), np.tril(rng.normal(size=(2, 4, 4)))
    arguments = (kernels.Exp(scale=2.0), alps.linear_periodic(5.0)), *map(jnp.asarray, (T, z, loc, tril))
    q = SparseGaussianProcess(*arguments, paths=True)
    draws = np.asarray(q.sample(jax.random.key(1), (40_000,)))
    mean, variance = SparseGaussianProcess(*arguments).marginals()
    A_T, residual = q.given_inducing()
    for j in range(2):
        explained = A_T[j].T @ tril[j] @ tril[j].T @ A_T[j]
        expected = explained + np.diag(residual[j])
        np.testing.assert_allclose(np.diag(expected), variance[j], rtol=1e-10)
        np.testing.assert_allclose(draws[:, j].mean(0), mean[j], atol=5 * np.sqrt(variance[j].max() / 40_000))
        np.testing.assert_allclose(np.cov(draws[:, j].T), expected, atol=5 * np.sqrt(2 / 40_000) * variance[j].max())


def small_model(**settings):
    return alps.ALPS(
        {"a": alps.linear_periodic(4.0)}, 1, private_memory=GRID, noise_variance=settings.pop("noise", 0.5), **settings
    )


def log_evidence(model, y):
    """Of one output: the gate and the point enumerated, the loading by quadrature."""
    seen = ~np.isnan(y[:, 0])
    K, cells = reference.gram(model.covariances[0], T, T), y[seen, 0]
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    logs = []
    for g in range(3):
        noise = covariance(g, 0.5)
        off = np.log(0.5) + stats.multivariate_normal(cov=noise[np.ix_(seen, seen)]).logpdf(cells)
        on = [stats.multivariate_normal(cov=(h**2 * K + noise)[np.ix_(seen, seen)]).logpdf(cells) for h in nodes]
        logs += [GRID.log_prior[g] + v for v in (off, np.log(0.5) + logsumexp(on, b=weights / weights.sum()))]
    return logsumexp(logs)


def test_the_bound_is_below_the_evidence_and_near(key):
    y = Y[:, :1]
    model = small_model(inclusion_prob=0.5)
    fit = alps.fit_svi(model, T, y, num_inducing=6, num_steps=3_000, rng_key=key, progress_bar=False)
    gap = log_evidence(model, y) - fit.elbo
    # A mean field over one loading, one process and one gate misses little here.
    assert -5 * fit.elbo_mcse < gap < 1.0 + 5 * fit.elbo_mcse


@pytest.mark.parametrize("learns_noise", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_a_process_predictions_are_the_memorys(key, learns_noise):
    """The dense posterior of the memory, over the grid, at new times and at observed ones."""
    new = np.array([0.9, 2.1, 6.5, 8.0, 40.0])
    noise = dist.InverseGamma(400.0, 200.0) if learns_noise else 0.5  # nearly fixed, so that one oracle does for both
    model = small_model(noise=noise, inclusion_prob=0.0)
    steps = 2_000 if learns_noise else 50
    fit = alps.fit_svi(model, T, Y[:, :1], num_inducing=3, num_steps=steps, rng_key=key, progress_bar=False)
    found = alps.predict(fit, new)
    seen = ~np.isnan(Y[:, 0])
    t, y = T[seen], Y[seen, 0]
    logs, means, variances = [], [], []
    for g in range(3):
        C = covariance(g, 0.5, t, t)
        cross = covariance(g, 0.5, new, t)
        logs.append(GRID.log_prior[g] + stats.multivariate_normal(cov=C).logpdf(y))
        means.append(cross @ np.linalg.solve(C, y))
        variances.append(0.5 - np.einsum("nt,tn->n", cross, np.linalg.solve(C, cross.T)))
    probs = np.exp(logs - logsumexp(logs))
    mean = probs @ np.array(means)
    second = probs @ (np.array(variances) + np.array(means) ** 2)
    # 1,000 draws of the point; learnt noise has a relative sd of 5 %.
    spread = np.sqrt(probs @ (np.array(means) - mean) ** 2)
    slack = 5 * spread / np.sqrt(1000) + (0.03 if learns_noise else 1e-3)
    assert (np.abs(found["mean"].values[:, 0] - mean) < slack).all()
    np.testing.assert_allclose(found["sd"].values[:, 0], np.sqrt(second - mean**2), rtol=0.1 if learns_noise else 0.05)
    point = np.asarray(fit.samples["memory"])[0, :, 0]
    frequency = np.bincount(point, minlength=3) / len(point)
    assert (np.abs(frequency - probs) < 5 * np.sqrt(probs * (1 - probs) / 1000) + 0.05 * learns_noise).all()


@pytest.mark.slow
def test_the_engines_agree_where_the_process_is_resolved(key):
    """Gates, memories and a forecast, on a table of a cycle and memories of the outputs' own."""
    rng = np.random.default_rng(5)
    t = np.arange(120.0)
    own = np.zeros((120, 2))
    for n in range(1, 120):
        own[n] = 0.85 * own[n - 1] + 0.5 * rng.normal(size=2)
    y = np.sin(2 * np.pi * t / 12)[:, None] * [1.0, 0.7] + own + 0.2 * rng.normal(size=(120, 2))
    processes = {"cycle": alps.linear_periodic(12.0), "decoy": alps.linear_periodic(17.0)}
    model = alps.ALPS(
        processes,
        2,
        copies={"cycle": 2, "decoy": 2},
        private_memory=alps.private_memory(t[:110]),
        noise_variance=dist.InverseGamma(1.0, 0.2),
    )
    svi = alps.fit_svi(model, t[:110], y[:110], num_steps=4_000, rng_key=key, progress_bar=False)
    lengths = {"num_warmup": 200, "num_samples": 500, "num_chains": 2, "progress_bar": False}
    gibbs = alps.fit_gibbs(model, t[:110], y[:110], rng_key=key, **lengths)
    np.testing.assert_allclose(svi.inclusion_prob, gibbs.inclusion_prob, atol=0.1)
    ahead = [alps.predict(fit, t[110:]) for fit in (svi, gibbs)]
    assert np.abs(ahead[0]["mean"].values - ahead[1]["mean"].values).max() < 0.3 * ahead[1]["sd"].values.max()
    np.testing.assert_allclose(ahead[0]["sd"].values, ahead[1]["sd"].values, rtol=0.25)
    shares = [np.asarray(model.private_memory.at(fit.samples["memory"]).share).mean((0, 1)) for fit in (svi, gibbs)]
    np.testing.assert_allclose(*shares, atol=0.1)
    paths = [np.asarray(fit.samples["own_memory"]).mean((0, 1)) for fit in (svi, gibbs)]
    assert min(np.corrcoef(paths[0][:, i], paths[1][:, i])[0, 1] for i in range(2)) > 0.95


def test_memories_are_white_at_first():
    model = small_model()
    held, free = (white_at_first(model, jnp.array(first)).private_memory.log_prior for first in (True, False))
    assert held[0] == GRID.log_prior[0]
    assert (held[1:] < -1e5).all()
    np.testing.assert_allclose(free, GRID.log_prior)


def test_a_minibatch_is_refused(key):
    with pytest.raises(ValueError, match=r"batch_size: with a private memory times aren't independent; leave it out"):
        alps.fit_svi(small_model(), T, Y[:, :1], rng_key=key, batch_size=4)


@pytest.mark.slow
def test_a_kept_fit_is_the_same(key, tmp_path):
    """Its points and predictions after a file; and the sampler starts from it."""
    model = small_model()
    fit = alps.fit_svi(model, T, Y[:, :1], num_inducing=4, num_steps=50, rng_key=key, progress_bar=False)
    alps.save(fit, tmp_path / "fit.nc")
    again = alps.load(tmp_path / "fit.nc")
    for name in ("memory", "own_memory", "x"):
        np.testing.assert_array_equal(again.samples[name], fit.samples[name])
    start = alps.init_from_svi(fit, key, num_chains=2)
    assert start["memory"].shape == (2, 1)
    lengths = {"num_warmup": 5, "num_samples": 5, "num_chains": 2, "progress_bar": False}
    alps.fit_gibbs(model, T, Y[:, :1], rng_key=key, init_params=start, **lengths)
