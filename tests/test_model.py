"""The program against the loop, and what it is to NumPyro."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import reference
from numpyro import handlers
from numpyro.infer import MCMC, Predictive, log_likelihood
from numpyro.infer.util import log_density
from tinygp import kernels

import alps_ppl as alps


def prior_draw(model, t, seed):
    trace = handlers.trace(handlers.seed(model, seed)).get_trace(t)
    return {name: trace[name]["value"] for name in ("x", "b", "H", "noise_variance") if name in trace}


@pytest.mark.parametrize("seed", range(3))
def test_log_density_is_the_loop(rough_model, rough_data, seed):
    t, y = rough_data
    sites = prior_draw(rough_model, t, seed)
    expected = reference.log_joint(
        rough_model.covariances,
        t,
        y,
        **{name: np.asarray(value) for name, value in sites.items()},
        inclusion_prob=rough_model.inclusion_prob,
        mixing_variance=rough_model.mixing_variance,
        noise_prior=(3.0, 0.4),
    )
    assert log_density(rough_model, (t, y), {}, sites)[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("m", "p", "n"), [(2, 2, 2), (3, 1, 4), (1, 3, 4), (4, 2, 3), (3, 3, 3), (1, 1, 1)])
def test_no_axis_is_broadcast(m, p, n):
    """A wrong axis wouldn't fail loudly where sizes are equal: per-output and per-latent arguments differ here."""
    rng = np.random.default_rng(m * 100 + p * 10 + n)
    covariances = {f"x{j}": kernels.Exp(scale=1.0 + j) for j in range(m)}
    prob, noise, s = rng.uniform(0.1, 0.9, m), rng.uniform(0.1, 1, p), rng.uniform(0.5, 2, p)
    model = alps.ALPS(covariances, p, inclusion_prob=prob, mixing_variance=s, noise_variance=noise, jitter=0.0)
    t, y = np.arange(n) * 0.7, rng.normal(size=(n, p))
    sites = prior_draw(model, t, 0)
    assert sites["x"].shape == (m, n)
    assert sites["H"].shape == (p, m)
    expected = reference.log_joint(
        model.covariances,
        t,
        y,
        **{name: np.asarray(value) for name, value in sites.items()},
        noise_variance=noise,
        inclusion_prob=prob,
        mixing_variance=np.repeat(s[:, None], m, 1),
    )
    assert log_density(model, (t, y), {}, sites)[0] == pytest.approx(expected, abs=1e-9)


def test_inputs_of_one_column_and_lists_and_frames_are_the_same(rough_model, rough_data):
    t, y = rough_data
    sites = prior_draw(rough_model, t, 0)
    frame = pd.DataFrame(y, columns=["u", "v"])
    for inputs, values in [(t[:, None], y), (list(t), y.tolist()), (t, frame), (t, np.asfortranarray(y))]:
        assert (
            log_density(rough_model, (inputs, values), {}, sites)[0] == log_density(rough_model, (t, y), {}, sites)[0]
        )


def test_one_output_may_be_one_dimensional():
    model = alps.ALPS({"x": kernels.Exp(scale=1.0)}, noise_variance=0.1)
    assert model.check([0.0, 1.0], [3.0, 4.0])[1].shape == (2, 1)


def test_a_latent_may_read_one_column():
    inputs = np.array([[0.0, 5.0], [1.0, 5.0], [0.0, 7.0]])
    gram = alps.on_column(kernels.ExpSquared(scale=2.0), 1)(inputs, inputs)
    expected = kernels.ExpSquared(scale=2.0)(inputs[:, 1], inputs[:, 1])
    np.testing.assert_allclose(gram, expected, atol=1e-14)


def test_relaxed_changes_the_gate_only(rough_model, rough_data):
    t, y = rough_data
    traces = [
        handlers.trace(handlers.seed(rough_model, 0)).get_trace(t, y, relaxed=relaxed) for relaxed in (False, True)
    ]
    assert list(traces[0]) == list(traces[1])
    gate = traces[1]["b"]["fn"]
    while not isinstance(gate, dist.RelaxedBernoulliLogits):
        gate = gate.base_dist
    for name in ("x", "H", "noise_variance"):
        assert type(traces[0][name]["fn"]) is type(traces[1][name]["fn"])


def test_relaxed_bernoulli_oracle(oracle):
    for case in oracle("misc")["relaxed_bernoulli_logpdf"]:
        d = dist.RelaxedBernoulliLogits(case["temperature"], case["logits"])
        assert d.log_prob(case["x"]) == pytest.approx(case["logpdf"], rel=1e-6, abs=1e-6)


