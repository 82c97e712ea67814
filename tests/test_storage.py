"""Posteriors in files: the same predictions to the bit, also elsewhere; what isn't such a file is one plain error."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from numpyro.infer import MCMC, NUTS
from tinygp import kernels, transforms
from tinygp.kernels import quasisep

import alps_ppl as alps
from alps_ppl.description import decode, describe, encode, foreign, rebuild

T = np.arange(40.0) + 0.25 * (np.arange(40) % 3)
NEW = np.array([0.3, 17.0, 41.5, 60.0])
COVARIANCES = {
    "exp": kernels.Exp(scale=2.0),
    "rbf": kernels.ExpSquared(scale=1 / 3),
    "matern": 0.3 * kernels.Matern32(scale=1.3) + 0.7 * kernels.Cosine(scale=7.0),
    "matern52": kernels.Matern52(scale=jnp.asarray(0.7)),
    "cosine": alps.linear_periodic(7.0),
    "periodic": kernels.ExpSineSquared(scale=5.0, gamma=0.3),
    "rational": kernels.RationalQuadratic(scale=2.0, alpha=0.4),
    "product": kernels.ExpSquared(scale=9.0) * kernels.Cosine(scale=3.0),
    "constant": kernels.Constant(2.0),
    "linear": kernels.DotProduct() * kernels.Constant(1e-3),
    "sho": quasisep.SHO(omega=1.0, quality=2.0),
    "quasisep": 2.0 * quasisep.Exp(scale=3.0) + quasisep.Matern32(scale=2.0),
    "celerite": quasisep.Celerite(1.0, 0.1, 1.0, 0.1),
    "carma": quasisep.CARMA.init(alpha=jnp.array([1.2, 0.5]), beta=jnp.array([1.0])),
    "euclid": kernels.Exp(scale=2.0, distance=kernels.L2Distance()),
}
OF_COLUMNS = {
    "first": alps.on_column(kernels.ExpSquared(scale=3.0), 0),
    "second": transforms.Subspace(1, kernels.Exp(scale=2.0)),
    "scaled": transforms.Linear(jnp.array([1.0, 1 / 3]), kernels.ExpSquared()),
    "cholesky": transforms.Cholesky(2.0 * jnp.eye(2), kernels.ExpSquared()),
    "polynomial": kernels.Polynomial(order=2.0, scale=20.0, sigma=0.1),
}


def series(inputs):
    rng = np.random.default_rng(0)
    y = np.sin(2 * np.pi * inputs.reshape(len(inputs), -1)[:, 0] / 7)[:, None] * [1.0, -0.5]
    y += 0.3 * rng.normal(size=y.shape)
    y[3:6, 0] = y[9] = np.nan
    return y


def gibbs(model, inputs, y, **settings):
    run = MCMC(
        alps.ALPSGibbs(model, **settings), num_warmup=5, num_samples=20, num_chains=2, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    run.run(jax.random.key(0), inputs, y)
    return run


def svi(model, inputs, y):
    return alps.fit_svi(model, inputs, y, num_inducing=6, num_steps=30, rng_key=jax.random.key(1), progress_bar=False)


ENGINES = {"svi": svi, "gibbs": gibbs}
both_engines = pytest.mark.parametrize("engine", [pytest.param("svi", marks=pytest.mark.slow), "gibbs"])


def same(a, b):
    """To the bit."""
    xr.testing.assert_identical(a, b)


@pytest.mark.parametrize("name", [*COVARIANCES, *OF_COLUMNS])
def test_a_covariance_comes_back_to_the_bit(name):
    covariance = (COVARIANCES | OF_COLUMNS)[name]
    description = json.loads(json.dumps(encode(covariance)))
    assert foreign(description) == []
    again = decode(description)
    assert jax.tree.structure(again) == jax.tree.structure(covariance)
    inputs = jnp.asarray(T if name in COVARIANCES else np.stack([T, T[::-1] / 3], 1))
    np.testing.assert_array_equal(again(inputs, inputs), covariance(inputs, inputs))


@pytest.mark.parametrize(
    "noise",
    [0.1, [0.1, 0.25], dist.InverseGamma(2.0, 0.1), dist.HalfNormal(jnp.array([0.1, 1 / 3])), dist.LogNormal(0.0, 1.0),
     dist.HalfCauchy(0.3).expand([2]), dist.InverseGamma(3.0, 0.4).expand([2])],
)  # fmt: skip
def test_a_model_comes_back(noise):
    model = alps.ALPS(
        COVARIANCES, ["u", "v"], noise_variance=noise, jitter=1e-7, mixing_variance=[0.5, 1 / 3],
        inclusion_prob=np.linspace(0, 1, len(COVARIANCES)),
    )  # fmt: skip
    again = rebuild(json.loads(json.dumps(describe(model))))
    assert (again.latents, again.outputs, again.jitter) == (model.latents, model.outputs, model.jitter)
    for name in ("inclusion_prob", "mixing_variance", "noise_variance"):
        expected, got = (jax.tree.leaves(getattr(m, name)) for m in (model, again))
        assert type(getattr(again, name)) is type(getattr(model, name))
        assert all(map(np.array_equal, got, expected))


def test_gates_come_back():
    """Shared gates, a learnt theta, latents without a gate, bounds of covariance parameters."""
    model = alps.ALPS(
        {"day/night": COVARIANCES["cosine"], "b": COVARIANCES["exp"], "c": COVARIANCES["rbf"]},
        inclusion_prob=dist.Beta(1.0, 3.0),
        always_on=["c"],
        shared_gates={"both": ["day/night", "b"]},
        covariance_bounds={"day/night": {"scale": (6.0, 8.0)}},
        noise_variance=0.1,
    )
    again = rebuild(json.loads(json.dumps(describe(model))))
    assert (again.gate_names, again.covariance_bounds) == (model.gate_names, model.covariance_bounds)
    np.testing.assert_array_equal(again.gate_of, model.gate_of)
    np.testing.assert_array_equal(again.inclusion_prob, model.inclusion_prob)
    assert (again.inclusion_prior.concentration1, again.inclusion_prior.concentration0) == (1.0, 3.0)


@both_engines
def test_predictions_with_shared_gates_and_learnt_parameters(engine, tmp_path):
    model = alps.ALPS(
        {"day/night": COVARIANCES["cosine"], "b": COVARIANCES["exp"], "c": COVARIANCES["periodic"]},
        ["u", "v"],
        inclusion_prob=dist.Beta(1.0, 3.0),
        shared_gates={"both": ["day/night", "b"]},
        covariance_bounds={"day/night": {"scale": (6.0, 8.0)}} if engine == "svi" else None,
        noise_variance=0.1,
    )
    y = series(T)
    posterior = ENGINES[engine](model, T, y)
    alps.save(posterior, tmp_path / "p.nc", tree=alps.to_datatree(posterior, model, T, y))
    loaded = alps.load(tmp_path / "p.nc")
    same(alps.predict(loaded, new_inputs=NEW), alps.predict(posterior, new_inputs=NEW))
    same(alps.predict(loaded, model, T, y, NEW), alps.predict(posterior, model, T, y, NEW))
    alps.save(posterior, tmp_path / "draws.nc")
    same(alps.predict(alps.load(tmp_path / "draws.nc"), new_inputs=NEW), alps.predict(posterior, new_inputs=NEW))


FEW = {name: COVARIANCES[name] for name in ("cosine", "matern", "periodic")}


@pytest.fixture(scope="module", params=[pytest.param("svi", marks=pytest.mark.slow), "gibbs"])
def saved(request, tmp_path_factory):
    """Learnt noise, missing cells: (engine, posterior, model, y, path)."""
    model = alps.ALPS(FEW, ["u", "v"], noise_variance=dist.InverseGamma(2.0, 0.1))
    y = series(T)
    posterior = ENGINES[request.param](model, T, y)
    path = tmp_path_factory.mktemp(request.param) / "posterior.nc"
    alps.save(posterior, path, tree=alps.to_datatree(posterior, model, T, y, num_draws=50))
    return request.param, posterior, model, y, path


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["svi", "gibbs"])
def test_all_covariances_at_once(engine, tmp_path):
    model = alps.ALPS(COVARIANCES, ["u", "v"], noise_variance=dist.InverseGamma(2.0, 0.1))
    posterior = ENGINES[engine](model, T, series(T))
    alps.save(posterior, tmp_path / "p.nc")
    same(alps.predict(alps.load(tmp_path / "p.nc"), new_inputs=NEW), alps.predict(posterior, new_inputs=NEW))


def test_predictions_are_the_same_to_the_bit(saved):
    _, posterior, model, y, path = saved
    expected = alps.predict(posterior, model, T, y, NEW, interval=0.8)
    loaded = alps.load(path)
    same(alps.predict(loaded, new_inputs=NEW, interval=0.8), expected)
    same(alps.predict(loaded, model, T, y, NEW, interval=0.8), expected)
    same(alps.predict(posterior, new_inputs=NEW, interval=0.8), expected)
    same(alps.predict(alps.load(path, model=model), new_inputs=NEW, interval=0.8), expected)
    density = alps.log_predictive_density(posterior, model, T, y, T, y)
    same(alps.log_predictive_density(loaded, model, T, y, T, y), density)


def test_what_else_a_loaded_posterior_knows(saved):
    engine, posterior, model, y, path = saved
    loaded = alps.load(path)
    tables = [alps.inclusion_table(alps.to_datatree(p, model, T, y)) for p in (posterior, loaded)]
    assert tables[0].equals(tables[1])
    if engine == "svi":
        for name in ("losses", "temperatures", "elbo", "elbo_mcse", "restart_elbos", "inclusion_prob"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(posterior, name))
    else:
        for name, value in posterior.get_samples(group_by_chain=True).items():
            np.testing.assert_allclose(loaded.get_samples(group_by_chain=True)[name], value, rtol=1e-6 * (name == "x"))
        for name, value in posterior.get_extra_fields().items():
            np.testing.assert_array_equal(loaded.get_extra_fields()[name], value)


def test_in_a_fresh_process_and_without_the_data(saved, tmp_path):
    _, posterior, _, _, path = saved
    alps.predict(posterior, new_inputs=NEW).to_netcdf(tmp_path / "expected.nc", engine="h5netcdf")
    code = f"""
