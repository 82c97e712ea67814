"""Awkward inputs that people in this field really have: seventeen kinds, a section each.

What another file holds already is named in the section's first comment. Fits are short: they ask whether an answer is
finite and near the truth, not whether it has converged.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pandas as pd
import pytest
import reference
import xarray as xr
from numpyro.infer import MCMC, SVI, TraceMeanField_ELBO
from numpyro.infer.util import log_density
from tinygp import kernels

import alps_ppl as alps
from alps_ppl import plots
from alps_ppl.diagnostics import worst_convergence
from alps_ppl.features import pivoted_cholesky
from alps_ppl.guide import StructuredMeanField
from alps_ppl.prediction import posterior_draws
from alps_ppl.processes import GaussianProcess, SparseGaussianProcess
from alps_ppl.svi import in_logit_space, initial_inducing_inputs, relaxed_program

ENGINES = ("svi", "gibbs")
# SVI takes seconds to compile for each model: its half is with the slow tests.
both_engines = pytest.mark.parametrize("engine", [pytest.param("svi", marks=pytest.mark.slow), "gibbs"])


def fit(engine, model, t, y, *, num_steps=300, num_samples=100, seed=0, **settings):
    """A short fit."""
    key = jax.random.key(seed)
    if engine == "svi":
        settings = {"num_inducing": 8, "progress_bar": False} | settings
        return alps.fit_svi(model, t, y, num_steps=num_steps, rng_key=key, **settings)
    mcmc = MCMC(
        alps.ALPSGibbs(model, **settings), num_warmup=num_samples // 2, num_samples=num_samples, progress_bar=False
    )
    mcmc.run(key, t, y)
    return mcmc


def predicted(engine, model, t, y, new=None, *, include_noise=False, **settings):
    posterior = fit(engine, model, t, y, **settings)
    return alps.predict(posterior, model, t, y, t if new is None else new, include_noise=include_noise)


def finite(prediction: xr.Dataset) -> bool:
    return all(np.isfinite(values).all() for values in prediction.data_vars.values())


def sines(n=40, p=2, *, noise=0.1, seed=0):
    """Times, noisy sines of period 7, and the sines themselves."""
    rng = np.random.default_rng(seed)
    t = np.arange(float(n))
    f = np.sin(2 * np.pi * t / 7)[:, None] * np.linspace(1.0, -0.8, p)
    return t, f + noise * rng.normal(size=(n, p)), f


def periods(outputs=2, *lengths, **settings):
    """A model of linear-periodic latents, T = 7 and T = 5 unless said otherwise."""
    latents = {f"T={period}": alps.linear_periodic(period) for period in lengths or (7.0, 5.0)}
    return alps.ALPS(latents, outputs, **({"noise_variance": 0.01} | settings))


def site_values(model, n, seed=0):
    """Values of x, b and H for ``n`` times."""
    rng = np.random.default_rng(seed)
    p, m = model.mixing_variance.shape
    return {"x": rng.normal(size=(m, n)), "b": rng.integers(0, 2, m), "H": rng.normal(size=(p, m))}


def loop_density(model, t, y, sites):
    return reference.log_joint(
        model.covariances,
        t,
        y,
        **sites,
        noise_variance=model.noise_variance,
        inclusion_prob=model.inclusion_prob,
        mixing_variance=model.mixing_variance,
    )


# --- 1: missing cells. The program against the loop with NaN: test_model.test_log_density_is_the_loop; an inf and all
# NaN in `check`: test_model.test_bad_data; in Data: test_data.test_bad_data and test_nothing_left_to_fit.


@pytest.fixture(scope="module")
def holes():
    """Scattered cells, a whole row and a whole output missing."""
    t, y, f = sines(p=3)
    y[[2, 9], [0, 1]] = np.nan
    y[20] = np.nan
    y[:, 2] = np.nan
    return periods(3), t, y, f


@both_engines
def test_01_missing_cells_are_filled_in(engine, holes):
    model, t, y, f = holes
    posterior = fit(engine, model, t, y, num_steps=3000, num_samples=1000)
    prediction = alps.predict(posterior, model, t, y, t, include_noise=False)
    assert abs(prediction["mean"].values - f)[:, :2].max() < 0.15
    # The output without a cell: mean 0, and the prior's H on the latents that are on.
    draws = posterior_draws(posterior, model, jnp.asarray(t), jnp.asarray(t), 1000)
    on = np.asarray(draws.gated_H[:, 0] != 0)
    x = np.stack([np.asarray(draws.weights * draws.basis[3])[:, draws.owner == j].sum(1) for j in range(2)], 1)
    expected = np.sqrt((on * (x**2 + np.asarray(draws.latent_variance[:, 3]))).sum(1).mean())
    assert abs(float(prediction["mean"][3, 2])) < 6 * expected / np.sqrt(len(x) / 4)
    assert float(prediction["sd"][3, 2]) == pytest.approx(expected, rel=0.2)


@both_engines
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.nan, "y: every one of its 80 cells is missing"),
        (np.inf, "y: expected finite numbers or NaN .a missing cell., got inf in row 0, output 'y1'"),
    ],
)
def test_01_nothing_observed_and_inf_are_errors(engine, bad, message):
    with pytest.raises(ValueError, match=message):
        fit(engine, periods(), sines()[0], np.full((40, 2), bad))


# --- 2: orientation. Fortran order, frames: test_model.test_inputs_of_one_column_and_lists_and_frames_are_the_same; a
# frame in another order: test_a_frame_with_its_columns_in_another_order_is_an_error; shapes: test_bad_data.


def test_02_rows_are_times_when_y_is_square():
    t, y, _ = sines(3, 3)
    roughs = {"a": kernels.Exp(scale=1.0), "b": kernels.Exp(scale=2.0)}
    model = alps.ALPS(roughs, 3, noise_variance=0.1, jitter=0.0)
    sites = site_values(model, 3)
    densities = [float(log_density(model, (t, values), {}, sites)[0]) for values in (y, y.T)]
    assert densities == pytest.approx([loop_density(model, t, values, sites) for values in (y, y.T)], abs=1e-9)
    assert abs(densities[0] - densities[1]) > 1
    np.testing.assert_allclose(alps.Data(t, y).loc, y.mean(0))


def test_02_one_dimension_lists_and_frames():
    t, y, _ = sines(5, 2)
    one, two = periods(1), periods(2)
    for values in (y[:, 0], y[:, 0].tolist(), pd.Series(y[:, 0]), y[:, :1].tolist()):
        np.testing.assert_array_equal(one.check(t, values)[1], y[:, :1])
    for values in (y.tolist(), pd.DataFrame(y), [list(row) for row in y]):
        np.testing.assert_array_equal(two.check(t, values)[1], y)
    with pytest.raises(ValueError, match=r"expected shape \(time, output\) = \(5, 2\).*got \(10,\)"):
        two.check(t, y.ravel())


@pytest.mark.parametrize("shape", [(2, 40), (39, 2), (40,)])
def test_02_a_mismatch_names_both_shapes(shape):
    got = str(shape).replace("(", r"\(").replace(")", r"\)")
    for engine in ENGINES:
        with pytest.raises(ValueError, match=rf"\(40, 2\) for inputs of shape \(40,\).*got {got}; rows are times"):
            fit(engine, periods(), np.arange(40.0), np.zeros(shape))
    if len(shape) == 2:
        with pytest.raises(ValueError, match=rf"with 40 times.*got {got}; rows are times"):
            alps.Data(np.arange(40.0), np.zeros(shape))


# --- 3: inputs. Dates, durations and their labels: test_data.test_dates_become_hours_or_days; numbers of any dtype:
# test_numbers_of_any_dtype. Unsorted, repeated times against dense conditioning: test_prediction's fixtures.


def test_03_shapes_and_types_of_inputs_agree():
    model, (t, y, _) = periods(), sines()
    sites = site_values(model, 40)
    expected = float(log_density(model, (t, y), {}, sites)[0])
    for inputs in (t[:, None], t.astype(int), t.astype(np.uint8), t.tolist(), pd.Index(t), pd.Series(t, index=t[::-1])):
        assert float(log_density(model, (inputs, y), {}, sites)[0]) == expected
    wide = np.random.default_rng(0).normal(size=(40, 10))
    wide[:, 4] = t
    latents = {f"T={period}": alps.on_column(alps.linear_periodic(period), 4) for period in (7.0, 5.0)}
    column = alps.ALPS(latents, 2, noise_variance=0.01)
    assert float(log_density(column, (wide, y), {}, sites)[0]) == pytest.approx(expected, rel=1e-12)


@both_engines
def test_03_unsorted_times_with_repeats(engine):
    """In any order, and the mean of the two values where a time is there twice."""
    t, y, f = sines(noise=0.05)
    order = np.random.default_rng(1).permutation(80)
    twice, values = np.r_[t, t][order], np.r_[y, y + 0.2][order]
    prediction = predicted(engine, periods(noise_variance=0.02), twice, values, num_steps=3000)
    assert abs(prediction["mean"].values - np.r_[f, f][order] - 0.1).max() < 0.2


@pytest.mark.parametrize("inputs", [np.array(["2024-01-01", "2024-01-02"], "M8[D]"), pd.date_range("2024", periods=2)])
def test_03_dates_are_hours_or_days_or_an_error_that_names_data(inputs):
    with pytest.raises(TypeError, match=r"got dates or durations; alps\.Data turns dates into hours or days"):
        periods().check(inputs, np.zeros((2, 2)))
    data = alps.Data(inputs, np.eye(2))
    np.testing.assert_array_equal(data.inputs, [0, 1])
    assert data.input_label == "days since 2024-01-01 00:00"


@both_engines
def test_03_unix_seconds(engine):
    """An offset of 1.6e9 changes nothing: the predictions are those of the same seed without it."""
    model, (t, y, _) = periods(), sines()
    plain, shifted = (predicted(engine, model, t + offset, y) for offset in (0.0, 1.6e9))
    np.testing.assert_allclose(shifted["mean"], plain["mean"], atol=1e-4)
    assert len(pivoted_cholesky(alps.linear_periodic(7.0), 1.6e9 + t, max_rank=40, tolerance=1e-10)[1]) == 2


def test_03_unix_seconds_in_float32_are_not_rounded_silently():
    """The warning's remedy gives the right answer; dates have no offset at all."""
    t, y, f = sines()
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match=r"float32 moves them by up to \d+ .*subtract the first time.*enable_x64"):
            periods().check(1.6e9 + t, y)
        data = alps.Data(pd.to_datetime(1.6e9 + 3600 * t, unit="s"), y)
        prediction = predicted("gibbs", periods(), data.inputs, y, blocks="collapsed")
    assert abs(prediction["mean"].values - f).max() < 0.2


