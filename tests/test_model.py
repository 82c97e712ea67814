"""The program against the loop, and what it is to NumPyro, to JAX and to a user who gets an argument wrong."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import reference
from numpyro import handlers
from numpyro.infer import Predictive, log_likelihood
from numpyro.infer.util import log_density
from problems import periods, rough_data, rough_model, sines
from tinygp import kernels

import alps_ppl as alps


def site_values(model, n):
    """Values of all sites for ``n`` times."""
    rng, (p, m) = np.random.default_rng(0), model.mixing_variance.shape
    sites = {"x": rng.normal(size=(m, n)), "b": rng.integers(0, 2, m), "H": rng.normal(size=(p, m))}
    return sites | ({"noise_variance": rng.uniform(0.1, 1, p)} if model.learns_noise else {})


@jax.jit
def density(model, t, y, sites):
    """Of the unchecked program, compiled: its single operations take ten times as long."""
    return log_density(model.program, (t, y), {}, sites)[0]


def model_of_shape(m, p):
    """Every latent and every output with numbers of its own."""
    rng = np.random.default_rng(m * 10 + p)
    covariances = {f"x{j}": kernels.Exp(scale=1.0 + j) for j in range(m)}
    prob, noise, s = rng.uniform(0.1, 0.9, m), rng.uniform(0.1, 1, p), rng.uniform(0.5, 2, p)
    return alps.ALPS(covariances, p, inclusion_prob=prob, mixing_variance=s, noise_variance=noise, jitter=0.0)


@pytest.mark.parametrize(
    "shape", [None, (2, 2, 2), (3, 1, 4), (1, 3, 4), (4, 2, 3), (3, 3, 3), (1, 1, 1)], ids=lambda shape: str(shape)
)
def test_log_density_is_the_loop(shape):
    """With missing cells and learnt noise, and at sizes (latent, output, time) where a wrong axis mightn't fail."""
    if shape is None:
        model, (t, y), learnt = rough_model(), rough_data(), {"noise_prior": (3.0, 0.4)}
    else:
        m, p, n = shape
        model, learnt = model_of_shape(m, p), {}
        t, y = np.arange(n) * 0.7, np.random.default_rng(n).normal(size=(n, p))
    sites = site_values(model, len(t))
    expected = reference.log_joint(
        model.covariances,
        t,
        y,
        **{"noise_variance": model.noise_variance} | sites,
        inclusion_prob=model.inclusion_prob,
        mixing_variance=model.mixing_variance,
        **learnt,
    )
    assert density(model, t, y, sites) == pytest.approx(expected, abs=1e-9)


def traced(model, *arguments, **settings):
    """The program's sites, by shapes alone: nothing is computed."""
    traces = []
    run = handlers.trace(handlers.seed(model, 0))
    jax.eval_shape(lambda: traces.append(run.get_trace(*arguments, **settings)))
    return traces[0]


def test_relaxed_changes_the_gate_only(rough_model, rough_data):
    discrete, relaxed = (traced(rough_model, *rough_data, relaxed=relaxed) for relaxed in (False, True))
    assert list(discrete) == list(relaxed)
    gate = relaxed["b"]["fn"]
    while not isinstance(gate, dist.RelaxedBernoulliLogits):
        gate = gate.base_dist
    for name in ("x", "H", "noise_variance"):
        assert type(discrete[name]["fn"]) is type(relaxed[name]["fn"])


def test_a_minibatch_scales_only_the_likelihood(rough_model, rough_data):
    sites = traced(rough_model, *rough_data, num_times=36)
    assert sites["y"]["scale"] == pytest.approx(4.0)
    assert all(sites[name].get("scale") is None for name in ("x", "b", "H", "noise_variance"))


def test_relaxed_bernoulli_is_the_oracles(oracle):
    for case in oracle("misc")["relaxed_bernoulli_logpdf"]:
        d = dist.RelaxedBernoulliLogits(case["temperature"], case["logits"])
        assert d.log_prob(case["x"]) == pytest.approx(case["logpdf"], rel=1e-6, abs=1e-6)


