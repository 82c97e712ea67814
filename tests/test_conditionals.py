"""Every Gibbs conditional against the program: for any two values u, v of its block,
log_joint(u) - log_joint(v) = conditional.log_prob(u) - conditional.log_prob(v). Wrong ones must fail.
"""

import functools
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from mistakes import MISTAKES, put_in
from numpyro.infer.util import log_density
from problems import rough_data, rough_model
from scipy.stats import multivariate_normal
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs.features import Features, latent_features
from alps_ppl.gibbs.gaussians import PrecisionNormal
from alps_ppl.gibbs.products import moments
from alps_ppl.gibbs.statistics import Statistics, statistics
from alps_ppl.model.alps import ALPS


def features_and_statistics(model, t, y):
    inputs, values = model.check(t, y)
    features = latent_features(model.covariances, inputs, names=model.latents)
    return features, statistics(features, values)


class Point(NamedTuple):
    """Where a chain is in ``problems.rough_model``, and all that the conditionals need of it."""

    model: ALPS
    features: Features
    stats: Statistics
    weights: jax.Array
    H: jax.Array
    b: jax.Array
    noise: jax.Array

    def log_joint(self, **changed):
        """log_density of the program itself, x = Phi w."""
        weights = jnp.asarray(changed.pop("weights", self.weights))
        sites = {"H": self.H, "b": self.b, "noise_variance": self.noise} | changed
        return float(_log_joint()(sites | {"x": self.features.latents(weights, self.features.phi())}))


@functools.cache
def _log_joint():
    model, data = rough_model(), rough_data()
    return jax.jit(lambda sites: log_density(model, data, {}, sites)[0])


@functools.cache
def point(H_scale=1.0):
    """A small H leaves the gates undecided: where one is surely off, a wrong formula may be right too."""
    model, rng = rough_model(), np.random.default_rng(5)
    features, stats = features_and_statistics(model, *rough_data())
    weights = jnp.asarray(rng.normal(size=features.num_features))
    H = H_scale * jnp.asarray(rng.normal(size=(2, 3)))
    return Point(model, features, stats, weights, H, jnp.array([1.0, 0.0, 1.0]), jnp.array([0.2, 0.5]))


def block_of(name, point):
    """The conditional, and the sites that a value of its block sets."""
    model, _, stats, weights, H, b, noise = point
    products = moments(stats, weights, 3)
    logits, s = jnp.asarray(model.inclusion_logits), jnp.asarray(model.mixing_variance)
    if name == "weights":
        return c.weights_conditional(stats, H, b, noise), lambda value: {"weights": value}
    if name == "H":
        return c.mixing_conditional(products, b, noise, s), lambda value: {"H": value}
    if name == "noise":
        squares = c.residual_sum_squares(stats, products, H, b)
        return c.noise_conditional(stats, squares, model.noise_variance), lambda value: {"noise_variance": value}
    kind, j = name.split("-")
    j = int(j)
    if kind == "gate_and_latent":
        own = np.append(np.flatnonzero(stats.owner == j), [len(stats.owner)] * 2)  # two of padding
        likelihood = c.weights_likelihood(stats, H, noise)
        block = c.gate_and_latent_conditional(likelihood, weights * b[stats.owner], logits, j, own)
        return block, lambda value: {
            "b": b.at[j].set(value[0]),
            "weights": weights.at[own].set(value[1:], mode="drop"),
        }
    if kind == "gate":
        return c.gate_conditional(products, H, b, noise, logits, j), lambda value: {"b": b.at[j].set(value)}
    block = c.gate_and_column_conditional(products, H, b, noise, s, logits, j)
    return block, lambda value: {"b": b.at[j].set(value[0]), "H": H.at[:, j].set(value[1:])}


def violation(name, point, num_pairs=6):
    """The largest violation of the identity over pairs of draws (of gates: both values)."""
    block, sites = block_of(name, point)
    draws = block.sample(jax.random.key(1), (num_pairs,))
    if isinstance(block, (dist.BernoulliLogits, dist.BernoulliProbs)):
        draws = jnp.array([0, 1])
    if isinstance(block, c.GateAndBlock):
        draws = draws.at[:, 0].set(jnp.arange(num_pairs) % 2)
    if isinstance(block, c.GateAndBlock) and isinstance(block.on, PrecisionNormal):
        draws = draws.at[:, -2:].set(0.0)  # the padding
    values = [(point.log_joint(**{"H": point.H} | sites(u)), float(block.log_prob(u).sum())) for u in draws]
    return max(abs((a[0] - b[0]) - (a[1] - b[1])) for a, b in pairwise(values))