import numpyro; numpyro.enable_x64()
import alps_ppl as alps, numpy as np, xarray as xr
prediction = alps.predict(alps.load({str(path)!r}), new_inputs=np.array({NEW.tolist()}))
xr.testing.assert_identical(prediction, xr.load_dataset({str(tmp_path / "expected.nc")!r}, engine="h5netcdf"))
print("same")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "same", done.stderr


def test_arviz_reads_the_file(saved):
    """As any tree of its own, which it opens by xarray's function; and so does this package."""
    from arviz_stats import summary

    engine, _, model, _, path = saved
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        assert list(tree["posterior"]["latent"].values) == list(model.latents)
        assert set(tree.children) >= {"posterior", "sample_stats", "log_likelihood", "observed_data"}
        assert len(summary(tree, var_names="H", kind="stats")) == 2 * len(model.latents)
        assert alps.inclusion_table(tree).engine.unique().tolist() == [engine]


@both_engines
def test_two_columns_and_fixed_noise(engine, tmp_path):
    inputs = np.stack([T, np.cos(T)], 1)
    y = series(inputs)
    posterior = ENGINES[engine](alps.ALPS(OF_COLUMNS, 2, noise_variance=[0.1, 1 / 3]), inputs, y)
    alps.save(posterior, tmp_path / "p.nc")
    new = inputs[:5] + 0.1
    same(alps.predict(alps.load(tmp_path / "p.nc"), new_inputs=new), alps.predict(posterior, new_inputs=new))