def test_never_and_always(rough_data):
    """0 and 1 set the gate whatever the site is; next to them the density is finite."""
    t, y = rough_data
    covariances = {"never": kernels.Exp(scale=1.0), "always": kernels.Exp(scale=2.0)}
    model = alps.ALPS(covariances, 2, inclusion_prob=[0.0, 1.0], noise_variance=0.1)

    @partial(jax.jit, static_argnames="relaxed")
    def sites(b, relaxed):
        run = handlers.seed(handlers.condition(model, {"b": b}), 0)
        trace = handlers.trace(run).get_trace(t, y, relaxed=relaxed)
        return [trace[name]["value"] for name in ("x", "H", "f")]

    for relaxed in (False, True):
        x, H, f = sites(jnp.array([0.7, 0.2]), relaxed)
        np.testing.assert_allclose(f, x[1][:, None] * H[:, 1])
    tiny = alps.ALPS(covariances, 2, inclusion_prob=[1e-8, 1 - 1e-8], noise_variance=0.1)
    assert np.isfinite(density(tiny, t, y, site_values(tiny, len(t))))


def test_it_is_an_ordinary_numpyro_model(rough_model, rough_data, key):
    """To Predictive, log_likelihood, the inspection of plates and render_model.

    Of 20,000 draws E[y] = 0 and Var[y_i(t)] = sum_j theta_j s_ij + E[sigma^2], within 6 Monte Carlo standard errors.
    """
    t, y = rough_data
    prior = jax.jit(lambda: Predictive(rough_model, num_samples=20_000, parallel=True)(key, t))()
    variance = rough_model.mixing_variance @ rough_model.inclusion_prob + 0.4 / 2
    for power, expected in ((1, 0.0), (2, variance)):
        draws = np.asarray(prior["y"]) ** power
        assert (abs(draws.mean(0) - expected) < 6 * draws.std(0) / np.sqrt(len(draws))).all()
    samples = {name: prior[name][:7] for name in ("x", "b", "H", "noise_variance")}
    likelihood = np.asarray(jax.jit(lambda: log_likelihood(rough_model, samples, t, y)["y"])())
    assert likelihood.shape == (7, 9, 2)
    assert (likelihood[:, np.isnan(y)] == 0).all()
    graph = numpyro.infer.inspect.get_model_relations(rough_model, model_args=(t, y))
    assert graph["observed"] == ["y"]
    assert graph["plate_sample"]["latent"] == ["b"]
    assert "noise_variance" in numpyro.render_model(rough_model, model_args=(t, y)).source


# --- a model is a pytree of its priors' numbers


def everything():
    """A model in which every kind of argument is there."""
    return alps.ALPS(
        {"a": kernels.Exp(scale=0.7), "b": 2.0 * kernels.ExpSquared(scale=3.0), "c": alps.linear_periodic(5.0)},
        ["u", "v"],
        inclusion_prob=dist.Beta(2.0, 3.0),
        always_on=["b"],
        shared_gates={"both": ["a", "c"]},
        mixing_variance=[[1.0, 0.5, 2.0], [0.7, 1.5, 0.3]],
        noise_variance=dist.InverseGamma(3.0, 0.4),
        covariance_bounds={"c": {"scale": (4.0, 6.0)}},
        jitter=1e-6,
    )


def same(one, other):
    """Whether two models have the same numbers, names and shapes."""
    leaves = [jax.tree.leaves(model) for model in (one, other)]
    return jax.tree.structure(one) == jax.tree.structure(other) and all(map(np.array_equal, *leaves))


@pytest.mark.parametrize("model", [periods(), rough_model(), everything()], ids=["periods", "rough", "everything"])
def test_a_model_is_itself_after_flattening(model):
    leaves, structure = jax.tree.flatten(model)
    again = jax.tree.unflatten(structure, leaves)
    assert same(again, model)
    for name in vars(model).keys() - {"covariances", "noise_variance", "inclusion_prior"}:
        np.testing.assert_equal(getattr(again, name), getattr(model, name))


def test_a_compiled_function_takes_a_model(rough_model, rough_data):
    """Other numbers in the same shape compile nothing; the gradient with regard to the numbers is there, too."""
    t, y = rough_data
    wider, sites = jax.tree.map(lambda leaf: 1.1 * leaf, rough_model), site_values(rough_model, len(t))
    before = density(rough_model, t, y, sites)
    compiled = density._cache_size()
    assert density(wider, t, y, sites) != before
    assert density._cache_size() == compiled
    b = sites.pop("b")
    gradients = jax.grad(lambda model, sites: density(model, t, y, sites | {"b": b}), (0, 1))(wider, sites)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert (gradients[0].mixing_variance != 0).all()


