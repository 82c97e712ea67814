"""Predictions against dense conditioning, the mixture's own quantiles, and what a user may ask for."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from numpyro.infer import MCMC
from scipy import optimize, stats
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.prediction import posterior_draws


@pytest.fixture(scope="module")
def problem():
    """Two outputs, three latents of which one is a decoy, missing cells, unsorted repeated times."""
    rng = np.random.default_rng(7)
    t = np.array([0.0, 1.0, 2.5, 2.0, 4.0, 5.0, 5.0, 6.5, 8.0, 7.0])
    y = np.stack([np.sin(t), 0.5 * np.sin(t)], 1) + 0.1 * rng.normal(size=(10, 2))
    y[3, 0] = y[8, 1] = np.nan
    covariances = {
        "smooth": kernels.ExpSquared(scale=1.5),
        "rough": kernels.Exp(scale=2.0),
        "decoy": alps.linear_periodic(0.9),
    }
    return alps.ALPS(covariances, ["u", "v"], noise_variance=[0.05, 0.02]), t, y


@pytest.fixture(scope="module")
def mcmc(problem):
    model, t, y = problem
    run = MCMC(
        alps.ALPSGibbs(model), num_warmup=200, num_samples=300, num_chains=2, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    run.run(jax.random.key(0), t, y)
    return run


@pytest.fixture(scope="module")
def fit(problem):
    model, t, y = problem
    return alps.fit_svi(model, t, y, num_inducing=12, num_steps=3000, rng_key=jax.random.key(1), progress_bar=False)


NEW = np.array([0.5, 5.0, 9.5, 3.0, 200.0])


@pytest.mark.parametrize("engine", ["mcmc", "fit"])
def test_mean_and_sd_are_the_mixtures(engine, problem, request):
    """Against a loop over draws; far away f falls back to the prior."""
    model, t, y = problem
    posterior = request.getfixturevalue(engine)
    draws = posterior_draws(posterior, model, jnp.asarray(t), jnp.asarray(NEW), 1000)
    prediction = alps.predict(posterior, model, t, y, NEW)
    assert prediction["mean"].dims == ("time", "output")
    np.testing.assert_array_equal(prediction["time"], NEW)
    gated_H, weights, basis, left = (
        np.asarray(part) for part in (draws.gated_H, draws.weights, draws.basis, draws.latent_variance)
    )
    for n in range(len(NEW)):
        for i in range(2):
            locs, variances = [], []
            for s in range(len(weights)):
                x = [(basis[n] * weights[s])[draws.owner == j].sum() for j in range(3)]
                locs.append(sum(gated_H[s, i, j] * x[j] for j in range(3)))
                variances.append(sum(gated_H[s, i, j] ** 2 * left[j, n] for j in range(3)) + model.noise_variance[i])
            assert float(prediction["mean"][n, i]) == pytest.approx(np.mean(locs), abs=1e-9)
            assert float(prediction["sd"][n, i]) == pytest.approx(np.sqrt(np.mean(variances) + np.var(locs)), abs=1e-9)


def test_quantiles_and_density_are_the_mixtures(mcmc, problem):
    model, t, y = problem
    draws = posterior_draws(mcmc, model, jnp.asarray(t), jnp.asarray(NEW), 1000)
    prediction = alps.predict(mcmc, model, t, y, NEW, interval=0.8)
    density = alps.log_predictive_density(mcmc, model, t, y, NEW, np.full((5, 2), 0.3))
    n, i = 2, 1
    x = np.stack([(draws.weights * draws.basis[n])[:, draws.owner == j].sum(1) for j in range(3)], 1)
    loc = (np.asarray(draws.gated_H[:, i]) * x).sum(1)
    sd = np.sqrt(np.asarray(draws.gated_H[:, i]) ** 2 @ np.asarray(draws.latent_variance[:, n]) + 0.02)
    for level, name in ((0.1, "lower"), (0.9, "upper")):
        root = optimize.brentq(lambda v, level=level: stats.norm.cdf(v, loc, sd).mean() - level, -20, 20)
        assert float(prediction[name][n, i]) == pytest.approx(root, abs=1e-6)
    assert float(density[n, i]) == pytest.approx(np.log(stats.norm.pdf(0.3, loc, sd).mean()), abs=1e-9)


def test_gibbs_prediction_is_the_dense_conditional_averaged_over_H(mcmc, problem):
    """E[f* | Y] = E_{H,b|Y}[ E[f* | H, b, Y] ]: dense conditioning at each draw's H and b, within 5 MCSE."""
    model, t, y = problem
    samples = mcmc.get_samples()
    keep = slice(0, None, 5)
    new = np.array([0.5, 9.0])
    inner = np.array(
        [
            reference.condition(model.covariances, H, b, model.noise_variance, t, y, new)[0]
            for H, b in zip(np.asarray(samples["H"])[keep], np.asarray(samples["b"])[keep], strict=True)
        ]
    )
    prediction = alps.predict(mcmc, model, t, y, new, include_noise=False)
    # Both are averages over correlated draws; the spread of f at a time bounds the error of either.
    tolerance = 5 * prediction["sd"].values / np.sqrt(len(inner) / 3)
    assert (abs(prediction["mean"].values - inner.mean(0)) < tolerance).all()