@pytest.mark.parametrize("keep_latents", [True, False])
def test_states_of_rough_latents(tmp_path, keep_latents):
    """Latents without a low rank have states: 600 times, of which nothing is computed by pivots."""
    t = np.arange(600.0)
    covariances = {"rough": kernels.Exp(scale=2.0) + kernels.Cosine(scale=9.0), "slow": kernels.ExpSquared(scale=99.0)}
    model = alps.ALPS(covariances, 2, noise_variance=dist.InverseGamma(2.0, 0.1))
    run = gibbs(model, t, series(t), keep_latents=keep_latents)
    assert run.sampler._features.space is not None
    alps.save(run, tmp_path / "p.nc")
    loaded = alps.load(tmp_path / "p.nc")
    assert ("x" in loaded.get_samples()) == keep_latents
    same(alps.predict(loaded, new_inputs=t[:3] + 0.4), alps.predict(run, new_inputs=t[:3] + 0.4))


@pytest.mark.slow
def test_fit_save_replaces_what_is_there(tmp_path, two_periods):
    model, t, y = two_periods
    path = tmp_path / "p.nc"
    path.write_text("something else")
    fit = svi(model, t, y)
    fit.save(path)
    same(alps.predict(alps.load(path), new_inputs=t), alps.predict(fit, new_inputs=t))
    assert [p.name for p in tmp_path.iterdir()] == ["p.nc"]
    assert alps.load_conversion(path) is None


