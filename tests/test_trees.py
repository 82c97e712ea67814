"""ArviZ trees of fits."""

import arviz_stats
import jax
import numpy as np
import pytest
import xarray as xr
from problems import sines, twins
from scipy import stats

import alps_ppl as alps
from alps_ppl.results.trees import as_tree, as_trees

GROUPS = ["posterior", "sample_stats", "posterior_predictive", "log_likelihood", "observed_data", "constant_data"]


def test_groups_dims_and_coordinates(trees):
    model, t, y, _ = twins()
    for engine, tree in trees.items():
        assert tree.attrs["engine"] == engine
        assert sorted(tree.children) == sorted(GROUPS)
        posterior = tree["posterior"]
        assert posterior["x"].dims == ("chain", "draw", "latent", "time")
        assert posterior["H"].dims == ("chain", "draw", "output", "latent")
        assert posterior["noise_variance"].dims == ("chain", "draw", "output")
        assert list(posterior["latent"].values) == list(model.latents)
        assert list(tree["observed_data"]["output"].values) == ["u", "v", "w"]
        np.testing.assert_array_equal(posterior["time"], t)
        np.testing.assert_array_equal(tree["observed_data"]["y"], y)
        assert posterior["b"].dtype.kind == "i"
    assert trees["svi"]["posterior"]["b"].shape[:2] == (1, 1000)
    assert trees["gibbs"]["sample_stats"]["lp"].shape == (4, 500)


@pytest.mark.parametrize("engine", ["svi", "gibbs"])
def test_log_likelihood_is_the_loop_and_leaves_missing_cells_out(engine, trees):
    tree, y = trees[engine], twins()[2]
    likelihood = tree["log_likelihood"]["y"]
    assert likelihood.sizes["cell"] == (~np.isnan(y)).sum()
    draw = tree["posterior"].to_dataset().isel(chain=0, draw=5)
    f = (draw["x"].values.T * draw["b"].values) @ draw["H"].values.T
    expected = stats.norm(f, np.sqrt(draw["noise_variance"].values)).logpdf(y)
    np.testing.assert_allclose(likelihood.values[0, 5], expected[~np.isnan(y)], rtol=1e-8)


def test_a_fit_s_tree_without_y_has_the_same_draws(fits, trees):
    for engine, fit in fits.items():
        xr.testing.assert_equal(
            as_tree(fit, needs="x")["posterior"].to_dataset(), trees[engine]["posterior"].to_dataset()
        )
        assert "x" not in as_tree(fit)["posterior"]
        assert list(as_trees(fit)) == list(as_trees(trees[engine])) == [engine]


def test_few_draws_of_each_chain(fits, trees):
    tree = alps.to_datatree(fits["gibbs"], num_draws=5)
    places = [0, 125, 250, 374, 499]
    whole = trees["gibbs"].isel(draw=places)
    for name in ("x", "b", "H"):
        np.testing.assert_array_equal(tree["posterior"][name], whole["posterior"][name])
    np.testing.assert_array_equal(tree["sample_stats"]["lp"], whole["sample_stats"]["lp"])
    np.testing.assert_allclose(tree["log_likelihood"]["y"], whole["log_likelihood"]["y"], rtol=1e-12)
    with pytest.raises(ValueError, match=r"num_draws: .*whole number"):
        alps.to_datatree(fits["gibbs"], num_draws=0)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_arviz_works_on_both_trees(trees):
    for tree in trees.values():
        assert np.isfinite(arviz_stats.loo(tree).elpd)
    # H: a gate that never moves has no R-hat in ArviZ.
    assert len(arviz_stats.summary(trees["gibbs"], var_names=["H"])) == trees["gibbs"]["posterior"]["H"][0, 0].size


def test_trees_survive_netcdf(trees, tmp_path):
    for engine, tree in trees.items():
        tree.to_netcdf(tmp_path / f"{engine}.nc", engine="h5netcdf")
        with xr.open_datatree(tmp_path / f"{engine}.nc", engine="h5netcdf") as again:
            xr.testing.assert_equal(again["posterior"].to_dataset(), tree["posterior"].to_dataset())
            assert alps.inclusion_table({engine: again}).equals(alps.inclusion_table({engine: tree}))


def test_what_is_neither_a_tree_nor_a_fit_is_an_error(trees):
    posterior = trees["gibbs"]["posterior"].to_dataset()
    cases = [
        ({}, ValueError, "trees: .*at least one"),
        (3, TypeError, "tree: expected a fit or its to_datatree, got int"),
        ({"a": posterior}, TypeError, r"trees\['a'\]: .*got Dataset"),
        (xr.DataTree.from_dict({"other": posterior}), ValueError, "tree: .*without posterior"),
        (xr.DataTree.from_dict({"posterior": posterior.drop_vars("b")}), ValueError, "tree: expected draws of b"),
    ]
    for given, error, message in cases:
        with pytest.raises(error, match=message):
            as_trees(given)


def test_names_line_up_after_dropping_latents(tmp_path):
    """Three of six latents, one named like an output, others like a site and a dim: in the tree, table, H and file."""
    t, y, _ = sines()
    names = ["H", "time", "T=13"]
    lengths = {"T=4": 4.0, "H": 7.0, "T=3": 3.0, "T=11": 11.0, "time": 5.0, "T=13": 13.0}
    latents = {name: alps.linear_periodic(length) for name, length in lengths.items()}
    model = alps.ALPS(latents, ["time", "H"], noise_variance=0.1).subset(names[::-1])
    settings = {"num_warmup": 50, "num_samples": 50, "num_chains": 1, "moves": "collapsed", "progress_bar": False}
    fit = alps.fit_gibbs(model, t, y, rng_key=jax.random.key(0), **settings)
    table = alps.inclusion_table(fit)
    assert list(table.latent) == names
    assert table.set_index("latent").probability.idxmax() == "H"
    alps.save(fit, tmp_path / "fit.nc", tree=alps.to_datatree(fit))
    with xr.open_datatree(tmp_path / "fit.nc", engine="h5netcdf") as read:
        assert list(read["posterior"]["latent"].values) == names
        for j, name in enumerate(names):
            H = read["posterior"]["H"].sel(latent=name)
            np.testing.assert_array_equal(H, fit.samples["H"][..., j])
            np.testing.assert_array_equal(H.sel(output="time"), fit.samples["H"][..., 0, j])
            np.testing.assert_array_equal(read["posterior"]["b"].sel(latent=name), fit.samples["b"][..., j])