# --- 4: duplicated inputs. The features of these: test_processes.test_duplicated_inputs_and_a_zero_column.


@both_engines
def test_04_four_equal_times(engine):
    """E[f | y] by quadrature over h, as f | h is Gaussian. A mean field over h and x is near it, the sampler exact."""
    y, noise = np.array([0.5, 0.9, 0.7, 1.1]), 0.1
    h = np.linspace(-6, 6, 20_001)
    log_weight = -0.5 * h**2 - 0.5 * np.log(noise + 4 * h**2) + 0.5 * h**2 * y.sum() ** 2 / (noise * (noise + 4 * h**2))
    weight = np.exp(log_weight - log_weight.max())
    exact = (weight * h**2 * y.sum() / (noise + 4 * h**2)).sum() / weight.sum()
    model = alps.ALPS({"x": kernels.ExpSquared(scale=1.0)}, inclusion_prob=1.0, noise_variance=noise)
    prediction = predicted(engine, model, np.ones(4), y, num_steps=3000, num_samples=4000)
    np.testing.assert_allclose(prediction["mean"].values, exact, atol=0.02 if engine == "gibbs" else 0.1)


@both_engines
def test_04_a_smooth_covariance_on_close_inputs(engine):
    t = np.linspace(0, 4 * np.pi, 100)
    covariance = 3.19 * kernels.ExpSquared(scale=1.47)
    f = np.sin(t)[:, None]
    y = f + 0.1 * np.random.default_rng(0).normal(size=(100, 1))
    assert np.isfinite(GaussianProcess([covariance], jnp.asarray(t)).log_prob(f.T))
    model = alps.ALPS({"smooth": covariance}, noise_variance=0.01)
    prediction = predicted(engine, model, t, y, num_inducing=20, num_steps=3000) if engine == "svi" else predicted(
        engine, model, t, y
    )  # fmt: skip
    assert abs(prediction["mean"].values - f).max() < 0.2