@pytest.fixture(scope="module")
def two_periods():
    return (
        alps.ALPS({"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0)}, 2, noise_variance=0.1),
        T,
        series(T),
    )


class Mine(kernels.Kernel):
    scale: float

    def evaluate(self, X1, X2):
        return jnp.exp(-(((X1 - X2) / self.scale) ** 2))


@pytest.mark.slow
def test_a_covariance_of_ones_own_needs_the_model_again(tmp_path):
    def model(scale):
        return alps.ALPS({"mine": 2.0 * Mine(scale), "T=7": alps.linear_periodic(7.0)}, 2, noise_variance=0.1)

    path = tmp_path / "p.nc"
    run = gibbs(model(3.0), T, series(T))
    with pytest.warns(
        UserWarning, match=r"can't hold test_storage.Mine; to read it, .* alps.load\(path, model=model\)"
    ):
        alps.save(run, path)
    with pytest.raises(ValueError, match=r"its model has test_storage.Mine, which a file can't hold; make the model"):
        alps.load(path)
    with pytest.raises(ValueError, match="model: expected the one that was fitted and saved in"):
        alps.load(path, model=model(4.0))
    same(alps.predict(alps.load(path, model=model(3.0)), new_inputs=NEW), alps.predict(run, new_inputs=NEW))


def test_what_cannot_be_saved(tmp_path, two_periods):
    model, t, y = two_periods
    with pytest.raises(ValueError, match="the MCMC has no draws yet"):
        alps.save(MCMC(alps.ALPSGibbs(model), num_warmup=1, num_samples=1), tmp_path / "p.nc")
    with pytest.raises(TypeError, match="expected fit_svi's or ALPSGibbs's, got draws of NUTS"):
        alps.save(MCMC(NUTS(model), num_warmup=1, num_samples=1), tmp_path / "p.nc")
    with pytest.raises(TypeError, match=r"posterior: expected what fit_svi returned .*, got dict"):
        alps.save({}, tmp_path / "p.nc")
    run, other = gibbs(model, t, y), gibbs(model, t, -y)
    with pytest.raises(ValueError, match="tree: expected to_datatree's result for this posterior, got other draws"):
        alps.save(run, tmp_path / "p.nc", tree=alps.to_datatree(other, model, t, -y))
    with pytest.raises(ValueError, match=r"new_inputs: expected the times to predict, got None"):
        alps.predict(run)
    with pytest.raises(TypeError, match=r"model: expected the alps_ppl.ALPS that was fitted, got NoneType"):
        alps.predict(run, inputs=t, y=y, new_inputs=t)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_loaded(tmp_path, two_periods):
    model, t, y = two_periods
    path, bad = tmp_path / "p.nc", tmp_path / "bad.nc"
    svi(model, t, y).save(path)
    with pytest.raises(ValueError, match=r"expected a file that alps.save or alps-ppl run wrote, but there is none"):
        alps.load(bad)
    for content in (path.read_bytes()[: path.stat().st_size // 2], b"", b"latent,probability\n"):
        bad.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"bad.nc: expected a file .*, but it can't be read as netCDF; is it whole"
        ):
            alps.load(bad)
    xr.DataTree(xr.Dataset({"a": 1})).to_netcdf(bad, engine="h5netcdf")
    with pytest.raises(ValueError, match="in its format 1, got other netCDF without what predictions need"):
        alps.load(bad)
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        tree = tree.load()
    for version, message in ((2, "got one of format 2; a newer alps_ppl wrote it"), (0, "got one of format 0; fit ag")):
        tree["alps"].attrs["format"] = version
        tree.to_netcdf(bad, engine="h5netcdf")
        with pytest.raises(ValueError, match=message):
            alps.load(bad)
    tree["alps"].attrs |= {"format": 1, "bits": 32}
    tree.to_netcdf(bad, engine="h5netcdf")
    with pytest.raises(ValueError, match=r"a 32-bit fit, but JAX is in 64-bit now; call numpyro.enable_x64\(False\)"):
        alps.load(bad)


def test_a_file_runs_nobodys_code():
    """A class that isn't tinygp's or NumPyro's is refused, whatever the file says."""
    for name in ("os.system", "alps_ppl.model.ALPS", "numpyro.distributions.Mine", "tinygp.kernels.base.eqx"):
        with pytest.raises(ValueError, match="expected a class of tinygp's or NumPyro's, got"):
            decode({"class": name, "fields": {}})


def test_single_precision(tmp_path):
    code = f"""
import warnings; warnings.simplefilter("error")
import sys; sys.path.insert(0, {str(tmp_path)!r})
import alps_ppl as alps, jax, numpy as np
model = alps.ALPS({{"T=7": alps.linear_periodic(7.0)}}, noise_variance=0.1)
t = np.arange(20.0)
fit = alps.fit_svi(model, t, np.sin(t), num_inducing=4, num_steps=5, rng_key=jax.random.key(0), progress_bar=False)
fit.save({str(tmp_path / "p.nc")!r})
assert alps.predict(alps.load({str(tmp_path / "p.nc")!r}), new_inputs=t).identical(alps.predict(fit, new_inputs=t))
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(ValueError, match=r"a 32-bit fit, but JAX is in 64-bit now"):
        alps.load(tmp_path / "p.nc")
