"""Latents with Markov states against the dense joint: the same model, whatever holds its latents."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from numpyro.infer.util import log_density
from test_conditionals import features_and_statistics
from tinygp import kernels
from tinygp.kernels import quasisep

import alps_ppl as alps
from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs import features
from alps_ppl.gibbs.features import latent_features
from alps_ppl.gibbs.statespace import markov_terms

COVARIANCES = {
    "exp": kernels.Exp(scale=0.7),
    "matern32": kernels.Matern32(scale=1.2),
    "matern52": kernels.Matern52(scale=0.9),
    "scaled": kernels.Constant(0.5) * kernels.Exp(scale=2.0),
    "sum": kernels.Exp(scale=0.3) + 0.7 * kernels.Matern32(scale=2.0),
    "with a periodic": kernels.Matern32(scale=1.0) + alps.linear_periodic(1.7),
    "quasisep": quasisep.Matern52(scale=1.1, sigma=1.0),
    "white": alps.white(),
    "random walk": alps.random_walk(1.3, 4.0),
    "integrated walk": 0.8 * alps.integrated_walk(1.3, 4.0),
    "walks": alps.random_walk(0.0, 5.0) + alps.integrated_walk(6.0, 5.0),
}


@pytest.fixture(autouse=True)
def states_for_all(monkeypatch):
    """Every covariance of more than a few features has states, however few the times."""
    monkeypatch.setattr(features, "LOW_RANK", 3)


@pytest.fixture(scope="module")
def all_of_them():
    """A model of all these latents, its features and statistics, times and y: unsorted, two times twice, cells missing.

    With a single gate open, it is a model of that latent alone.
    """
    t = np.random.default_rng(2).uniform(0, 5, 10)
    t = np.concatenate([t, t[3:5]])
    y = np.random.default_rng(4).normal(size=(12, 2))
    y[2, 0] = y[7] = np.nan
    model = alps.ALPS(COVARIANCES, 2, noise_variance=[0.2, 0.5])
    with mock.patch.object(features, "LOW_RANK", 3):
        basis, stats = features_and_statistics(model, t, y)
    assert basis.num_features == 2  # the periodic's
    assert set(basis.terms) == set(range(len(COVARIANCES)))
    return model, basis, stats, t, y


@pytest.fixture(scope="module")
def posterior():
    """Compiled: the evidence, and the weights' posterior mean and unit-normal factor (of w - mean, by rows)."""

    @jax.jit
    def compiled(stats, H, b, noise):
        w = c.weights_conditional(stats, H, b, noise)
        size = w.event_shape[0]
        factor = jax.vmap(lambda z: w.transform(z) - w.mean)(jnp.eye(size))
        return c.log_evidence(stats, H, b, noise), w.mean, factor

    return compiled


H = np.random.default_rng(6).normal(size=(2, len(COVARIANCES)))


@pytest.mark.parametrize("j", range(len(COVARIANCES)), ids=COVARIANCES)
def test_states_give_the_covariance(j, all_of_them, posterior):
    """Evidence, posterior mean and variance of f of one latent, by dense algebra."""
    model, basis, stats, t, y = all_of_them
    noise, b = model.noise_variance, np.arange(len(COVARIANCES)) == j
    alone = [model.covariances[j]], H[:, [j]], np.ones(1), noise, t, y
    evidence, w_mean, factor = map(np.asarray, posterior(stats, jnp.asarray(H), jnp.asarray(b, float), noise))
    assert evidence == pytest.approx(reference.log_evidence(*alone), abs=1e-6)

    new = np.array([-1.0, 0.1, 2.0, t[3], 4.9, 7.5])
    star, owner, latent_variance, places = basis.extend(jnp.asarray(new))
    mean, variance = reference.condition(*alone, new)
    for n in range(len(new)):
        row = np.zeros(len(w_mean))
        np.add.at(row, places[n], np.asarray(star[n]) * (owner == j))
        np.testing.assert_allclose(H[:, j] * (row @ w_mean), mean[n], atol=1e-6)
        x_variance = ((factor @ row) ** 2).sum() + latent_variance[j, n]
        np.testing.assert_allclose(H[:, j] ** 2 * x_variance, variance[n], atol=1e-6)