def test_a_subset_has_what_belongs_to_its_latents():
    model = everything()
    smaller = model.subset(["c", "b"])
    assert smaller.latents == ("b", "c")  # in the model's order
    assert smaller.covariances == model.covariances[1:]
    assert smaller.gate_names == ("b", "both")
    np.testing.assert_array_equal(smaller.gates(jnp.array([0, 1])), [1, 1])  # b is always on
    np.testing.assert_array_equal(smaller.mixing_variance, model.mixing_variance[:, 1:])
    assert smaller.covariance_bounds == model.covariance_bounds
    assert model.subset(["a"]).covariance_bounds == {}
    assert same(model.subset(model.latents), model)
    for wrong in ([], ["d"]):
        with pytest.raises(ValueError, match=r"latents: .*'a', 'b', 'c'"):
            model.subset(wrong)


# --- inputs and y in any form


T3, Y3 = np.arange(3.0), np.arange(6.0).reshape(3, 2)
HOLES = np.array([[0, np.nan], [np.nan, 3], [4, 5]])


@pytest.mark.parametrize(
    "inputs",
    [
        T3[:, None],
        T3.astype(np.uint8),
        T3.tolist(),
        pd.Index(T3),
        pd.Series(T3, index=T3[::-1]),
        np.repeat(T3, 2)[::2],
        jnp.asarray(T3),
    ],
    ids=lambda inputs: type(inputs).__name__,
)
def test_inputs_in_any_form(inputs):
    checked, _ = periods().check(inputs, Y3)
    np.testing.assert_array_equal(checked, T3)
    assert checked.dtype == float


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (Y3.tolist(), Y3),
        (Y3.astype(int), Y3),
        (np.asfortranarray(Y3), Y3),
        (pd.DataFrame(Y3, columns=["c", "d"]), Y3),
        (pd.DataFrame(Y3, columns=["y1", "y2"]), Y3),
        (pd.DataFrame({"a": pd.array([0, pd.NA, 4], "Int64"), "b": np.array([None, 3, 5], object)}), HOLES),
        (np.ma.masked_invalid(HOLES), HOLES),
    ],
)
def test_y_in_any_form(y, expected):
    np.testing.assert_array_equal(periods().check(T3, y)[1], expected)


@pytest.mark.parametrize("y", [T3, T3.tolist(), pd.Series(T3), T3[:, None].tolist()])
def test_one_output_may_be_one_dimensional(y):
    np.testing.assert_array_equal(periods(1).check(T3, y)[1], T3[:, None])


def test_a_latent_may_read_one_column():
    """The density is that of the column alone; a column that isn't there is an error, where JAX takes the last."""
    t, y, _ = sines(5)
    wide = np.random.default_rng(0).normal(size=(5, 3))
    wide[:, 1] = t
    latents = {f"T={period:g}": alps.on_column(alps.linear_periodic(period), 1) for period in (7.0, 5.0)}
    model, sites = alps.ALPS(latents, 2, noise_variance=0.01), site_values(periods(), 5)
    expected = float(density(periods(), t, y, sites))
    assert float(density(model, wide, y, sites)) == pytest.approx(expected, rel=1e-12)
    for inputs in (wide[:, :1], t):
        with pytest.raises(ValueError, match=r"latent 'T=7' reads column 1 of inputs"):
            model.check(inputs, y)


# --- what is wrong with an argument


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"covariances": {}}, "covariances: .*at least one latent"),
        ({"covariances": [("x", kernels.Exp()), ("x", kernels.Exp())]}, "covariances: .*twice"),
        ({"covariances": {"x": np.cos}}, r"covariances\['x'\]: .*tinygp"),
        ({"covariances": [kernels.Exp(), kernels.Exp()]}, "covariances: .*pairs"),
        ({"outputs": 0}, "outputs: .*at least one"),
        ({"outputs": ["a", "a"]}, "outputs: .*twice"),
        ({"outputs": "abc"}, "outputs: .*'abc'"),
        ({"outputs": 2.0}, "outputs: .*list of names"),
        ({"inclusion_prob": 1.2}, r"inclusion_prob: .*\[0, 1\]"),
        ({"inclusion_prob": [0.5, 0.5]}, r"inclusion_prob: .*one per latent \(1\)"),
        ({"inclusion_prob": dist.Beta(np.ones(2), 1.0)}, "inclusion_prob: .*one Beta"),
        ({"inclusion_prob": dist.Uniform()}, "inclusion_prob: .*one Beta"),
        ({"inclusion_prob": 0.5, "expected_active": 1}, "inclusion_prob or expected_active"),
        ({"expected_active": 3}, "expected_active: .*0 to 1"),
        ({"expected_active": np.nan}, "expected_active: .*nan"),
        ({"mixing_variance": np.ones(3)}, r"mixing_variance: .*per output \(2\)"),
        ({"mixing_variance": [[1.0], [1.0, 2.0]]}, "mixing_variance: .*rectangular"),
        ({"noise_variance": 0.0}, "noise_variance: .*positive"),
        ({"noise_variance": None}, "noise_variance: .*None"),
        ({"noise_variance": dist.InverseGamma(np.ones(3), 1.0)}, "noise_variance: .*batch shape"),
        ({"noise_variance": dist.Normal(0.0, 1.0)}, "noise_variance: .*of positive numbers"),
        ({"jitter": np.nan}, "jitter: .*nan"),
    ],
)
def test_bad_arguments(arguments, message):
    good = {"covariances": {"x": kernels.Exp()}, "outputs": 2, "noise_variance": 0.1}
    with pytest.raises((ValueError, TypeError), match=message):
        alps.ALPS(**(good | arguments))


