"""Fits in files: the same predictions to the bit, also elsewhere; what isn't such a file is one plain error."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from arviz_stats import summary
from problems import COVARIANCES, OF_COLUMNS, sines
from tinygp import kernels

import alps_ppl as alps

NEW = np.array([0.3, 17.0, 41.5, 60.0])
both_engines = pytest.mark.parametrize("engine", [pytest.param("svi", marks=pytest.mark.slow), "gibbs"])


def short(engine, model, t, y, moves="collapsed"):
    if engine == "svi":
        return alps.fit_svi(model, t, y, num_inducing=6, num_steps=30, rng_key=jax.random.key(1), progress_bar=False)
    lengths = {"num_warmup": 5, "num_samples": 20, "num_chains": 2, "moves": moves}
    return alps.fit_gibbs(model, t, y, rng_key=jax.random.key(0), progress_bar=False, **lengths)


def series():
    """Times and two outputs with missing cells."""
    t, y, _ = sines(noise=0.3)
    y[3:6, 0] = y[9] = np.nan
    return t, y


def check_same(loaded, fit, new=NEW):
    """The same predictions, to the bit."""
    xr.testing.assert_identical(alps.predict(loaded, new, interval=0.8), alps.predict(fit, new, interval=0.8))
    density = alps.log_predictive_density(fit, fit.inputs, fit.y)
    xr.testing.assert_identical(alps.log_predictive_density(loaded, fit.inputs, fit.y), density)


@pytest.fixture(scope="module")
def saved(fits, trees, tmp_path_factory):
    """{engine: path}."""
    paths = {engine: tmp_path_factory.mktemp(engine) / "fit.nc" for engine in fits}
    for engine, path in paths.items():
        alps.save(fits[engine], path, tree=trees[engine])
    return paths


def test_a_fit_comes_back(either_fit, saved, tmp_path):
    """With its tree or without, with its model or without."""
    path = saved[either_fit.engine]
    loaded = alps.load(path)
    check_same(loaded, either_fit)
    check_same(alps.load(path, model=either_fit.model), either_fit)
    np.testing.assert_array_equal(loaded.y, either_fit.y)
    for name in (*either_fit.samples, *either_fit.sample_stats):
        got, expected = (
            fit.sample_stats[name] if name in fit.sample_stats else fit.samples[name] for fit in (loaded, either_fit)
        )
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == expected.dtype
    assert alps.inclusion_table(loaded).equals(alps.inclusion_table(either_fit))
    for name in ("losses", "temperatures", "elbo", "elbo_mcse", "restart_elbos", "inclusion_prob"):
        if hasattr(either_fit, name):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(either_fit, name))
    small = tmp_path / "small.nc"
    small.write_text("something else that is replaced")
    alps.save(either_fit, small)
    check_same(alps.load(small), either_fit)
    assert alps.load_conversion(small) is None
    assert [file.name for file in tmp_path.iterdir()] == ["small.nc"]


def test_in_a_fresh_process(either_fit, saved, tmp_path):
    alps.predict(either_fit, NEW).to_netcdf(tmp_path / "expected.nc", engine="h5netcdf")
    code = f"""
import jax, numpyro; numpyro.enable_x64()
jax.config.update("jax_disable_most_optimizations", {jax.config._read("jax_disable_most_optimizations")})
import alps_ppl as alps, numpy as np, xarray as xr
prediction = alps.predict(alps.load({str(saved[either_fit.engine])!r}), np.array({NEW.tolist()}))
xr.testing.assert_identical(prediction, xr.load_dataset({str(tmp_path / "expected.nc")!r}, engine="h5netcdf"))
print("same")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "same", done.stderr


def test_arviz_reads_the_file(fits, saved):
    """As any tree of its own, which it opens by xarray's function; and so does this package."""
    for engine, path in saved.items():
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            assert list(tree["posterior"]["latent"].values) == list(fits[engine].model.latents)
            assert set(tree.children) >= {"posterior", "sample_stats", "log_likelihood", "observed_data"}
            assert len(summary(tree, var_names="H", kind="stats")) == 3 * 4
            assert alps.inclusion_table(tree).engine.unique().tolist() == [engine]


@both_engines
def test_shared_gates_and_learnt_parameters_in_single_precision(engine, tmp_path):
    """And a latent whose name has a slash, which divides a file's groups."""
    path = tmp_path / "fit.nc"
    with jax.enable_x64(False):
        model = alps.ALPS(
            {"day/night": alps.linear_periodic(7.0), "b": kernels.Exp(scale=2.0), "c": kernels.ExpSquared(scale=5.0)},
            ["u", "v"],
            inclusion_prob=dist.Beta(1.0, 3.0),
            shared_gates={"both": ["day/night", "b"]},
            covariance_bounds={"day/night": {"scale": (6.0, 8.0)}} if engine == "svi" else None,
            noise_variance=0.1,
        )
        fit = short(engine, model, *series(), moves="marginal_gate")
        assert fit.inputs.dtype == np.float32
        alps.save(fit, path, tree=alps.to_datatree(fit))
        loaded = alps.load(path)
        check_same(loaded, fit)
        for name, value in fit.samples.items():
            np.testing.assert_array_equal(loaded.samples[name], value)
    with pytest.raises(ValueError, match="a 32-bit fit, but JAX is in 64-bit now"):
        alps.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["svi", "gibbs"])