@pytest.mark.parametrize("b", [(1,) * 11, (1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1), (0,) * 11], ids=str)
def test_evidence_of_several_latents(b, all_of_them, posterior):
    model, _, stats, t, y = all_of_them
    exact = reference.log_evidence(model.covariances, H, b, model.noise_variance, t, y)
    evidence, *_ = posterior(stats, jnp.asarray(H), jnp.asarray(b, float), model.noise_variance)
    assert float(evidence) == pytest.approx(exact, abs=1e-6)


def test_weights_conditional_is_the_programs(rough_data):
    """log_joint(u) - log_joint(v) = block.log_prob(u) - block.log_prob(v); the latents are their first states here."""
    model = alps.ALPS(
        {"a": kernels.Exp(scale=0.7), "b": kernels.Exp(scale=3.0)},
        2,
        noise_variance=[0.2, 0.5],
        jitter=0.0,
    )
    basis, stats = features_and_statistics(model, *rough_data)
    rng = np.random.default_rng(5)
    H, b = jnp.asarray(rng.normal(size=(2, 2))), jnp.array([1.0, 0.0])

    @jax.jit
    def draws_and_log_prob(key):
        block = c.weights_conditional(stats, H, b, jnp.asarray(model.noise_variance))
        draws = block.sample(key, (5,))
        return draws, block.log_prob(draws)

    joint = [
        float(log_density(model, rough_data, {}, {"b": b, "H": H, "x": basis.latents(w, basis.phi())})[0] - log_prob)
        for w, log_prob in zip(*draws_and_log_prob(jax.random.key(1)), strict=True)
    ]
    assert np.ptp(joint) < 1e-8


@pytest.fixture(scope="module")
def both_ways():
    """A fit with states for its rough latents, and one with features."""
    t = np.sort(np.random.default_rng(8).uniform(0, 6, 14))
    y = np.stack([np.sin(t), np.cos(2 * t)], 1)
    y[3, 1] = np.nan
    covariances = {
        "rough": kernels.Exp(scale=1.0),
        "smooth": kernels.Matern32(scale=1.5),
        "wave": alps.linear_periodic(3),
    }
    model = alps.ALPS(covariances, 2, noise_variance=dist.InverseGamma(3.0, 0.3))
    lengths = {"num_warmup": 50, "num_samples": 100, "num_chains": 64, "progress_bar": False}
    fits = []
    for low_rank in (3, 64):
        with mock.patch.object(features, "LOW_RANK", low_rank):
            fits.append(alps.fit_gibbs(model, t, y, rng_key=jax.random.key(0), moves="marginal", **lengths))
    return fits


@pytest.mark.slow
def test_the_same_posterior_as_features(both_ways):
    """A whole run, and its predictions: the mean over chains of each quantity, within 5 of its standard errors."""
    states, weights = both_ways
    assert states.features.space is not None
    assert weights.features.space is None
    new = jnp.array([-1.0, 2.2, 9.0])

    def by_chain(fit):
        sites = {name: np.abs(fit.samples[name]).astype(float).mean(1) for name in ("b", "H", "noise_variance")}
        return sites | {"f": _moments_of_f(fit.at(new, 64 * 100)).reshape(64, 100, -1).mean(1)}

    one, other = by_chain(states), by_chain(weights)
    for name in one:
        error = np.sqrt((one[name].var(0, ddof=1) + other[name].var(0, ddof=1)) / 64)
        assert (abs(one[name].mean(0) - other[name].mean(0)) <= 5 * error).all(), name
    assert np.isfinite(states.sample_stats["lp"]).all()


