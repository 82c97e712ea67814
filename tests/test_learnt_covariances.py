"""Covariance parameters that SVI learns within bounds."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.covariances import parameters
from alps_ppl.svi import _covariance_starts

PERIOD, SCALE = 7.3, 2.0


@pytest.fixture(scope="module")
def wave():
    """Two outputs of one sine of period 7.3, noise sd .2; the model starts at 7."""
    rng = np.random.default_rng(4)
    t = np.arange(80.0)
    y = np.sin(2 * np.pi * t / PERIOD + 1.0)[:, None] * [1.0, -0.7] + 0.2 * rng.normal(size=(80, 2))
    model = alps.ALPS(
        {"sine": alps.linear_periodic(7.0), "decoy": alps.linear_periodic(4.0)},
        2,
        noise_variance=0.04,
        covariance_bounds={"sine": {"scale": (6.0, 9.0)}},
    )
    return model, t, y


@pytest.fixture(scope="module")
def wave_fit(wave):
    import jax

    model, t, y = wave
    return alps.fit_svi(
        model, t, y, num_steps=2_000, num_inducing=20, num_restarts=3, rng_key=jax.random.key(1), progress_bar=False
    )


def test_the_period_is_found(wave, wave_fit):
    """Within five standard errors, by the Fisher information A^2 / sigma^2 (2 pi / T^2)^2 n^3 / 24 (free phase)."""
    learnt = float(parameters(wave_fit.model.covariances[0])["scale"])
    information = (1.0 + 0.7**2) / 0.04 * 80**3 / 24 * (2 * np.pi / PERIOD**2) ** 2
    assert abs(learnt - PERIOD) < 5 / np.sqrt(information)
    assert wave_fit.inclusion_prob[0] > 0.95
    assert wave_fit.inclusion_prob[1] < 0.2
    assert wave_fit.model.covariance_bounds == {}
    assert np.isfinite(wave_fit.elbo)


def test_predict_takes_either_model(wave, wave_fit):
    """The model as written, whose values are starts, and the learnt one; a third is refused."""
    model, t, y = wave
    new = np.array([85.0, 90.5])
    first, second = (alps.predict(wave_fit, m, t, y, new)["mean"].values for m in (model, wave_fit.model))
    np.testing.assert_array_equal(first, second)
    truth = np.sin(2 * np.pi * new / PERIOD + 1.0)[:, None] * [1.0, -0.7]
    assert np.abs(first - truth).max() < 0.3
    tree = alps.to_datatree(wave_fit, model, t, y, num_draws=20)
    assert tree["posterior"].sizes["latent"] == 2
    other = alps.ALPS({"sine": alps.linear_periodic(7.0), "decoy": alps.linear_periodic(4.0)}, 2, noise_variance=0.04)
    with pytest.raises(ValueError, match="model: expected the one that was fitted"):
        alps.predict(wave_fit, other, t, y, new)


def test_gibbs_takes_what_was_learnt(wave, wave_fit, key):
    model, t, y = wave
    with pytest.raises(
        ValueError, match=r"covariance_bounds: the Gibbs sampler takes covariances as they are.*fit.model"
    ):
        alps.ALPSGibbs(model)
    mcmc = MCMC(alps.ALPSGibbs(wave_fit.model), num_warmup=50, num_samples=100, progress_bar=False)
    mcmc.run(key, t, y)
    assert alps.predict(mcmc, wave_fit.model, t, y, t[:2])["mean"].shape == (2, 2)


def test_starts_spread_over_the_bounds(wave):
    """The first at the covariance's own value; the others strictly inside, evenly in ratio."""
    model, _, _ = wave
    starts = _covariance_starts(model, 4, float)
    values = [float(jnp.exp(start["sine.scale"])) for start in starts]
    assert values[0] == pytest.approx(7.0)
    np.testing.assert_allclose(np.sort(values[1:]), 6.0 * 1.5 ** (np.array([1, 3, 5]) / 6))
    assert _covariance_starts(model.subset(["decoy"]), 2, float) == [{}, {}]


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
    fit = alps.fit_svi(model, t, y, num_steps=4_000, num_inducing=30, rng_key=key, progress_bar=False)
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
        (
            {"saw": {"scale": (1, 9)}},
            r"expected \{latent: \{parameter: \(low, high\)\}\} with latents among \['sine'\]",
        ),
        ({"sine": (1, 9)}, r"expected \{latent: \{parameter: \(low, high\)\}\}"),
        (
            {"sine": {"period": (1, 9)}},
            r"\['sine'\]\['period'\]: expected one of the covariance's parameters \['scale'\]",
        ),
        ({"sine": {"scale": (9, 1)}}, r"expected \(low, high\) with 0 < low < high, got \(9, 1\)"),
        ({"sine": {"scale": (0, 9)}}, r"expected \(low, high\) with 0 < low < high"),
        ({"sine": {"scale": 5}}, r"expected \(low, high\) with 0 < low < high, got 5"),
        ({"sine": {"scale": (8, 9)}}, "the covariance's own 7.0, where learning starts, to .* the bounds, got 8 to 9"),
    ],
)
def test_wrong_bounds(bounds, message):
    with pytest.raises(ValueError, match=message):
        alps.ALPS({"sine": alps.linear_periodic(7.0)}, noise_variance=0.1, covariance_bounds=bounds)


def test_parameters_of_sums_and_products():
    covariance = kernels.Exp(scale=5.0) + 2.0 * kernels.ExpSineSquared(scale=3.0, gamma=1.0)
    assert parameters(covariance) == {
        "kernel1.scale": 5.0,
        "kernel2.kernel1.value": 2.0,
        "kernel2.kernel2.scale": 3.0,
        "kernel2.kernel2.gamma": 1.0,
    }