GATES = [f"{kind}-{j}" for kind in ("gate", "gate_and_column", "gate_and_latent") for j in range(3)]


@pytest.mark.parametrize("name", ["weights", "H", "noise", *GATES])
def test_a_conditional_is_the_programs(name):
    assert violation(name, point()) < 1e-9


def violation_with(mistake):
    """Of the identity, with the mistake put in."""
    with put_in(mistake):
        return violation(mistake.block, point(0.1))


@pytest.mark.parametrize("mistake", [name for name, mistake in MISTAKES.items() if mistake.block])
def test_a_wrong_conditional_fails(mistake):
    assert violation(MISTAKES[mistake].block, point(0.1)) < 1e-9
    assert violation_with(MISTAKES[mistake]) > 1e-3


@pytest.mark.parametrize("j", range(3))
def test_shared_scale_is_the_programs(j):
    """log_joint at (c H_:j, w_j / c) plus the log volume (p - r_j) log c, by differences."""
    here = point()
    block = c.scale_conditional(here.stats, here.H, here.weights, jnp.asarray(here.model.mixing_variance))
    rank = int((here.features.owner == j).sum())

    def target(u):
        moved = jnp.where(here.stats.owner == j, here.weights * np.exp(-u), here.weights)
        return here.log_joint(H=here.H.at[:, j].multiply(np.exp(u)), weights=moved) + (2 - rank) * u

    for u, v in ((0.0, 0.3), (0.3, -0.7), (-0.7, 1.1)):
        density = [float(block.log_density(jnp.full(3, value))[j]) for value in (u, v)]
        assert abs((target(u) - target(v)) - (density[0] - density[1])) < 1e-9
    mode = block.laplace()
    gradient = jax.jacobian(block.log_density)(mode.loc)[j, j]
    curvature = jax.hessian(lambda u: block.log_density(u)[j])(mode.loc)[j, j]
    assert abs(gradient) < 1e-9
    assert float(curvature) == pytest.approx(-(float(mode.scale[j]) ** -2))


def test_column_integrated_out_is_the_dense_ratio():
    """The gate's odds with its column integrated out, from the normal density of the residuals."""
    here, (_, y) = point(), rough_data()
    noise, s = np.asarray(here.noise), here.model.mixing_variance
    x = np.asarray(here.features.latents(here.weights, here.features.phi()))
    log_odds = here.model.inclusion_logits[1]
    others = np.array(here.H * here.b)
    others[:, 1] = 0
    for i in range(2):
        seen = ~np.isnan(y[:, i])
        residual = y[seen, i] - (others[i] @ x)[seen]
        off = noise[i] * np.eye(seen.sum())
        on = off + s[i, 1] * np.outer(x[1, seen], x[1, seen])
        log_odds += multivariate_normal(cov=on).logpdf(residual) - multivariate_normal(cov=off).logpdf(residual)
    block, _ = block_of("gate_and_column-1", here)
    assert float(block.logits) == pytest.approx(log_odds, abs=1e-9)