def _moments_of_f(draws):
    """What each draw adds to the mean and the second moment of f, (draw, 2 * new * output)."""
    places = draws.places if draws.places is not None else np.tile(np.arange(draws.basis.shape[1]), (3, 1))
    H = np.asarray(draws.gated_H)
    terms = np.asarray(draws.weights)[:, places] * np.asarray(draws.basis)
    owner = np.asarray(draws.owner) == np.arange(H.shape[-1])[:, None]
    mean = np.einsum("snk,jk,sij->sni", terms, owner, H)
    second = mean**2 + np.einsum("sij,jn->sni", H**2, np.asarray(draws.latent_variance))
    return np.concatenate([mean, second], 1)


def test_what_has_neither_form_is_an_error():
    t = np.arange(30.0)
    model = alps.ALPS({"x": kernels.Exp(scale=1.0) * kernels.ExpSquared(scale=0.1)}, noise_variance=0.1)
    with pytest.raises(ValueError, match="max_rank = 5 features on 30 inputs"):
        alps.ALPSGibbs(model, max_rank=5).bind(t, t)
    rough = alps.ALPS({"x": kernels.Exp(scale=1.0)}, noise_variance=0.1)
    with pytest.raises(ValueError, match=r"moves: .*gate_latent.*Markov states"):
        alps.ALPSGibbs(rough, moves=["gate_latent"]).bind(t, t)


def test_states_only_where_the_precision_resolves_them():
    """Smooth states at close times would be wrong in float32, and features serve; no new times is no error."""
    t = np.arange(90.0)
    for covariance, resolved in ((kernels.Exp(scale=20.0), True), (kernels.Matern52(scale=20.0), False)):
        with jax.enable_x64(False):
            basis = latent_features([covariance], jnp.asarray(t, jnp.float32), names=["x"], tolerance=1e-6)
        assert (basis.space is not None) == resolved
    basis = latent_features([kernels.Matern52(scale=20.0)], jnp.asarray(t), names=["x"], tolerance=1e-12)
    assert basis.space is not None
    star, _, latent_variance, places = basis.extend(jnp.zeros(0))
    assert (star.shape[0], latent_variance.shape, places.shape[0]) == (0, (1, 0), 0)


def test_states_that_give_known_latents():
    """A start at given x: the states that it doesn't tell are the smallest that give it."""
    t = np.sort(np.random.default_rng(0).uniform(0, 60, 90))
    basis = latent_features([kernels.Matern32(scale=5.0)], jnp.asarray(t), names=["m"])
    x = jnp.sin(jnp.asarray(t))[None]
    weights = basis.weights(x)
    np.testing.assert_allclose(basis.latents(weights, basis.phi()), x, atol=1e-9)
    np.testing.assert_allclose(weights.reshape(90, 2)[:, 1], 0.0, atol=1e-9)


@pytest.mark.parametrize(
    "covariance",
    [
        kernels.Exp(scale=2.0) * 2.0,
        2.0 * (kernels.Exp(scale=2.0) + kernels.Matern32(scale=1.0)),
        0.5 * (2.0 * kernels.Exp(scale=2.0)),
        kernels.Constant(0.5) * kernels.Exp(scale=2.0) * kernels.Constant(3.0),
        3.0 * quasisep.Exp(scale=2.0) + quasisep.Matern32(scale=1.0),
        2.0 * alps.white(),
        2.0 * (kernels.Exp(scale=2.0) + alps.linear_periodic(3.0)),
    ],
)
def test_markov_however_it_is_written(covariance):
    """The terms and the others add to the covariance; only the periodic one is among the others."""
    terms, others = markov_terms(covariance)
    t = jnp.array([0.0, 0.3, 1.0, 2.5])
    total = sum(term(t, t) for term in terms) + sum(other(t, t) for other in others)
    np.testing.assert_allclose(total, covariance(t, t), atol=1e-12)
    assert len(others) == ("Cosine" in repr(covariance))