def test_never_and_always(rough_data):
    t, y = rough_data
    covariances = {"never": kernels.Exp(scale=1.0), "always": kernels.Exp(scale=2.0)}
    model = alps.ALPS(covariances, 2, inclusion_prob=[0.0, 1.0], noise_variance=0.1)
    for relaxed in (False, True):
        run = handlers.seed(handlers.condition(model, {"b": jnp.array([0.7, 0.2])}), 0)
        trace = handlers.trace(run).get_trace(t, y, relaxed=relaxed)
        always_only = trace["x"]["value"][1][:, None] * trace["H"]["value"][:, 1]
        np.testing.assert_allclose(trace["f"]["value"], always_only)
    tiny = alps.ALPS(covariances, 2, inclusion_prob=[1e-8, 1 - 1e-8], noise_variance=0.1)
    assert np.isfinite(log_density(tiny, (t, y), {"relaxed": False}, prior_draw(tiny, t, 0))[0])


def test_it_is_an_ordinary_numpyro_model(rough_model, rough_data, key):
    t, y = rough_data
    prior = Predictive(rough_model, num_samples=7)(key, t)
    assert prior["y"].shape == (7, 9, 2)
    samples = {name: prior[name] for name in ("x", "b", "H", "noise_variance")}
    likelihood = log_likelihood(rough_model, samples, t, y)["y"]
    assert likelihood.shape == (7, 9, 2)
    assert (np.asarray(likelihood)[:, np.isnan(y)] == 0).all()
    graph = __import__("numpyro").infer.inspect.get_model_relations(rough_model, model_args=(t, y))
    assert graph["observed"] == ["y"]
    assert graph["plate_sample"]["latent"] == ["b"]


def test_render_model(rough_model, rough_data):
    import numpyro

    assert "noise_variance" in numpyro.render_model(rough_model, model_args=rough_data).source


def test_prior_predictive_moments(rough_model, key):
    """E[y] = 0 and Var[y_i(t)] = sum_j theta_j s_ij + E[sigma^2], within 6 Monte Carlo standard errors."""
    y = np.asarray(Predictive(rough_model, num_samples=20_000)(key, np.array([0.0, 2.0]))["y"])
    variance = rough_model.mixing_variance @ rough_model.inclusion_prob + 0.4 / 2
    for i in range(2):
        squares = y[:, :, i] ** 2
        mcse = squares.std(0) / np.sqrt(len(y))
        assert (abs(squares.mean(0) - variance[i]) < 6 * mcse).all()


def test_minibatch_scales_only_the_likelihood(rough_model, rough_data):
    t, y = rough_data
    sites = prior_draw(rough_model, t, 1)
    without = log_density(rough_model, (t,), {}, sites | {"y": jnp.zeros_like(y)})[0]
    trace = handlers.trace(handlers.substitute(handlers.seed(rough_model, 0), sites)).get_trace(t, y, num_times=36)
    assert trace["y"]["scale"] == pytest.approx(4.0)
    assert all(trace[name].get("scale") is None for name in ("x", "b", "H"))
    assert np.isfinite(without)


def test_jit_and_grad_of_the_density(rough_model, rough_data):
    t, y = rough_data
    sites = prior_draw(rough_model, t, 0)
    b = sites.pop("b")
    grad = jax.jit(jax.grad(lambda s, t, y: log_density(rough_model, (t, y), {}, s | {"b": b})[0]))(sites, t, y)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grad))


K = {"x": kernels.Exp(scale=1.0)}
T3, Y3 = np.arange(3.0), np.zeros((3, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"covariances": {}}, "at least one latent"),
        ({"covariances": [("x", K["x"]), ("x", K["x"])]}, "names must differ, got .'x'."),
        ({"covariances": {"x": np.cos}}, r"covariances\['x'\]: expected a tinygp covariance"),
        ({"outputs": 0}, "at least one, got 0"),
        ({"outputs": ["a", "a"]}, "no name twice"),
        ({"outputs": "abc"}, "list of names, got the string 'abc'"),
        ({"inclusion_prob": 1.2}, r"probabilities in \[0, 1\], got 1.2"),
        ({"inclusion_prob": [0.5, 0.5]}, r"one per latent \(1\), got shape \(2,\)"),
        ({"inclusion_prob": 0.5, "expected_active": 1}, "not both"),
        ({"expected_active": 3}, "a number from 0 to 1, got 3"),
        ({"expected_active": "x"}, "expected_active: expected a number or a rectangular array of numbers, got 'x'"),
        ({"expected_active": np.nan}, "expected_active: expected a number from 0 to 1, got nan"),
        ({"inclusion_prob": "x"}, "inclusion_prob: expected a number .*, got 'x'"),
        (
            {"covariances": [K["x"], K["x"]]},
            r"covariances: expected \{name: covariance\} or \(name, covariance\) pairs",
        ),
        ({"covariances": K["x"]}, r"covariances: expected \{name: covariance\} or \(name, covariance\) pairs"),
        ({"outputs": 2.0}, "outputs: expected their number or a list of names, got 2.0"),
        ({"outputs": None}, "outputs: expected their number or a list of names, got None"),
        ({"mixing_variance": "x"}, "mixing_variance: expected a number .*, got 'x'"),
        (
            {"mixing_variance": [[1.0], [1.0, 2.0]]},
            r"mixing_variance: .* rectangular .*, got \[\[1.0\], \[1.0, 2.0\]\]",
        ),
        ({"noise_variance": "x"}, "noise_variance: expected a number .*, got 'x'"),
        ({"noise_variance": None}, "noise_variance: expected a number .*, got None"),
        ({"jitter": -1}, "jitter: expected a number from 0 to inf, got -1"),
        ({"jitter": np.nan}, "jitter: expected a number from 0 to inf, got nan"),
        ({"mixing_variance": -1.0}, "positive, finite variances"),
        ({"mixing_variance": np.ones(3)}, r"one per output \(2\), or \(output, latent\)"),
        ({"noise_variance": 0.0}, "positive, finite variances, got"),
        ({"noise_variance": np.ones(3)}, r"one per output \(2\), got shape \(3,\)"),
        ({"noise_variance": dist.InverseGamma(np.ones(3), 1.0)}, "a prior with batch shape"),
        ({"noise_variance": dist.Normal(0.0, 1.0)}, "a prior of positive numbers"),
    ],
)
def test_bad_models(arguments, message):
    good = {"covariances": K, "outputs": 2, "noise_variance": 0.1}
    with pytest.raises((ValueError, TypeError), match=message):
        alps.ALPS(**(good | arguments))