# --- 5: gradients at zero distance. Singular Gram matrices of other covariances, in both precisions:
# test_processes.test_gradients_are_finite_where_matrices_are_singular.


@pytest.mark.parametrize("x64", [True, False])
def test_05_gradients_at_zero_distance(x64):
    """Times that repeat, and inducing inputs on them, one of them twice."""
    with jax.enable_x64(x64):
        roughs = [kernels.Exp(scale=1.0), kernels.Matern32(scale=1.0), kernels.Matern52(scale=1.0)]
        t, z = jnp.array([0.0, 1.0, 1.0, 2.0, 2.0]), jnp.array([0.0, 1.0, 2.0, 2.0])
        loc, tril = jnp.ones((3, 4)), jnp.broadcast_to(jnp.eye(4), (3, 4, 4))

        def total(scale, t, z, loc, tril):
            covariances = [type(rough)(scale=s) for rough, s in zip(roughs, scale, strict=True)]
            mean, variance = SparseGaussianProcess(covariances, t, z, loc, tril).marginals()
            return (mean + jnp.sqrt(variance)).sum()

        gradients = jax.jit(jax.grad(total, (0, 1, 2, 3, 4)))(jnp.ones(3), t, z, loc, tril)
    assert all(np.isfinite(leaf).all() for leaf in gradients)
    assert abs(gradients[3]).max() > 0.1


# --- 6: precision. Gates' gradients: test_svi.test_gate_kl_gradient_in_float32; warnings of what float32 can't resolve,
# noise and outputs far from 0: test_gibbs.test_float32_warns_of_noise_it_cannot_resolve and
# test_model.test_float32_warns_once_of_an_output_far_from_zero.