def test_far_away_is_the_prior_of_the_latents(mcmc, problem):
    """At t = 200 a draw leaves the latents' whole prior variance open, but for the periodic one."""
    model, t, _ = problem
    draws = posterior_draws(mcmc, model, jnp.asarray(t), jnp.asarray(NEW), 1000)
    np.testing.assert_allclose(draws.latent_variance[:2, 4], 1.0, atol=1e-8)
    np.testing.assert_allclose(draws.latent_variance[2, 4], 0.0, atol=1e-8)


@pytest.mark.parametrize("engine", ["mcmc", "fit"])
def test_shapes_and_order(engine, problem, request):
    model, t, y = problem
    posterior = request.getfixturevalue(engine)
    whole = alps.predict(posterior, model, t, y, t)
    back = alps.predict(posterior, model, t, y, t[::-1])
    np.testing.assert_allclose(back["mean"].values[::-1], whole["mean"].values, atol=1e-8)
    assert alps.predict(posterior, model, t, y, [3.0])["sd"].shape == (1, 2)
    nothing = alps.predict(posterior, model, t, y, [])
    assert nothing["mean"].shape == (0, 2)
    assert (whole["lower"] < whole["mean"]).all()
    assert (whole["mean"] < whole["upper"]).all()
    f = alps.predict(posterior, model, t, y, t, include_noise=False)
    np.testing.assert_allclose(whole["sd"] ** 2 - f["sd"] ** 2, np.tile(model.noise_variance, (10, 1)), atol=1e-8)


def test_engines_agree_on_f(mcmc, fit, problem):
    model, t, y = problem
    f = {e: alps.predict(p, model, t, y, t, include_noise=False) for e, p in (("gibbs", mcmc), ("svi", fit))}
    assert abs(f["gibbs"]["mean"] - f["svi"]["mean"]).max() < 0.15


def test_errors(mcmc, problem):
    model, t, y = problem
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 1"):
        alps.predict(mcmc, model, t, y, t, interval=1)
    with pytest.raises(ValueError, match="new_inputs: expected the columns of inputs"):
        alps.predict(mcmc, model, t, y, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="expected those that were fitted, in their order, got 10 other ones"):
        alps.predict(mcmc, model, t[::-1], y, t)
    with pytest.raises(ValueError, match=r"new_y: expected shape \(time, output\) = \(10, 2\), got \(2, 10\)"):
        alps.log_predictive_density(mcmc, model, t, y, t, y.T)
    with pytest.raises(ValueError, match="num_draws: expected a positive whole number, got 0"):
        alps.predict(mcmc, model, t, y, t, num_draws=0)
    with pytest.raises(ValueError, match="inputs: expected finite numbers"):
        alps.predict(mcmc, model, t, y, [np.nan])