@pytest.mark.parametrize("case", ["lmm_full", "lmm_missing"])
def test_linear_mixing_model_oracle(case, oracle):
    """Log p(Y | H), and the latents' and outputs' posterior, of three other programs; missing cells too."""
    o = oracle("lmm")[case]
    y = np.array(o["Y"], float).T
    model = alps.ALPS(
        {"rbf": kernels.ExpSquared(scale=0.9), "periodic": kernels.ExpSineSquared(scale=2.0, gamma=2.0)},
        3,
        noise_variance=o["noise_var"],
    )
    phi, stats = features_and_statistics(model, o["t"], y)
    H, b, noise = jnp.array(o["H"]), jnp.ones(2), jnp.array(o["noise_var"])
    assert float(c.log_evidence(stats, H, b, noise)) == pytest.approx(o["logpdf"], abs=1e-6)
    dense = reference.log_evidence(model.covariances, H, b, noise, o["t"], y)
    assert dense == pytest.approx(o["logpdf"], abs=1e-6)

    w = c.weights_conditional(stats, H, b, noise)
    covariance = np.linalg.inv(np.asarray(w.precision_tril @ w.precision_tril.T))
    spread = np.eye(2)[phi.owner]
    x_mean = (phi.phi()[:, :, None] * spread * np.asarray(w.mean)[:, None]).sum(1).T
    np.testing.assert_allclose(x_mean, o["x_mean_at_t"], atol=1e-6)

    star, _, residual, _ = phi.extend(jnp.array(o["t_star"]))
    for i in range(3):
        loading = np.asarray(H)[i][phi.owner] * np.asarray(star)
        np.testing.assert_allclose(loading @ w.mean, o["f_mean"][i], atol=1e-6)
        variance = np.einsum("tr,rs,ts->t", loading, covariance, loading) + np.asarray(H)[i] ** 2 @ np.asarray(residual)
        np.testing.assert_allclose(variance, o["f_var"][i], atol=1e-6)


SKLEARN_CASES = {
    "rbf ls=2": kernels.ExpSquared(scale=2.0),
    "matern12 ls=2": kernels.Exp(scale=2.0),
    "matern32 ls=2": kernels.Matern32(scale=2.0),
    "matern52 ls=2": kernels.Matern52(scale=2.0),
    "periodic ls=1 period=7: exp(-2 sin^2(pi d/7)/1^2)": kernels.ExpSineSquared(scale=7.0, gamma=2.0),
    "rq ls=2 alpha=1.5": kernels.RationalQuadratic(scale=2.0, alpha=1.5),
    "linear: 1 + x x'": kernels.Constant(1.0) + kernels.DotProduct(),
    "rbf(20)*periodic(1,7)": kernels.ExpSquared(scale=20.0) * kernels.ExpSineSquared(scale=7.0, gamma=2.0),
}


@pytest.mark.parametrize("name", SKLEARN_CASES)
def test_gaussian_process_oracle(name, oracle):
    """One latent, H = 1: scikit-learn's evidence and prediction for eight covariances."""
    o = oracle("misc")["gp_sklearn"]
    case = next(k for k in o["kernels"] if k["kernel"] == name)
    model = alps.ALPS({"x": SKLEARN_CASES[name]}, noise_variance=o["noise_var"])
    phi, stats = features_and_statistics(model, o["x"], o["y"])
    one, noise = jnp.ones((1, 1)), jnp.array([o["noise_var"]])
    assert float(c.log_evidence(stats, one, one[0], noise)) == pytest.approx(case["log_marginal_likelihood"], abs=1e-6)
    w = c.weights_conditional(stats, one, one[0], noise)
    star, _, residual, _ = phi.extend(jnp.array(o["x_star"]))
    covariance = np.linalg.inv(np.asarray(w.precision_tril @ w.precision_tril.T))
    np.testing.assert_allclose(star @ w.mean, case["f_mean"], atol=1e-6)
    variance = np.einsum("tr,rs,ts->t", star, covariance, star) + residual[0]
    np.testing.assert_allclose(variance, case["f_var"], atol=1e-6)


def test_precision_normal_is_the_multivariate_normal(key):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(2, 4, 6))
    P, a = A @ A.mT + np.eye(4), rng.normal(size=(2, 4))
    block = PrecisionNormal(jnp.asarray(a), jnp.asarray(P))
    plain = dist.MultivariateNormal(np.linalg.solve(P, a[..., None])[..., 0], precision_matrix=P)
    value = rng.normal(size=(2, 4))
    np.testing.assert_allclose(block.log_prob(value), plain.log_prob(value), atol=1e-10)
    draws = np.asarray(jax.jit(lambda key: block.sample(key, (40_000,)))(key))
    standard = np.einsum("bji,sbj->sbi", np.asarray(block.precision_tril), draws - np.asarray(block.mean))
    second = np.einsum("sbi,sbk->bik", standard, standard) / len(draws)
    # Entries of the mean and the second moment have sd 1/sqrt(n) and at most sqrt(2/n).
    assert abs(standard.mean(0)).max() < 6 / np.sqrt(len(draws))
    assert abs(second - np.eye(4)).max() < 6 * np.sqrt(2 / len(draws))
