"""Latents with Markov states against the dense joint: the same model, whatever holds its latents."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from numpyro.infer import MCMC
from numpyro.infer.util import log_density
from tinygp import kernels
from tinygp.kernels import quasisep

import alps_ppl as alps
from alps_ppl import conditionals as c
from alps_ppl.features import features
from alps_ppl.prediction import posterior_draws

COVARIANCES = {
    "exp": kernels.Exp(scale=0.7),
    "matern32": kernels.Matern32(scale=1.2),
    "matern52": kernels.Matern52(scale=0.9),
    "scaled": kernels.Constant(0.5) * kernels.Exp(scale=2.0),
    "sum": kernels.Exp(scale=0.3) + 0.7 * kernels.Matern32(scale=2.0),
    "with a periodic": kernels.Matern32(scale=1.0) + alps.linear_periodic(1.7),
    "quasisep": quasisep.Matern52(scale=1.1, sigma=1.0),
}


@pytest.fixture(autouse=True)
def states_for_all(monkeypatch):
    """Every covariance of more than a few features has states, however few the times."""
    monkeypatch.setattr("alps_ppl.features.LOW_RANK", 3)


@pytest.fixture
def times():
    """Twelve unsorted times, two of them twice."""
    t = np.random.default_rng(2).uniform(0, 5, 10)
    return np.concatenate([t, t[3:5]])


@pytest.mark.parametrize("name", COVARIANCES)
def test_states_give_the_covariance(name, times):
    """Weights with unit probability: evidence, posterior mean and variance of f of one latent, by dense algebra."""
    covariance = COVARIANCES[name]
    rng = np.random.default_rng(4)
    y = rng.normal(size=(12, 2))
    y[2, 0] = y[7] = np.nan
    model = alps.ALPS({"x": covariance}, 2, noise_variance=[0.2, 0.5])
    inputs, values = model.check(times, y)
    basis = features(model.covariances, inputs, names=model.latents)
    assert basis.space is not None
    assert basis.num_features == (2 if name == "with a periodic" else 0)
    stats = c.statistics(basis, values)
    H, b, noise = jnp.array([[1.3], [-0.4]]), jnp.ones(1), jnp.asarray(model.noise_variance)
    exact = reference.log_evidence([covariance], H, b, noise, times, y)
    assert float(c.log_evidence(stats, H, b, noise)) == pytest.approx(exact, abs=1e-6)

    new = jnp.array([-1.0, 0.1, 2.0, float(times[3]), 4.9, 7.5])
    w = c.weights_conditional(stats, H, b, noise)
    extension = basis.extend(new)
    mean, variance = reference.condition([covariance], H, b, noise, times, y, new)
    size = w.event_shape[0]
    unit = jax.vmap(lambda z: w.transform(z) - w.transform(jnp.zeros(size)))(jnp.eye(size))
    posterior = unit.T @ unit
    for n in range(len(new)):
        row = np.zeros(size)
        np.add.at(row, extension.places[n], np.asarray(extension.basis[n]))
        x_mean, x_variance = row @ w.mean, row @ posterior @ row + extension.residual[0, n]
        np.testing.assert_allclose(np.asarray(H)[:, 0] * x_mean, mean[n], atol=1e-6)
        np.testing.assert_allclose(np.asarray(H)[:, 0] ** 2 * x_variance, variance[n], atol=1e-6)


def test_evidence_of_several_latents(times):
    """Markov and low-rank latents together, some gates shut."""
    covariances = {
        "rough": COVARIANCES["exp"],
        "wave": alps.linear_periodic(2.0),
        "sum": COVARIANCES["with a periodic"],
    }
    rng = np.random.default_rng(6)
    y = rng.normal(size=(12, 3))
    y[1, 0] = y[5, 2] = np.nan
    model = alps.ALPS(covariances, 3, noise_variance=[0.2, 0.5, 0.3])
    inputs, values = model.check(times, y)
    stats = c.statistics(features(model.covariances, inputs, names=model.latents), values)
    H, noise = jnp.asarray(rng.normal(size=(3, 3))), jnp.asarray(model.noise_variance)
    for b in np.ndindex(2, 2, 2):
        exact = reference.log_evidence(model.covariances, H, b, noise, times, y)
        assert float(c.log_evidence(stats, H, jnp.asarray(b, float), noise)) == pytest.approx(exact, abs=1e-6)


def test_weights_block_is_the_programs_conditional(rough_model, rough_data):
    """log_joint(u) - log_joint(v) = block.log_prob(u) - block.log_prob(v); the latents are their first states here."""
    model = alps.ALPS(
        {"a": kernels.Exp(scale=0.7), "b": kernels.Exp(scale=3.0)},
        2,
        noise_variance=[0.2, 0.5],
        jitter=0.0,
    )
    inputs, values = model.check(*rough_data)
    basis = features(model.covariances, inputs, names=model.latents)
    stats = c.statistics(basis, values)
    rng = np.random.default_rng(5)
    H, b = jnp.asarray(rng.normal(size=(2, 2))), jnp.array([1.0, 0.0])
    block = c.weights_conditional(stats, H, b, jnp.asarray(model.noise_variance))
    draws = block.sample(jax.random.key(1), (5,))
    joint = [
        float(log_density(model, rough_data, {}, {"b": b, "H": H, "x": basis.latents(w, basis.phi())})[0])
        - float(block.log_prob(w))
        for w in draws
    ]
    assert np.ptp(joint) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("blocks", ["collapsed", "all"])
def test_the_same_posterior_as_features(blocks, key, monkeypatch):
    """A whole run, its potential energy and its predictions, with states and with features."""
    t = np.sort(np.random.default_rng(8).uniform(0, 6, 14))
    y = np.stack([np.sin(t), np.cos(2 * t)], 1)
    y[3, 1] = np.nan
    covariances = {
        "rough": kernels.Exp(scale=1.0),
        "smooth": kernels.Matern32(scale=1.5),
        "wave": alps.linear_periodic(3),
    }
    model = alps.ALPS(covariances, 2, noise_variance=dist.InverseGamma(3.0, 0.3))
    results = []
    for low_rank in (3, 64):
        monkeypatch.setattr("alps_ppl.features.LOW_RANK", low_rank)
        kernel = alps.ALPSGibbs(model, blocks=blocks)
        mcmc = MCMC(
            kernel, num_warmup=200, num_samples=4_000, num_chains=4, chain_method="vectorized", progress_bar=False
        )
        mcmc.run(key, t, y)
        assert (kernel._features.space is not None) == (low_rank == 3)
        prediction = alps.predict(mcmc, model, t, y, np.array([-1.0, 2.2, 9.0]), num_draws=4_000)
        samples = mcmc.get_samples(group_by_chain=True)
        energy = np.asarray(mcmc.get_extra_fields()["potential_energy"])
        results.append((samples, prediction, energy))
    from arviz_stats.base import array_stats

    (states, predicted, energy), (weights, predicted_, _) = results
    for name in ("b", "H", "noise_variance"):
        one, other = np.abs(states[name]).astype(float), np.abs(weights[name]).astype(float)
        for place in np.ndindex(one.shape[2:]):
            u, v = one[(..., *place)], other[(..., *place)]
            mcse = np.hypot(*[array_stats.mcse(a, chain_axis=0, draw_axis=1) if np.ptp(a) else 0.0 for a in (u, v)])
            assert abs(u.mean() - v.mean()) < 5 * mcse + 1e-3, (name, place)
    np.testing.assert_allclose(predicted["mean"], predicted_["mean"], atol=0.1)
    np.testing.assert_allclose(predicted["sd"], predicted_["sd"], rtol=0.15)
    assert np.isfinite(energy).all()


def test_what_has_neither_form_is_an_error(key):
    model = alps.ALPS({"x": kernels.Exp(scale=1.0) * kernels.ExpSquared(scale=0.1)}, noise_variance=0.1)
    t = np.arange(30.0)
    with pytest.raises(ValueError, match="more than max_rank = 5 features on 30 inputs"):
        alps.ALPSGibbs(model, max_rank=5).init(key, 0, None, (t, t), {})
    rough = alps.ALPS({"x": kernels.Exp(scale=1.0)}, noise_variance=0.1)
    with pytest.raises(ValueError, match="gate_latent isn't there for a latent with Markov states"):
        alps.ALPSGibbs(rough, blocks=["gate_latent"]).init(key, 0, None, (t, t), {})


def test_states_only_where_the_precision_resolves_them(key):
    """Smooth states at close times would be wrong in float32, and features serve; no new times is no error."""
    t = np.arange(90.0)
    for covariance, resolved in ((kernels.Exp(scale=20.0), True), (kernels.Matern52(scale=20.0), False)):
        with jax.enable_x64(False):
            inputs = jnp.asarray(t, jnp.float32)
            basis = features([covariance], inputs, names=["x"], tolerance=1e-6)
        assert (basis.space is not None) == resolved
    assert features([kernels.Matern52(scale=20.0)], jnp.asarray(t), names=["x"], tolerance=1e-12).space is not None

    model = alps.ALPS({"x": kernels.Exp(scale=2.0)}, noise_variance=0.1)
    mcmc = MCMC(alps.ALPSGibbs(model, blocks="marginal_gate"), num_warmup=1, num_samples=3, progress_bar=False)
    mcmc.run(key, t, np.sin(t))
    assert alps.predict(mcmc, model, t, np.sin(t), [])["mean"].shape == (0, 1)


def test_predictions_from_another_samplers_draws(monkeypatch):
    """A Matern-3/2 latent's x doesn't tell its derivative: the prediction is the process's given x alone."""
    covariance = kernels.Matern32(scale=5.0)
    t = np.sort(np.random.default_rng(0).uniform(0, 60, 90))
    new = np.array([-1.0, 20.03, 40.02, 61.0])
    model = alps.ALPS({"m": covariance}, noise_variance=0.1)
    mcmc = MCMC(alps.ALPSGibbs(model), num_warmup=0, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(0), t, np.sin(t)[:, None])
    assert mcmc.sampler._features.space is not None
    monkeypatch.setattr(mcmc, "get_extra_fields", dict)  # as of a sampler that knows no states
    draws = posterior_draws(mcmc, model, jnp.asarray(t), jnp.asarray(new), 5)
    K, K_new = np.asarray(covariance(t, t)), np.asarray(covariance(new, t))
    x = np.asarray(mcmc.get_samples()["x"])[:, 0]
    np.testing.assert_allclose(draws.weights @ draws.basis.T, x @ np.linalg.solve(K, K_new.T), atol=1e-5)
    left = np.asarray(covariance(new)) - np.einsum("nt,tn->n", K_new, np.linalg.solve(K, K_new.T))
    np.testing.assert_allclose(draws.latent_variance[0], left, atol=1e-5)