def test_all_covariances_at_once(engine, tmp_path):
    fit = short(engine, alps.ALPS(COVARIANCES, ["u", "v"], noise_variance=dist.InverseGamma(2.0, 0.1)), *series())
    alps.save(fit, tmp_path / "fit.nc")
    check_same(alps.load(tmp_path / "fit.nc"), fit)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["svi", "gibbs"])
def test_two_columns_and_fixed_noise(engine, tmp_path):
    t, y = series()
    inputs = np.stack([t, np.cos(t)], 1)
    fit = short(engine, alps.ALPS(OF_COLUMNS, 2, noise_variance=[0.1, 1 / 3]), inputs, y)
    alps.save(fit, tmp_path / "fit.nc")
    check_same(alps.load(tmp_path / "fit.nc"), fit, inputs[:5] + 0.1)


@pytest.mark.slow
def test_states_of_rough_latents(tmp_path):
    """Latents without a low rank have states beside the weights."""
    t, y, _ = sines(150)
    covariances = {"rough": kernels.Exp(scale=2.0) + kernels.Cosine(scale=9.0), "slow": kernels.ExpSquared(scale=99.0)}
    fit = short("gibbs", alps.ALPS(covariances, 2, noise_variance=dist.InverseGamma(2.0, 0.1)), t, y)
    assert fit.features.space is not None
    alps.save(fit, tmp_path / "fit.nc")
    loaded = alps.load(tmp_path / "fit.nc")
    check_same(loaded, fit, t[:3] + 0.4)
    np.testing.assert_array_equal(loaded.samples["x"], fit.samples["x"])


class Mine(kernels.Kernel):
    scale: float

    def evaluate(self, X1, X2):
        return jnp.exp(-(((X1 - X2) / self.scale) ** 2))


@pytest.mark.slow
def test_a_covariance_of_ones_own_needs_the_model_again(tmp_path):
    def model(scale):
        return alps.ALPS({"mine": 2.0 * Mine(scale), "T=7": alps.linear_periodic(7.0)}, 2, noise_variance=0.1)

    path = tmp_path / "fit.nc"
    fit = short("gibbs", model(3.0), *series())
    with pytest.warns(UserWarning, match=r"can't hold test_files.Mine.* alps.load\(path, model=model\)"):
        alps.save(fit, path)
    with pytest.raises(ValueError, match=r"a file can't hold test_files.Mine; make the model again"):
        alps.load(path)
    with pytest.raises(ValueError, match=r"model: .*that was fitted"):
        alps.load(path, model=model(4.0))
    check_same(alps.load(path, model=model(3.0)), fit)


def test_what_cannot_be_saved(fits, trees, tmp_path):
    fit, path = fits["gibbs"], tmp_path / "fit.nc"
    cases = [
        ({}, path, {}, TypeError, "fit: .*got dict"),
        (fit, tmp_path, {}, ValueError, "path: "),
        (fit, tmp_path / "nowhere" / "fit.nc", {}, ValueError, "path: "),
        (fit, path, {"tree": trees["svi"]}, ValueError, "tree: .*other draws"),
        (fit, path, {"tree": alps.to_datatree(fit, num_draws=5)}, ValueError, "tree: .*other draws"),
    ]
    for given, where, more, error, message in cases:
        with pytest.raises(error, match=message):
            alps.save(given, where, **more)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_loaded(saved, tmp_path):
    path, bad = saved["gibbs"], tmp_path / "bad.nc"
    with pytest.raises(ValueError, match="there is none"):
        alps.load(bad)
    for content in (path.read_bytes()[: path.stat().st_size // 2], b"", b"latent,probability\n"):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match=r"bad.nc: .*can't be read as netCDF"):
            alps.load(bad)
    xr.DataTree(xr.Dataset({"a": 1})).to_netcdf(bad, engine="h5netcdf")
    with pytest.raises(ValueError, match="format 2, got other netCDF"):
        alps.load(bad)
    with xr.open_datatree(path, engine="h5netcdf") as tree:
        tree = tree.load()
    for attribute, value, message in (
        ("format", 3, "format 3; a newer alps_ppl"),
        ("format", 1, "format 1; fit again"),
        ("bits", 32, r"a 32-bit fit.*enable_x64\(False\)"),
    ):
        changed = tree.copy()
        changed["alps"].attrs[attribute] = value
        changed.to_netcdf(bad, engine="h5netcdf")
        with pytest.raises(ValueError, match=message):
            alps.load(bad)
