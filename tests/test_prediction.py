"""Predictions against loops over the mixture and dense conditioning, and what a user may ask for."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from numpyro.infer import MCMC
from problems import finite, twins
from scipy import optimize, stats
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.model.draws import LatentDraws
from alps_ppl.results.prediction import PredictiveDraws, log_density, predictive, summarise

NEW = np.array([0.5, 5.0, 9.5, 3.0, 200.0])


def some_draws(num_draws, n, m, p, places):
    """Arbitrary draws at ``n`` times of latents of two features each, shuffled; with states where there are places."""
    rng = np.random.default_rng(num_draws + 10 * n + 100 * m + 1000 * p)
    owner = rng.permutation(np.repeat(np.arange(m), 2))
    return PredictiveDraws(
        jnp.arange(float(n)),
        tuple(f"y{i}" for i in range(p)),
        LatentDraws(
            jnp.asarray(rng.normal(size=(num_draws, p, m)) * rng.integers(0, 2, (num_draws, 1, m))),
            jnp.asarray(rng.uniform(0.1, 1, (num_draws, p))),
            jnp.asarray(rng.normal(size=(num_draws, 7 if places else 2 * m))),
            jnp.asarray(rng.normal(size=(n, 2 * m))),
            owner,
            jnp.asarray(rng.uniform(0, 1, (m, n))),
            rng.integers(0, 7, (n, 2 * m)) if places else None,
        ),
    )


# Every axis once as long as another: none may be taken for it.
@pytest.mark.parametrize(("num_draws", "n", "m", "p"), [(5, 2, 2, 2), (3, 2, 3, 1), (2, 3, 1, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize("places", [False, True])
def test_summary_and_density_are_the_mixtures(num_draws, n, m, p, places):
    draws = some_draws(num_draws, n, m, p, places)
    new_y = np.random.default_rng(0).normal(size=(n, p))
    summary, density = summarise(draws, interval=0.8), log_density(draws, new_y)
    gated_H, noise, weights, basis, owner, left, place, *_ = draws.latents
    for t, i in np.ndindex(n, p):
        locs, variances = [], []
        for s in range(num_draws):
            here = weights[s] if place is None else weights[s][place[t]]
            x = [float((basis[t] * here)[owner == j].sum()) for j in range(m)]
            locs.append(sum(float(gated_H[s, i, j]) * x[j] for j in range(m)))
            variances.append(sum(float(gated_H[s, i, j] ** 2 * left[j, t]) for j in range(m)) + float(noise[s, i]))
        sds = np.sqrt(variances)
        assert float(summary["mean"][t, i]) == pytest.approx(np.mean(locs), abs=1e-9)
        assert float(summary["sd"][t, i]) == pytest.approx(np.sqrt(np.mean(variances) + np.var(locs)), abs=1e-9)
        for level, name in ((0.1, "lower"), (0.9, "upper")):
            root = optimize.brentq(lambda v, level=level: stats.norm.cdf(v, locs, sds).mean() - level, -40, 40)  # noqa: B023
            assert float(summary[name][t, i]) == pytest.approx(root, abs=1e-6)
        assert density[t, i] == pytest.approx(np.log(stats.norm.pdf(new_y[t, i], locs, sds).mean()), abs=1e-9)


def test_gibbs_prediction_is_the_dense_conditional_averaged_over_H(fits):
    """E[f* | Y] = E[E[f* | H, b, sigma^2, Y]]: dense conditioning at each draw's H, b and noise, within 5 MCSE."""
    fit = fits["gibbs"]
    names = ("H", "b", "noise_variance")
    draws = [np.concatenate(np.asarray(fit.samples[name])[:, ::10]) for name in names]
    new = np.array([0.5, 12.5])
    data = np.asarray(fit.inputs), np.asarray(fit.y)
    condition = partial(reference.condition, fit.model.covariances)
    inner = np.array([condition(*draw, *data, new)[0] for draw in zip(*draws, strict=True)])
    prediction = alps.predict(fit, new, include_noise=False)
    # Both are averages over correlated draws; the spread of f at a time bounds the error of either.
    tolerance = 5 * prediction["sd"].values / np.sqrt(len(inner) / 3)
    assert (abs(prediction["mean"].values - inner.mean(0)) < tolerance).all()


def test_far_away_is_the_prior_of_the_latents(either_fit):
    """A draw leaves the smooth latent's whole prior variance open, and of the periodic ones nothing."""
    draws = either_fit.at(jnp.array([1e4, -1e6]))
    np.testing.assert_allclose(draws.latent_variance[3], 1.0, atol=1e-8)
    np.testing.assert_allclose(np.asarray(draws.basis)[:, np.asarray(draws.owner) == 3], 0.0, atol=1e-8)
    if either_fit.engine == "gibbs":
        np.testing.assert_allclose(draws.latent_variance[:3], 0.0, atol=1e-8)


def test_predictions_are_near_the_truth(either_fit):
    """Times in any order, with one twice; cells, rows and a whole output missing."""
    *_, f = twins()
    prediction = alps.predict(either_fit, either_fit.inputs, include_noise=False)
    assert abs(prediction["mean"].values - f)[:, :2].max() < 0.35
    # The output without a cell: mean 0, and the prior's H on the latents that are on.
    draws = either_fit.at(either_fit.inputs[:1])
    on = np.asarray(draws.gated_H[:, 0] != 0)
    weights = np.asarray(draws.weights * draws.basis[0])
    x = np.stack([weights[:, np.asarray(draws.owner) == j].sum(1) for j in range(4)], 1)
    expected = np.sqrt((on * (x**2 + np.asarray(draws.latent_variance[:, 0]))).sum(1).mean())
    assert abs(float(prediction["mean"][0, 2])) < 6 * expected / np.sqrt(len(x) / 4)
    assert float(prediction["sd"][0, 2]) == pytest.approx(expected, rel=0.25)