@both_engines
@pytest.mark.slow
def test_06_the_same_fit_in_float32(engine):
    """Gates and predictions right within the noise, which is learnt."""
    t, y, f = sines(noise=0.3)
    with jax.enable_x64(False):
        latents = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0), "rough": kernels.Exp(scale=5.0)}
        model = alps.ALPS(latents, 2, noise_variance=dist.InverseGamma(2.0, 0.1))
        posterior = fit(engine, model, t, y, num_steps=2000, num_samples=300)
        prediction = alps.predict(posterior, model, t, y, t, include_noise=False)
        table = alps.inclusion_table(alps.to_datatree(posterior, model, t, y, num_draws=300))
    assert prediction["mean"].dtype == np.float32
    assert table.probability[0] > 0.95
    assert float(np.sqrt(((prediction["mean"].values - f) ** 2).mean())) < 0.3


@pytest.mark.slow
def test_06_svi_in_float32_with_too_little_noise_is_finite_or_an_error_with_the_remedy():
    t, y, _ = sines()
    with jax.enable_x64(False):
        model = periods(noise_variance=1e-9)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*enable_x64")
                assert finite(predicted("svi", model, t, y, num_steps=500))
        except alps.NonFiniteLossError as error:
            assert "enable_x64" in str(error)  # noqa: PT017


# --- 7: inducing inputs. ELBOs at l = n: test_svi.test_one_latent_bound_is_tight_at_every_input.


@pytest.mark.parametrize(
    ("num_inducing", "num_steps"),
    [(5, 300), (60, 100), *(pytest.param(k, 5000, marks=pytest.mark.slow) for k in (5, 6, 20, 50, 100))],
)
@pytest.mark.slow
def test_07_any_number_of_inducing_inputs(num_inducing, num_steps):
    """Fewer than the 50 times, as many, and more."""
    t, y, _ = sines(50)
    latents = {"T=7": alps.linear_periodic(7.0), "smooth": kernels.ExpSquared(scale=10.0)}
    model = alps.ALPS(latents, 2, noise_variance=0.1)
    svi = fit("svi", model, t, y, num_inducing=num_inducing, num_steps=num_steps)
    assert len(svi.losses) == num_steps
    assert np.isfinite(svi.losses).all()
    assert finite(alps.predict(svi, model, t, y, t))


@pytest.mark.parametrize("num_steps", [20, pytest.param(5000, marks=pytest.mark.slow)])
def test_07_integer_times_and_one_hundred_inducing_inputs(num_steps):
    """Period 7 on t = 0 to 99: rows of K_zz are nearly equal many times over."""
    t, y, _ = sines(100)
    svi = fit("svi", periods(2, 7.0, noise_variance=0.1), t.astype(int), y, num_inducing=100, num_steps=num_steps)
    assert len(svi.losses) == num_steps
    assert np.isfinite(svi.losses).all()


