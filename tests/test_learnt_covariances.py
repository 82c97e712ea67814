"""Covariance parameters that SVI learns within bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.model.covariances import parameters
from alps_ppl.svi.fit import _starts

PERIOD, SCALE = 7.3, 2.0
MODEL = alps.ALPS(
    {"sine": alps.linear_periodic(7.0), "decoy": alps.linear_periodic(4.0)},
    2,
    noise_variance=0.04,
    covariance_bounds={"sine": {"scale": (6.0, 9.0)}},
)


@pytest.fixture(scope="module")
def wave():
    """Two outputs of one sine of period 7.3, noise sd .2; the model starts at 7."""
    t = np.arange(80.0)
    f = np.sin(2 * np.pi * t / PERIOD + 1.0)[:, None] * [1.0, -0.7]
    return t, f + 0.2 * np.random.default_rng(4).normal(size=(80, 2)), f


@pytest.fixture(scope="module")
def fit(wave):
    t, y, _ = wave
    settings = {"num_steps": 2_000, "num_inducing": 10, "num_restarts": 2, "progress_bar": False}
    return alps.fit_svi(MODEL, t, y, rng_key=jax.random.key(1), **settings)


@pytest.mark.slow
def test_the_period_is_found(wave, fit):
    """Within five standard errors, by the Fisher information A^2 / sigma^2 (2 pi / T^2)^2 n^3 / 24 (free phase).

    The fit's model has it, and so have its predictions.
    """
    t, _, f = wave
    learnt = float(parameters(fit.model.covariances[0])["scale"])
    information = (1.0 + 0.7**2) / 0.04 * 80**3 / 24 * (2 * np.pi / PERIOD**2) ** 2
    assert abs(learnt - PERIOD) < 5 / np.sqrt(information)
    assert fit.inclusion_prob[0] > 0.95
    assert fit.inclusion_prob[1] < 0.2
    assert fit.model.covariance_bounds == {}
    assert np.isfinite(fit.elbo)
    draws = fit.at(jnp.asarray(t))
    assert abs(draws.basis @ draws.gated_H.mean(0).T - f).max() < 0.3


@pytest.mark.slow
def test_gibbs_takes_what_was_learnt(wave, fit, key):
    settings = {"num_warmup": 20, "num_samples": 20, "num_chains": 1, "progress_bar": False}
    gibbs = alps.fit_gibbs(fit.model, *wave[:2], rng_key=key, **settings)
    assert gibbs.inclusion_prob[0] > 0.95


def test_the_model_that_was_learnt_has_nothing_left_to_learn():
    learnt = MODEL.with_learnt({"sine.scale": jnp.log(8.0)})
    assert learnt.covariances[0].scale == pytest.approx(8.0)
    assert learnt.covariance_bounds == {}
    assert MODEL.covariances[0].scale == 7.0
    with pytest.raises(ValueError, match=r"covariance_bounds: .*fit\.model"):
        alps.ALPSGibbs(MODEL)


def test_starts_spread_over_the_bounds():
    """The first at the covariance's own value; the others strictly inside, evenly in ratio."""
    values = [float(jnp.exp(start["sine.scale"])) for start in _starts(MODEL, 4, float)]
    assert values[0] == pytest.approx(7.0)
    np.testing.assert_allclose(np.sort(values[1:]), 6.0 * 1.5 ** (np.array([1, 3, 5]) / 6))
    assert _starts(MODEL.subset(["decoy"]), 2, float) == [{}, {}]


@pytest.mark.slow
def test_a_lengthscale_by_the_evidence(key):
    """One sure latent: the ELBO's maximum lies near that of the exact evidence, H integrated out by quadrature."""
    rng = np.random.default_rng(8)
    t = np.linspace(0, 30, 90)
    gram = np.exp(-0.5 * (t[:, None] - t) ** 2 / SCALE**2)
    y = np.linalg.cholesky(gram + 1e-9 * np.eye(90)) @ rng.normal(size=90) + 0.1 * rng.normal(size=90)
    model = alps.ALPS(
        {"slow": kernels.ExpSquared(scale=1.0)},
        always_on=["slow"],
        noise_variance=0.01,
        covariance_bounds={"slow": {"scale": (0.3, 10.0)}},
    )
    fit = alps.fit_svi(model, t, y, num_steps=2_000, num_inducing=25, rng_key=key, progress_bar=False)
    learnt = float(parameters(fit.model.covariances[0])["scale"])

    def log_evidence(scale):
        h = np.linspace(0.05, 4, 80)
        values = []
        for loading in h:
            K = loading**2 * np.exp(-0.5 * (t[:, None] - t) ** 2 / scale**2) + 0.01 * np.eye(90)
            values.append(-0.5 * (y @ np.linalg.solve(K, y) + np.linalg.slogdet(K)[1]) - 0.5 * loading**2)
        return np.logaddexp.reduce(values)

    scales = np.linspace(1.0, 4.0, 61)
    evidence = np.array([log_evidence(scale) for scale in scales])
    # The bound isn't the evidence; its maximum is where the evidence has lost two nats at most.
    assert np.interp(learnt, scales, evidence) > evidence.max() - 2


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"saw": {"scale": (1, 9)}}, r"covariance_bounds\['saw'\].*a latent"),
        ({"sine": {"period": (1, 9)}}, r"\['period'\]: .*'sine': \['scale'\]"),
        ({"sine": {"scale": (9, 1)}}, r"\['scale'\]: .*\(low, high\), positive"),
        ({"sine": {"scale": 5}}, r"\['scale'\]: .*\(low, high\)"),
        ({"sine": {"scale": (8, 9)}}, r"\['scale'\]: .*own 7.0"),
    ],
)
def test_wrong_bounds(bounds, message):
    with pytest.raises(ValueError, match=message):
        alps.ALPS({"sine": alps.linear_periodic(7.0)}, noise_variance=0.1, covariance_bounds=bounds)