def test_engines_agree_on_f(fits):
    f = {engine: alps.predict(fit, fit.inputs, include_noise=False)["mean"][:, :2] for engine, fit in fits.items()}
    assert abs(f["gibbs"] - f["svi"]).max() < 0.25


def test_shapes_and_order(either_fit):
    t = np.asarray(either_fit.inputs)
    whole = alps.predict(either_fit, t)
    assert whole["mean"].dims == ("time", "output")
    assert list(whole["output"].values) == ["u", "v", "w"]
    np.testing.assert_array_equal(whole["time"], t)
    back = alps.predict(either_fit, t[::-1])
    np.testing.assert_allclose(back["mean"].values[::-1], whole["mean"].values, atol=1e-8)
    assert alps.predict(either_fit, [3.0])["sd"].shape == (1, 3)
    assert alps.predict(either_fit, [])["mean"].shape == (0, 3)
    assert (whole["lower"] < whole["mean"]).all()
    assert (whole["mean"] < whole["upper"]).all()
    noise = either_fit.samples["noise_variance"]
    f = alps.predict(either_fit, t, include_noise=False)
    np.testing.assert_allclose(whole["sd"] ** 2 - f["sd"] ** 2, np.tile(np.mean(noise, (0, 1)), (len(t), 1)), rtol=0.05)


def test_one_check_makes_both_the_summary_and_the_density(either_fit, monkeypatch):
    draws, y = predictive(either_fit, NEW), np.full((5, 3), 0.3)
    assert summarise(draws, interval=0.8).identical(alps.predict(either_fit, NEW, interval=0.8))
    y[2, 1] = np.nan
    density = alps.log_predictive_density(either_fit, NEW, y)
    np.testing.assert_array_equal(density, log_density(draws, y))
    assert np.isnan(density.values).tolist() == np.isnan(y).tolist()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"interval": 1}, ValueError, "interval: .*between 0 and 1"),
        ({"num_draws": 0}, ValueError, "num_draws: .*whole number"),
        ({"new_inputs": np.zeros((3, 2))}, ValueError, "new_inputs: .*columns"),
        ({"new_inputs": [np.nan]}, ValueError, "new_inputs: .*finite"),
        ({"new_inputs": np.array(["2024-01-01"], "M8[D]")}, TypeError, "new_inputs: .*dates"),
        ({"fit": {}}, TypeError, "fit: .*fit_svi.*got dict"),
        ({"fit": MCMC(alps.ALPSGibbs(twins()[0]), num_warmup=1, num_samples=1)}, TypeError, r"alps\.from_mcmc\(mcmc\)"),
    ],
)  # fmt: skip
def test_bad_arguments(arguments, error, message, fits):
    arguments = {"fit": fits["gibbs"], "new_inputs": NEW} | arguments
    with pytest.raises(error, match=message):
        alps.predict(arguments.pop("fit"), arguments.pop("new_inputs"), **arguments)


def test_cells_of_another_shape_are_an_error(fits):
    with pytest.raises(ValueError, match=r"new_y: .*\(5, 3\) for inputs of shape \(5,\), got \(3, 5\); .*pass new_y"):
        alps.log_predictive_density(fits["gibbs"], NEW, np.zeros((3, 5)))


def test_draws_that_are_not_finite_are_an_error(fits):
    fit = fits["gibbs"]
    broken = dataclasses.replace(fit, sites=fit.sites | {"H": fit.sites["H"].at[0, 0].set(np.nan)})
    with pytest.raises(ValueError, match=r"draws of H .*64-bit"):
        alps.predict(broken, NEW)
    with pytest.raises(ValueError, match=r"draws of H .*64-bit"):
        alps.to_datatree(broken)


@pytest.mark.parametrize("engine", [pytest.param("svi", marks=pytest.mark.slow), "gibbs"])
def test_several_columns_one_of_them_zeros(engine, tmp_path):
    """The latent of zeros is a constant; the other column's is found. A file keeps the columns."""
    rng = np.random.default_rng(0)
    inputs = np.stack([rng.normal(size=30), np.zeros(30)], 1)
    y = np.sin(2 * inputs[:, 0]) + 0.1 * rng.normal(size=30)
    covariances = {name: alps.on_column(kernels.ExpSquared(scale=1.0), k) for k, name in enumerate(("wave", "zeros"))}
    model, key = alps.ALPS(covariances, noise_variance=0.02), jax.random.key(0)
    if engine == "svi":
        fit = alps.fit_svi(model, inputs, y, num_inducing=12, num_steps=3000, rng_key=key, progress_bar=False)
    else:
        lengths = {"num_warmup": 50, "num_samples": 100, "num_chains": 2, "moves": "collapsed"}
        fit = alps.fit_gibbs(model, inputs, y, rng_key=key, progress_bar=False, **lengths)
    assert fit.inclusion_prob[0] > 0.9
    assert fit.inclusion_prob[1] < 0.5
    prediction = alps.predict(fit, inputs[:4])
    assert finite(prediction)
    np.testing.assert_array_equal(prediction["inputs"], inputs[:4])
    assert abs(prediction["mean"][:, 0] - np.sin(2 * inputs[:4, 0])).max() < 0.4
    alps.save(fit, tmp_path / "fit.nc")
    assert prediction.identical(alps.predict(alps.load(tmp_path / "fit.nc"), inputs[:4]))
    density = alps.log_predictive_density(fit, inputs[:4], y[:4])
    assert density.dims == ("time", "output")
    np.testing.assert_array_equal(density["time"], prediction["time"])
    np.testing.assert_array_equal(alps.to_datatree(fit)["constant_data"]["inputs"], inputs)