@pytest.mark.parametrize("num_steps", [300, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_07_two_inducing_inputs_equal_at_the_start(num_steps):
    """They may stay equal; the fit is finite all the same."""
    model, (t, y, _) = periods(noise_variance=0.1), sines()
    z = jnp.array([3.0, 3.0, 10.0, 17.0, 30.0])
    svi = SVI(
        relaxed_program(model), in_logit_space(StructuredMeanField(model, z)), optax.adam(0.01), TraceMeanField_ELBO()
    )
    result = svi.run(jax.random.key(0), num_steps, t, y, relaxed=True, temperature=0.66, progress_bar=False)
    assert np.isfinite(result.losses).all()
    assert all(np.isfinite(leaf).all() for leaf in result.params.values())


# --- 8: gates at the edge. Never and always in the program, the sampler and the ELBO: test_model.test_never_and_always,
# test_gibbs.test_draws_at_never_and_always, test_svi.test_a_certain_gate_costs_no_kl; logits of +-40: the gradient in
# test_svi.test_gate_kl_gradient_in_float32; temperatures: test_svi.test_bad_settings.


@both_engines
def test_08_never_always_and_nearly(engine):
    """0 and 1 are never and always against the data, which hold T = 7 alone; 1e-8 and 1 - 1e-8 are finite."""
    t, y, _ = sines(noise=0.3)
    model = periods(2, 7.0, 5.0, 3.0, 4.0, inclusion_prob=[0.0, 1.0, 1e-8, 1 - 1e-8], noise_variance=0.5)
    posterior = fit(engine, model, t, y, num_steps=2000, blocks="collapsed") if engine == "gibbs" else fit(
        engine, model, t, y, num_steps=2000
    )  # fmt: skip
    table = alps.inclusion_table(alps.to_datatree(posterior, model, t, y, num_draws=100))
    assert table.probability[0] == 0
    assert table.probability[1] == 1
    assert table.probability[2] < 0.05
    assert table.probability[3] > 0.95
    np.testing.assert_allclose(table.prior, model.inclusion_prob)
    assert finite(alps.predict(posterior, model, t, y, t))


def test_08_logits_of_forty_are_finite():
    """The discrete and the relaxed loss and its gradient, at the temperatures' extremes."""
    model, (t, y, _) = periods(), sines()
    guide = StructuredMeanField(model, initial_inducing_inputs(t, 5))
    svi = SVI(relaxed_program(model), in_logit_space(guide), optax.adam(0.01), TraceMeanField_ELBO())
    params = svi.get_params(svi.init(jax.random.key(0), t, y, relaxed=True, temperature=0.66))
    params["b_logits"] = jnp.array([40.0, -40.0])

    @jax.jit
    def loss(params, temperature):
        key = jax.random.key(1)
        return TraceMeanField_ELBO().loss(
            key, params, svi.model, svi.guide, t, y, relaxed=True, temperature=temperature
        )

    for temperature in (0.1, 0.66, 10.0):
        value, gradient = jax.value_and_grad(loss)(params, temperature)
        assert np.isfinite(value)
        assert all(np.isfinite(leaf).all() for leaf in gradient.values())
    elbo, _ = alps.discrete_elbo(alps.SVIFit(model, guide, params, [], []), t, y, jax.random.key(0))
    assert np.isfinite(elbo)
    np.testing.assert_allclose(guide.inclusion_prob(params), [1, 0], atol=1e-15)


@pytest.mark.parametrize("temperature", [0.0, -1.0, np.nan, np.inf])
def test_08_a_temperature_that_is_not_positive_is_an_error(temperature):
    t, y, _ = sines()
    with pytest.raises(ValueError, match="temperature: expected positive, finite temperatures, got"):
        fit("svi", periods(), t, y, temperature=temperature)


# --- 9: scales. The standardisation itself: test_data.test_scales_and_offsets.


@pytest.mark.parametrize(
    ("factor", "offset"),
    [(1e8, 0.0), (1e-8, 0.0), (1.0, 1e6), (np.array([1.0, 1e6]), 0.0), (1e8, 1e14)],
)
def test_09_data_in_any_unit_is_the_same_fit(factor, offset):
    """What is fitted is the same to round-off, and predictions go back to the unit."""
    t, y, _ = sines()
    plain, data = alps.Data(t, y), alps.Data(t, y * factor + offset)
    np.testing.assert_allclose(data.train_y, plain.train_y, atol=1e-6)
    cells = xr.DataArray(plain.standardised, dims=("time", "output"), coords={"output": plain.outputs})
    units = data.to_units(xr.Dataset({"mean": cells, "sd": abs(cells), "lower": cells, "upper": cells}))
    np.testing.assert_allclose(units["mean"], y * factor + offset, rtol=1e-9)
    np.testing.assert_allclose(units["sd"], abs(plain.standardised) * plain.scale * factor, rtol=1e-6)


@pytest.mark.parametrize("factor", [1e8, np.array([1e-8, 1e-2])], ids=["1e8", "columns"])
@both_engines
def test_09_arrays_in_any_unit_with_variances_in_that_unit(engine, factor):
    """Nothing is rescaled behind the user's back: s and sigma^2 in y's unit give the same gates and predictions."""
    t, y, f = sines()
    settings = {"num_steps": 2000} if engine == "svi" else {"blocks": "collapsed"}
    variance = np.broadcast_to(factor, 2) ** 2
    model = periods(mixing_variance=variance, noise_variance=0.1 * variance)
    posterior = fit(engine, model, t, y * factor, **settings)
    prediction = alps.predict(posterior, model, t, y * factor, t, include_noise=False)
    gates = alps.inclusion_table(alps.to_datatree(posterior, model, t, y * factor, num_draws=100)).probability
    assert gates[0] > 0.95
    assert gates[1] < 0.2
    assert abs(prediction["mean"].values / factor - f).max() < 0.2


@both_engines
def test_09_next_to_no_noise(engine):
    """The data are one sine to 12 digits: followed exactly by the sampler, and finite in SVI."""
    t, _, f = sines()
    settings = {"num_steps": 1000} if engine == "svi" else {}
    prediction = predicted(engine, periods(noise_variance=1e-12), t, f, **settings)
    assert finite(prediction)
    if engine == "gibbs":
        assert abs(prediction["mean"].values - f).max() < 1e-4


# --- 10: constant data. More shapes for the sampler: test_gibbs.test_tiny_and_constant_data; sds of 1 for constant
# outputs: test_data.test_train_cells_are_standardised_by_themselves.


@both_engines
@pytest.mark.parametrize("case", ["some", "all", 1, pytest.param(2, marks=pytest.mark.slow)])
def test_10_constant_data(engine, case):
    """No NaN from a zero standard deviation, with learnt noise, after Data's standardisation; 1 and 2 are times."""
    t, y, _ = sines(12, 3)
    if case in ("some", "all"):
        y[:, slice(1 if case == "some" else None)] = 5.0
        y[1:, 1] = np.nan
    else:
        t, y = t[:case], y[:case]
    data = alps.Data(t, y)
    model = periods(data.outputs, noise_variance=dist.InverseGamma(2.0, 0.1))
    settings = {"num_steps": 200} if engine == "svi" else {"blocks": "collapsed"}
    prediction = data.to_units(predicted(engine, model, data.train_inputs, data.train_y, **settings))
    assert prediction["mean"].shape == (len(t), 3)
    assert finite(prediction)
    if case in ("some", "all"):
        assert abs(prediction["mean"][:, 0] - 5.0).max() < 0.5


# --- 11: axes that broadcast. The density at six shapes: test_model.test_no_axis_is_broadcast; the gates' moves against
# all gate vectors: test_exact.test_all_gate_vectors_with_H_held; blocks: test_conditionals.


@pytest.mark.parametrize(("m", "n", "p"), [(2, 2, 2), (3, 2, 1), (1, 2, 3)])
@both_engines
def test_11_predictions_are_the_loops_at_any_shape(engine, m, n, p):
    rng = np.random.default_rng(m * 100 + n * 10 + p)
    latents = {f"x{j}": kernels.ExpSquared(scale=1.0 + j) for j in range(m)}
    noise, s = rng.uniform(0.1, 1, p), rng.uniform(0.5, 2, (p, m))
    model = alps.ALPS(latents, p, mixing_variance=s, noise_variance=noise)
    t, y = np.arange(n) * 0.7, rng.normal(size=(n, p))
    new = np.array([0.3, 5.0])[: max(1, n - 1)]
    settings = {"num_steps": 20, "num_inducing": 2} if engine == "svi" else {"blocks": "collapsed", "num_samples": 20}
    posterior = fit(engine, model, t, y, **settings)
    prediction = alps.predict(posterior, model, t, y, new, num_draws=20)
    draws = posterior_draws(posterior, model, jnp.asarray(t), jnp.asarray(new), 20)
    assert prediction["mean"].shape == (len(new), p)
    for k, i in np.ndindex(len(new), p):
        locs, variances = [], []
        for weights, H in zip(np.asarray(draws.weights), np.asarray(draws.gated_H), strict=True):
            x = [(np.asarray(draws.basis[k]) * weights)[draws.owner == j].sum() for j in range(m)]
            locs.append(sum(H[i, j] * x[j] for j in range(m)))
            variances.append(sum(H[i, j] ** 2 * draws.latent_variance[j, k] for j in range(m)) + noise[i])
        assert float(prediction["mean"][k, i]) == pytest.approx(np.mean(locs), abs=1e-9)
        assert float(prediction["sd"][k, i]) == pytest.approx(np.sqrt(np.mean(variances) + np.var(locs)), abs=1e-9)
    # The draws of x at the data are those of the weights: the log likelihood of the tree is the loop's.
    tree = alps.to_datatree(posterior, model, t, y, num_draws=20)
    sites = tree["posterior"].isel(chain=0, draw=0)
    for k, i in np.ndindex(n, p):
        loc = sum(float(sites["H"][i, j] * sites["b"][j] * sites["x"][j, k]) for j in range(m))
        expected = -0.5 * np.log(2 * np.pi * noise[i]) - 0.5 * (y[k, i] - loc) ** 2 / noise[i]
        assert float(tree["log_likelihood"]["y"][0, 0, k, i]) == pytest.approx(expected, rel=1e-6)


# --- 12: names. Duplicates: test_model.test_bad_models; a latent named like a group:
# test_diagnostics.test_a_latent_may_be_named_like_a_group.


def test_12_duplicate_names_are_errors():
    pair = [("a", alps.linear_periodic(7.0)), ("a", alps.linear_periodic(5.0))]
    with pytest.raises(ValueError, match=r"latent names must differ, got \['a'\] more than once"):
        alps.ALPS(pair, noise_variance=0.1)
    with pytest.raises(ValueError, match="no name twice"):
        alps.ALPS(pair[:1], ["u", "u"], noise_variance=0.1)


def test_12_latents_and_outputs_named_alike(tmp_path):
    """Also like the sites and the dims."""
    t, y, _ = sines()
    model = alps.ALPS(
        {"H": alps.linear_periodic(7.0), "time": alps.linear_periodic(5.0)}, ["time", "H"], noise_variance=0.1
    )
    posterior = fit("gibbs", model, t, y, blocks="collapsed")
    tree = alps.to_datatree(posterior, model, t, y)
    tree.to_netcdf(tmp_path / "tree.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "tree.nc", engine="h5netcdf") as read:
        H = read["posterior"]["H"].sel(output="time", latent="H")
        np.testing.assert_array_equal(H[0], posterior.get_samples()["H"][:, 0, 0])
    assert list(alps.inclusion_table(tree).latent) == ["H", "time"]


def test_12_names_line_up_after_dropping_latents():
    """Latents 1, 3 and 4 of 6 dropped: the others keep their names in the tree, the table, H and the plots."""
    import matplotlib.pyplot as plt

    t, y, _ = sines()
    lengths = (4.0, 7.0, 3.0, 11.0, 5.0, 13.0)
    kept = [lengths[k] for k in (1, 4, 5)]
    model = periods(2, *kept, noise_variance=0.1)
    names = [f"T={length}" for length in kept]
    posterior = fit("gibbs", model, t, y, blocks="collapsed")
    tree = alps.to_datatree(posterior, model, t, y)
    table = alps.inclusion_table(tree)
    assert list(tree["posterior"]["latent"].values) == list(table.latent) == names
    samples = posterior.get_samples()
    for j, name in enumerate(names):
        np.testing.assert_array_equal(tree["posterior"]["H"].sel(latent=name)[0], samples["H"][:, :, j])
        np.testing.assert_array_equal(tree["posterior"]["b"].sel(latent=name)[0], samples["b"][:, j])
    assert table.set_index("latent").probability.idxmax() == "T=7.0"
    labels = [text.get_text() for text in np.ravel(plots.plot_mixing(tree))[0].get_xticklabels()]
    assert labels == names
    assert [label for label in plot_texts(plots.plot_inclusion(table)) if label in names] == names
    plt.close("all")


def test_12_predictions_of_other_outputs_have_no_units_here():
    """The model's outputs aren't the table's: an error, where xarray's join would leave none of them."""
    data = alps.Data(*sines()[:2])
    cells = xr.DataArray(data.standardised, dims=("time", "output"), coords={"output": ["y1", "y2"]})
    with pytest.raises(ValueError, match=r"expected this table's outputs, \['1', '2'\], got \['y1', 'y2'\]"):
        data.to_units(xr.Dataset(dict.fromkeys(("mean", "sd", "lower", "upper"), cells)))


def plot_texts(axes):
    axis = np.ravel(axes)[0]
    return [text.get_text() for text in (*axis.get_xticklabels(), *axis.get_yticklabels())]


# --- 13: minibatches. Over a partition: test_svi.test_mean_of_minibatch_elbos_is_the_full_one.


def test_13_batches_of_ten_from_103_are_unbiased():
    """Random batches, as a step draws them, against the full ELBO, 1,000 draws: within 5 standard errors."""
    model, (t, y, _) = periods(noise_variance=0.1), sines(103)
    y[::9, 0] = np.nan
    t, y = jnp.asarray(t), jnp.asarray(y)
    guide = in_logit_space(StructuredMeanField(model, initial_inducing_inputs(t, 5)))
    program = relaxed_program(model)
    svi = SVI(program, guide, optax.adam(0.01), TraceMeanField_ELBO())
    params = svi.get_params(svi.init(jax.random.key(0), t, y, relaxed=True, temperature=0.66))

    def loss(key, inputs, values, **kwargs):
        return TraceMeanField_ELBO().loss(
            key, params, program, guide, inputs, values, relaxed=True, temperature=0.66, **kwargs
        )

    def difference(key):
        key, batch_key = jax.random.split(key)
        batch = jax.random.choice(batch_key, 103, (10,), replace=False)
        return loss(key, t[batch], y[batch], num_times=103) - loss(key, t, y)

    draws = np.asarray(jax.lax.map(difference, jax.random.split(jax.random.key(1), 1000), batch_size=500))
    assert abs(draws.mean()) < 5 * draws.std() / np.sqrt(len(draws))


@pytest.mark.slow
def test_13_fits_in_batches():
    model, (t, y, _) = periods(noise_variance=0.1), sines(103)
    svi = fit("svi", model, t, y, num_steps=2000, batch_size=10)
    assert svi.inclusion_prob[0] > 0.95
    assert np.isfinite(svi.losses).all()
    with pytest.raises(ValueError, match="batch_size: expected at most the 103 times there are, got 104"):
        fit("svi", model, t, y, batch_size=104)


# --- 14: prediction. One new input, none, the training inputs, order: test_prediction.test_shapes_and_order;
# the mixture itself: test_mean_and_sd_are_the_mixtures.


@both_engines
def test_14_far_away_is_the_priors_variance(engine):
    """No mean, and the latent's prior variance of 2 under the draws of H, the noise on top."""
    t, y, _ = sines()
    model = alps.ALPS({"smooth": 2.0 * kernels.ExpSquared(scale=2.0)}, 2, inclusion_prob=1.0, noise_variance=[0.1, 0.2])
    posterior = fit(engine, model, t, y, num_steps=500)
    new = np.array([1e4, 20.5, -1e6])
    prediction = alps.predict(posterior, model, t, y, new)
    H = np.asarray(posterior_draws(posterior, model, jnp.asarray(t), jnp.asarray(new), 1000).gated_H)[..., 0]
    far = prediction.isel(time=[0, 2])
    np.testing.assert_allclose(far["mean"], 0, atol=1e-9)
    np.testing.assert_allclose(far["sd"], np.tile(np.sqrt(2 * (H**2).mean(0) + [0.1, 0.2]), (2, 1)), rtol=1e-6)
    assert (prediction["sd"][1] < far["sd"]).all()
    np.testing.assert_array_equal(prediction["time"], new)


# --- 15: two latents, one covariance. The table's rows: test_diagnostics.test_table_rows_and_group; chains that sit on
# one twin each: test_members_of_a_group_are_not_reported_as_a_failure.


def test_15_the_pairs_probability_agrees_over_chains_started_off_and_on():
    t, y, _ = sines(noise=0.3)
    twins = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0), "again": alps.linear_periodic(7.0)}
    model = alps.ALPS(twins, 2, noise_variance=0.1)
    starts = np.repeat([[0, 0, 0], [1, 1, 1]], 2, axis=0)
    mcmc = MCMC(
        alps.ALPSGibbs(model), num_warmup=100, num_samples=300, num_chains=4, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(0), t, y, init_params={"b": jnp.asarray(starts)})
    table = alps.inclusion_table(alps.to_datatree(mcmc, model, t, y))
    b = np.asarray(mcmc.get_samples(group_by_chain=True)["b"])
    pair = (b[..., 0] | b[..., 2]).mean(1)
    np.testing.assert_allclose(pair, 1.0, atol=0.01)
    assert table.set_index("latent").probability["T=7 or again"] == pytest.approx(pair.mean())
    assert worst_convergence(table, "gibbs")[0] < 1.05


# --- 16: hard gates in SVI. With the guide alone and a constant temperature:
# test_svi.test_the_discrete_program_in_svi_is_an_error.


def test_16_the_discrete_program_given_to_svi_is_an_error():
    model, (t, y, _) = periods(), sines()
    svi = SVI(model, StructuredMeanField(model, t[::6]), optax.adam(0.01), TraceMeanField_ELBO())
    for call in (
        lambda: svi.init(jax.random.key(0), t, y),
        lambda: svi.run(jax.random.key(0), 5, t, y, progress_bar=False),
    ):
        with pytest.raises(ValueError, match=r"a Bernoulli gate has no gradient\. Pass relaxed=True to svi\.init"):
            call()


# --- 17: a learning rate of 1, a zero column, memory layout. A linear covariance of a zero column, of rank 0:
# test_gibbs.test_parameter_free_and_zero_covariances.


@pytest.mark.parametrize("learning_rate", [1.0, 100.0])
@pytest.mark.slow
def test_17_a_large_learning_rate_is_finite_or_named(learning_rate):
    t, y, _ = sines()
    model = periods(noise_variance=dist.InverseGamma(2.0, 0.1))
    try:
        svi = fit("svi", model, t, y, learning_rate=learning_rate, num_steps=500)
        assert np.isfinite(svi.losses).all()
        assert finite(alps.predict(svi, model, t, y, t))
    except alps.NonFiniteLossError as error:
        assert f"smaller learning_rate (now {learning_rate})" in str(error)  # noqa: PT017


@both_engines
def test_17_a_column_of_zeros(engine):
    """Its latent is a constant; the other column's is found."""
    t, y, _ = sines()
    latents = {
        "T=7": alps.on_column(alps.linear_periodic(7.0), 0),
        "zeros": alps.on_column(kernels.ExpSquared(scale=1.0), 1),
    }
    model = alps.ALPS(latents, 2, noise_variance=0.1)
    inputs = np.stack([t, np.zeros(40)], 1)
    settings = {"num_steps": 1500} if engine == "svi" else {}
    posterior = fit(engine, model, inputs, y, **settings)
    table = alps.inclusion_table(alps.to_datatree(posterior, model, inputs, y, num_draws=100))
    assert table.probability[0] > 0.9
    assert table.probability[1] < 0.5
    assert finite(alps.predict(posterior, model, inputs, y, inputs))


@both_engines
def test_17_fortran_order_and_read_only_arrays(engine):
    """The same numbers to the last bit, from strided inputs too."""
    model, (t, y, _) = periods(), sines()
    settings = {"num_steps": 20} if engine == "svi" else {"num_samples": 10, "blocks": "collapsed"}
    expected = predicted(engine, model, t, y, **settings)
    inputs, values = np.repeat(t, 2)[::2], np.asfortranarray(y)
    inputs.flags.writeable = values.flags.writeable = False
    xr.testing.assert_identical(predicted(engine, model, inputs, values, **settings), expected)
    np.testing.assert_array_equal(alps.Data(inputs, values).train_y, alps.Data(t, y).train_y)