@pytest.mark.parametrize(
    ("t", "y", "message"),
    [
        (T3, np.zeros((2, 3)), r"expected shape \(time, output\) = \(3, 2\).*got \(2, 3\).*transpose"),
        (T3, np.zeros((4, 2)), r"inputs of shape \(3,\).*got \(4, 2\)"),
        (T3, np.zeros(3), r"got \(3,\)"),
        (T3, np.full((3, 2), np.nan), "every one of its 6 cells is missing"),
        (T3, np.where(np.arange(6).reshape(3, 2) == 3, np.inf, 0), "got inf in row 1, output 'y2'"),
        (np.array([0, np.nan, 1]), Y3, "expected finite numbers, got nan in row 1"),
        (np.zeros((3, 1, 1)), Y3, r"expected shape \(time,\) or \(time, column\), got \(3, 1, 1\)"),
        (np.zeros(0), np.zeros((0, 2)), "at least one time"),
        (np.array(["2020-01-01"] * 3, "M8[D]"), Y3, "got dates.*alps.Data"),
        (T3, [[1.0, 2.0], [3.0], [4.0, 5.0]], r"y: .* rectangular array of numbers, got \[\[1.0, 2.0\], \[3.0\]"),
        (T3, [["a", "b"]] * 3, "y: expected a number or a rectangular array of numbers, got"),
    ],
)
def test_bad_data(t, y, message):
    model = alps.ALPS(K, 2, noise_variance=0.1)
    with pytest.raises((ValueError, TypeError), match=message):
        model.check(t, y)


def test_a_frame_with_its_columns_in_another_order_is_an_error():
    model = alps.ALPS(K, ["a", "b"], noise_variance=0.1)
    with pytest.raises(ValueError, match="in another order"):
        model.check(T3, pd.DataFrame(Y3, columns=["b", "a"]))
    assert model.check(T3, pd.DataFrame(Y3, columns=["c", "d"]))[1].shape == (3, 2)


def test_missing_cells_of_nullable_columns():
    frame = pd.DataFrame({"a": pd.array([1, pd.NA, 3], "Int64"), "b": np.array([None, 0.5, 2], object)})
    y = alps.ALPS(K, 2, noise_variance=0.1).check(T3, frame)[1]
    np.testing.assert_array_equal(y, [[1, np.nan], [np.nan, 0.5], [3, 2]])


@pytest.mark.parametrize("period", [-3.0, "x", None, [3.0], [1.0, 2.0], 1j])
def test_bad_period(period):
    with pytest.raises(ValueError, match="positive, finite period"):
        alps.linear_periodic(period)


def test_bad_column():
    with pytest.raises(TypeError, match=r"a column's number, got .*'x'"):
        alps.on_column(K["x"], "x")


@pytest.mark.slow
def test_float32_warns_once_of_an_output_far_from_zero():
    """At the caller's line; a constant output and a centred one are fine, and 64-bit always is."""
    t = np.arange(20.0)
    y = np.stack([np.sin(t) + 1e4, np.full(20, 7.0)], 1)
    model = alps.ALPS(K, 2, noise_variance=dist.InverseGamma(2.0, 0.1))
    model.check(t, y)
    with jax.enable_x64(False):
        model.check(t, y - y.mean(0))
        settings = {"num_inducing": 5, "num_steps": 5, "progress_bar": False, "rng_key": jax.random.key(0)}
        with pytest.warns(UserWarning, match=r"output 'y1' has mean 1e\+04.*subtract the mean.*enable_x64") as record:
            alps.fit_svi(model, t, y, **settings)
        assert [warning.filename for warning in record] == [__file__]
        mcmc = MCMC(alps.ALPSGibbs(model), num_warmup=2, num_samples=2, progress_bar=False)
        with pytest.warns(UserWarning, match="output 'y1'") as record:
            mcmc.run(jax.random.key(0), t, y)
        assert [warning.filename for warning in record] == [__file__]
