"""Every Gibbs block against the program: for any two values u, v of a block,
log_joint(u) - log_joint(v) = block.log_prob(u) - block.log_prob(v). Wrong blocks must fail.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from numpyro.infer.util import log_density
from tinygp import kernels

import alps_ppl as alps
from alps_ppl import conditionals as c
from alps_ppl.features import features


@pytest.fixture
def point(rough_model, rough_data):
    """A state, and all that the blocks need of it."""
    t, y = rough_data
    inputs, values = rough_model.check(t, y)
    phi = features(rough_model.covariances, inputs, names=rough_model.latents)
    stats = c.statistics(phi, values)
    rng = np.random.default_rng(5)
    weights = jnp.asarray(rng.normal(size=phi.num_features))
    z = {
        "H": jnp.asarray(rng.normal(size=(2, 3))),
        "b": jnp.array([1.0, 0.0, 1.0]),
        "noise_variance": jnp.array([0.2, 0.5]),
    }
    return phi, stats, weights, z


@pytest.fixture
def log_joint(rough_model, rough_data, point):
    """log_density of the program itself, x = Phi w."""
    phi, _, weights, z = point

    def evaluate(**changed):
        w = np.asarray(changed.pop("weights", weights))
        x = jnp.stack([phi.phi()[:, phi.owner == j] @ w[phi.owner == j] for j in range(3)])
        return float(log_density(rough_model, rough_data, {}, {**z, "x": x, **changed})[0])

    return evaluate


def block_of(name, rough_model, point):
    """The block as a distribution, and the sites that a value of it sets."""
    _, stats, weights, z = point
    H, b, noise = z["H"], z["b"], z["noise_variance"]
    moments = c.moments(stats, weights, 3)
    logits, s = jnp.asarray(rough_model.inclusion_logits), jnp.asarray(rough_model.mixing_variance)
    if name == "weights":
        return c.weights_conditional(stats, H, b, noise), lambda value: {"weights": value}
    if name == "H":
        return c.mixing_conditional(moments, b, noise, s), lambda value: {"H": value}
    if name == "noise":
        block = c.noise_conditional(stats, moments, H, b, rough_model.noise_variance)
        return block, lambda value: {"noise_variance": value}
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
        return c.gate_conditional(moments, H, b, noise, logits, j), lambda value: {"b": b.at[j].set(value)}
    block = c.gate_and_column_conditional(moments, H, b, noise, s, logits, j)
    return block, lambda value: {"b": b.at[j].set(value[0]), "H": H.at[:, j].set(value[1:])}


GATES = [f"{kind}-{j}" for kind in ("gate", "gate_and_column", "gate_and_latent") for j in range(3)]
BLOCKS = ["weights", "H", "noise", *GATES]


def differences(block, sites, log_joint, num_pairs=6):
    """The largest violation of the identity over pairs of draws (of gates: both values)."""
    draws = block.sample(jax.random.key(1), (num_pairs,))
    if isinstance(block, (dist.BernoulliLogits, dist.BernoulliProbs)):
        draws = jnp.array([0, 1])
    if isinstance(block, c.GateAndBlock):
        draws = draws.at[:, 0].set(jnp.arange(num_pairs) % 2)
    if isinstance(block, c.GateAndBlock) and isinstance(block.on, c.PrecisionNormal):
        draws = draws.at[:, -2:].set(0.0)  # the padding
    values = [(log_joint(**sites(u)), float(block.log_prob(u).sum())) for u in draws]
    return max(abs((a[0] - b[0]) - (a[1] - b[1])) for a, b in pairwise(values))


@pytest.mark.parametrize("name", BLOCKS)
def test_block_is_the_programs_conditional(name, rough_model, point, log_joint):
    block, sites = block_of(name, rough_model, point)
    assert differences(block, sites, log_joint) < 1e-9


@pytest.mark.parametrize("j", range(3))
def test_shared_scale_is_the_programs(j, rough_model, point, log_joint):
    """log_joint at (c H_:j, w_j / c) plus the log volume (p - r_j) log c, by differences."""
    phi, stats, weights, z = point
    block = c.scale_conditional(stats, z["H"], weights, jnp.asarray(rough_model.mixing_variance))
    rank = int((phi.owner == j).sum())

    def target(u):
        moved = jnp.where(stats.owner == j, weights * np.exp(-u), weights)
        return log_joint(H=z["H"].at[:, j].multiply(np.exp(u)), weights=moved) + (2 - rank) * u

    for u, v in ((0.0, 0.3), (0.3, -0.7), (-0.7, 1.1)):
        density = [float(block.log_density(jnp.full(3, value))[j]) for value in (u, v)]
        assert abs((target(u) - target(v)) - (density[0] - density[1])) < 1e-9
    mode = block.laplace()
    gradient = jax.jacobian(block.log_density)(mode.loc)[j, j]
    curvature = jax.hessian(lambda u: block.log_density(u)[j])(mode.loc)[j, j]
    assert abs(gradient) < 1e-9
    assert float(curvature) == pytest.approx(-(float(mode.scale[j]) ** -2))


def broken_blocks(rough_model, point):
    """Mistakes that are easy to make, by name."""
    _, stats, weights, z = point
    H, b, noise = z["H"], z["b"], z["noise_variance"]
    moments = c.moments(stats, weights, 3)
    logits, s = jnp.asarray(rough_model.inclusion_logits), jnp.asarray(rough_model.mixing_variance)
    _, set_weights = block_of("weights", rough_model, point)
    _, set_H = block_of("H", rough_model, point)
    _, set_noise = block_of("noise", rough_model, point)
    # A small column of H leaves the gate undecided: where it is surely off the printed formula is right too.
    small = H * 0.1
    gate = c.gate_conditional(moments, small, b, noise, logits, 1)
    both, set_both = block_of("gate_and_column-1", rough_model, point)
    theta, odds = rough_model.inclusion_prob[1], jnp.exp(gate.logits - logits[1])
    prior = rough_model.noise_variance
    return {
        "the paper's printed gate": (
            dist.Bernoulli(theta * odds / (odds + theta)),
            lambda value: {"b": b.at[1].set(value), "H": small},
        ),
        "s as a standard deviation": (c.mixing_conditional(moments, b, noise, s**2), set_H),
        "gates forgotten in the weights": (c.weights_conditional(stats, H, jnp.ones(3), noise), set_weights),
        "column drawn as if the gate were on": (c.GateAndBlock(both.logits, both.on, both.on), set_both),
        "no half in the noise's shape": (
            dist.InverseGamma(
                prior.concentration + stats.num_observed,
                prior.rate + 0.5 * c.residual_sum_squares(stats, moments, H, b),
            ),
            set_noise,
        ),
        "missing cells counted": (
            c.noise_conditional(stats._replace(num_observed=jnp.full(2, 9.0)), moments, H, b, prior),
            set_noise,
        ),
    }


@pytest.mark.parametrize(
    "mistake",
    [
        "the paper's printed gate",
        "s as a standard deviation",
        "gates forgotten in the weights",
        "column drawn as if the gate were on",
        "no half in the noise's shape",
        "missing cells counted",
    ],
)
def test_a_broken_block_fails(mistake, rough_model, point, log_joint):
    block, sites = broken_blocks(rough_model, point)[mistake]
    assert differences(block, sites, log_joint) > 1e-3


def test_column_integrated_out_is_the_dense_ratio(rough_model, rough_data, point):
    """The gate's odds with its column integrated out, from the normal density of the residuals."""
    phi, _, weights, z = point
    _, y = rough_data
    noise, s = np.asarray(z["noise_variance"]), rough_model.mixing_variance
    x = np.stack([phi.phi()[:, phi.owner == j] @ np.asarray(weights)[phi.owner == j] for j in range(3)])
    from scipy.stats import multivariate_normal

    log_odds = np.log(rough_model.inclusion_prob[1] / (1 - rough_model.inclusion_prob[1]))
    others = np.array(z["H"] * z["b"])
    others[:, 1] = 0
    for i in range(2):
        seen = ~np.isnan(y[:, i])
        residual = y[seen, i] - (others[i] @ x)[seen]
        off = noise[i] * np.eye(seen.sum())
        on = off + s[i, 1] * np.outer(x[1, seen], x[1, seen])
        log_odds += multivariate_normal(cov=on).logpdf(residual) - multivariate_normal(cov=off).logpdf(residual)
    block, _ = block_of("gate_and_column-1", rough_model, point)
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
    inputs, values = model.check(o["t"], y)
    phi = features(model.covariances, inputs, names=model.latents)
    stats = c.statistics(phi, values)
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
    inputs, values = model.check(o["x"], o["y"])
    phi = features(model.covariances, inputs, names=model.latents)
    stats = c.statistics(phi, values)
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
    block = c.PrecisionNormal(jnp.asarray(a), jnp.asarray(P))
    plain = dist.MultivariateNormal(np.linalg.solve(P, a[..., None])[..., 0], precision_matrix=P)
    value = rng.normal(size=(2, 4))
    np.testing.assert_allclose(block.log_prob(value), plain.log_prob(value), atol=1e-10)
    draws = np.asarray(block.sample(key, (40_000,)))
    standard = np.einsum("bji,sbj->sbi", np.asarray(block.precision_tril), draws - np.asarray(block.mean))
    second = np.einsum("sbi,sbk->bik", standard, standard) / len(draws)
    # Entries of the mean and the second moment have sd 1/sqrt(n) and at most sqrt(2/n).
    assert abs(standard.mean(0)).max() < 6 / np.sqrt(len(draws))
    assert abs(second - np.eye(4)).max() < 6 * np.sqrt(2 / len(draws))