@pytest.mark.parametrize("engine", ["mcmc", "fit"])
@pytest.mark.parametrize("use", ["predict", "to_datatree"])
def test_another_model_or_other_inputs_are_an_error(engine, use, problem, request):
    model, t, y = problem
    posterior = request.getfixturevalue(engine)
    named = dict(zip(model.latents, model.covariances, strict=True))
    call = {"predict": lambda *a: alps.predict(*a, t), "to_datatree": alps.to_datatree}[use]
    for other in (
        alps.ALPS(named | {"rough": kernels.Exp(scale=3.0)}, ["u", "v"], noise_variance=[0.05, 0.02]),
        alps.ALPS(named, ["u", "v"], noise_variance=[0.05, 0.03]),
        alps.ALPS(named, ["u", "w"], noise_variance=[0.05, 0.02]),
    ):
        with pytest.raises(ValueError, match="model: expected the one that was fitted, ALPS"):
            call(posterior, other, t, y)
    with pytest.raises(ValueError, match="inputs: expected those that were fitted, in their order, got 10 other ones"):
        call(posterior, model, t + 1, y)
    with pytest.raises(ValueError, match="inputs: expected those that were fitted, in their order, got 9 other ones"):
        call(posterior, model, t[1:], y[1:])
    with pytest.raises(TypeError, match=r"model: expected the alps_ppl.ALPS that was fitted, got ALPSGibbs"):
        call(posterior, alps.ALPSGibbs(model), t, y)
    with pytest.raises(ValueError, match="y: expected data"):
        call(posterior, model, t, None)
    with pytest.raises(TypeError, match=r"posterior: expected what fit_svi returned or a NumPyro MCMC.*got dict"):
        call({}, model, t, y)
    with pytest.raises(ValueError, match=r"the MCMC has no draws yet; call mcmc.run"):
        call(MCMC(alps.ALPSGibbs(model), num_warmup=1, num_samples=1), model, t, y)
    again = pickle.loads(pickle.dumps(model))
    call(posterior, again, t[:, None], y)


def test_predictions_of_several_columns(key):
    rng = np.random.default_rng(0)
    inputs, y = rng.normal(size=(12, 2)), rng.normal(size=(12, 1))
    model = alps.ALPS({"x1": alps.on_column(kernels.ExpSquared(scale=1.0), 1)}, noise_variance=0.1)
    run = MCMC(alps.ALPSGibbs(model), num_warmup=2, num_samples=5, progress_bar=False)
    run.run(key, inputs, y)
    prediction = alps.predict(run, model, inputs, y, inputs[:4])
    np.testing.assert_array_equal(prediction["inputs"], inputs[:4])
    density = alps.log_predictive_density(run, model, inputs, y, inputs[:4], y[:4])
    assert density.dims == ("time", "output")
    np.testing.assert_array_equal(density["time"], prediction["time"])


@pytest.mark.slow
def test_multi_column_inputs(key):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(25, 2))
    y = np.sin(2 * inputs[:, 0]) + 0.1 * rng.normal(size=25)
    covariances = {f"x{k}": alps.on_column(kernels.ExpSquared(scale=1.0), k) for k in range(2)}
    model = alps.ALPS(covariances, noise_variance=0.02)
    fit = alps.fit_svi(model, inputs, y, num_inducing=12, num_steps=3000, rng_key=key, progress_bar=False)
    assert fit.inclusion_prob[0] > 0.9
    assert fit.inclusion_prob[1] < 0.5
    prediction = alps.predict(fit, model, inputs, y, inputs[:4])
    assert prediction["inputs"].shape == (4, 2)
    assert abs(prediction["mean"][:, 0] - np.sin(2 * inputs[:4, 0])).max() < 0.4