@pytest.mark.parametrize(
    ("t", "y", "message"),
    [
        (T3, Y3.T, r"\(3, 2\) .*got \(2, 3\).*transpose"),
        (T3, np.zeros((4, 2)), r"inputs of shape \(3,\).*got \(4, 2\)"),
        (T3, np.zeros(6), r"y: .*got \(6,\)"),
        (T3, np.full((3, 2), np.nan), "y: .*6 cells is missing"),
        (T3, np.where(Y3 == 3, np.inf, 0), "y: .*inf in row 1, output 'y2'"),
        (T3, [[1.0, 2.0], [3.0], [4.0, 5.0]], "y: .*rectangular"),
        (T3, [["a", "b"]] * 3, "y: .*numbers"),
        (T3, Y3 * 1j, "y: .*complex"),
        (T3, pd.DataFrame(Y3, columns=["y2", "y1"]), r"y: .*another order.*pass y\["),
        (np.array([0, np.nan, 1]), Y3, "inputs: .*nan in row 1"),
        (np.zeros((3, 1, 1)), Y3, r"inputs: .*\(time, column\)"),
        (np.zeros(0), np.zeros((0, 2)), "inputs: .*at least one time"),
        (np.array(["2024-01-01"] * 3, "M8[D]"), Y3, "inputs: .*dates.*alps.Data"),
        (pd.timedelta_range(0, periods=3, freq="h"), Y3, "inputs: .*durations.*divide by a duration"),
    ],
)
def test_bad_data(t, y, message):
    with pytest.raises((ValueError, TypeError), match=message):
        periods().check(t, y)


@pytest.mark.parametrize("engine", [alps.fit_svi, alps.fit_gibbs])
def test_both_fits_check_what_they_are_given(engine, key):
    settings = {"num_steps": 2} if engine is alps.fit_svi else {"num_samples": 2}
    for arguments, message in [
        ((None, T3, Y3), "model: .*ALPS, got NoneType"),
        ((periods(), T3, None), "y: .*None"),
        ((periods(), T3, Y3.T), "y: .*transpose"),
        ((periods(), T3, Y3, 0), "rng_key: .*JAX key"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            engine(*arguments[:3], rng_key=dict(enumerate(arguments)).get(3, key), **settings)


# --- float32


def test_float32_warns_of_what_it_rounds_away():
    """Times of 1.6e9 and outputs far from 0, at the caller's line; the remedies, and 64-bit, are silent."""
    t, y, _ = sines(20)
    far = np.stack([y[:, 0] + 1e4, np.full(20, 7.0)], 1)
    model = periods(noise_variance=dist.InverseGamma(2.0, 0.1))
    awkward = [(1.6e9 + t, y, r"inputs: .*subtract the first time.*x64"), (t, far, r"y: .*'y1'.*subtract the mean")]
    with pytest.warns(UserWarning, match=r"y: output 'y1' has mean 1e\+04 .* no process has a mean; subtract it"):
        model.check_data(t, far)  # in 64-bit it is the model that can't follow
    for inputs, values, message in awkward:
        if values is y:
            model.check_data(inputs, values)
        with jax.enable_x64(False):
            with pytest.warns(UserWarning, match=message) as record:
                model.check_data(inputs, values)
            assert [warning.filename for warning in record] == [__file__]
            with warnings.catch_warnings(action="error"):
                model.check_data(inputs - inputs[0], values - values.mean(0))
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"y: .*overflow"):
        model.check(t, 1e40 * y)
