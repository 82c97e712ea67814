"""ArviZ trees and the inclusion table."""

import arviz_stats.base
import jax
import numpy as np
import pytest
import xarray as xr
from numpyro.infer import MCMC
from scipy import stats

import alps_ppl as alps
from alps_ppl.diagnostics import worst_convergence


@pytest.fixture(scope="module")
def problem():
    """A period of 7 that two latents share, a decoy, a missing cell."""
    rng = np.random.default_rng(1)
    t = np.arange(40.0)
    y = np.sin(2 * np.pi * t / 7)[:, None] * [1.0, -0.8] + 0.3 * rng.normal(size=(40, 2))
    y[3, 1] = np.nan
    covariances = {
        "T=7": alps.linear_periodic(7.0),
        "T=5": alps.linear_periodic(5.0),
        "T=7 again": alps.linear_periodic(7),
    }
    return alps.ALPS(covariances, ["u", "v"], noise_variance=0.1), t, y


@pytest.fixture(scope="module")
def mcmc(problem):
    run = MCMC(
        alps.ALPSGibbs(problem[0]), num_warmup=300, num_samples=1500, num_chains=4, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    run.run(jax.random.key(0), *problem[1:])
    return run


@pytest.fixture(scope="module")
def trees(problem, mcmc):
    model, t, y = problem
    fit = alps.fit_svi(model, t, y, num_inducing=8, num_steps=3000, rng_key=jax.random.key(1), progress_bar=False)
    return {
        "svi": alps.to_datatree(fit, model, t, y, num_draws=200),
        "gibbs": alps.to_datatree(mcmc, model, t, y),
    }


def test_groups_dims_and_coordinates(trees, problem):
    model, t, _ = problem
    for tree in trees.values():
        assert {"posterior", "sample_stats", "posterior_predictive", "log_likelihood", "observed_data"} <= set(
            tree.children
        )
        assert tree["posterior"]["x"].dims == ("chain", "draw", "latent", "time")
        assert tree["posterior"]["H"].dims == ("chain", "draw", "output", "latent")
        assert list(tree["posterior"]["latent"].values) == list(model.latents)
        assert list(tree["observed_data"]["output"].values) == ["u", "v"]
        np.testing.assert_array_equal(tree["posterior"]["time"], t)
        assert tree["posterior"]["b"].dtype.kind == "i"
    assert trees["svi"].attrs["engine"] == "svi"
    assert trees["gibbs"]["sample_stats"]["lp"].shape == (4, 1500)


def test_log_likelihood_is_the_loop_and_leaves_missing_cells_out(trees, problem):
    y = problem[2]
    tree = trees["gibbs"]
    likelihood = tree["log_likelihood"]["y"]
    assert likelihood.sizes["cell"] == 79
    post = tree["posterior"]
    draw = {name: post[name].values[1, 5] for name in ("x", "b", "H")}
    f = (draw["x"].T * draw["b"]) @ draw["H"].T
    expected = stats.norm(f, np.sqrt(0.1)).logpdf(y)
    np.testing.assert_allclose(likelihood.values[1, 5], expected[~np.isnan(y)], rtol=1e-8)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")
def test_arviz_works_on_both_trees(trees):
    for engine, tree in trees.items():
        loo = arviz_stats.loo(tree)
        assert np.isfinite(loo.elpd)
        summary = arviz_stats.summary(tree, var_names=["b"]) if engine == "gibbs" else None
        assert summary is None or len(summary) == 3


def test_trees_survive_netcdf(trees, tmp_path):
    for engine, tree in trees.items():
        tree.to_netcdf(tmp_path / f"{engine}.nc", engine="h5netcdf")
        again = xr.open_datatree(tmp_path / f"{engine}.nc", engine="h5netcdf")
        xr.testing.assert_equal(again["posterior"].to_dataset(), tree["posterior"].to_dataset())
        assert alps.inclusion_table({engine: again}).equals(alps.inclusion_table({engine: tree}))
        again.close()


def test_table_rows_and_group(trees, mcmc):
    table = alps.inclusion_table(trees)
    assert list(table.columns) == [
        "latent",
        "engine",
        "probability",
        "mcse",
        "r_hat",
        "ess",
        "prior",
        "members",
        "group",
    ]
    assert list(table.members) == [1, 1, 1, 2] * 2
    assert list(table.group) == [0, 1, 0, 0] * 2
    for engine in ("svi", "gibbs"):
        rows = table[table.engine == engine].set_index("latent")
        assert list(rows.index) == ["T=7", "T=5", "T=7 again", "T=7 or T=7 again"]
        assert rows.probability["T=7 or T=7 again"] > 0.99
        assert rows.prior["T=7 or T=7 again"] == pytest.approx(0.75)
        assert rows.probability["T=5"] < 0.1
    gibbs = table[table.engine == "gibbs"].set_index("latent")
    b = np.asarray(mcmc.get_samples()["b"])
    assert gibbs.probability["T=5"] == pytest.approx(b[:, 1].mean(), abs=6 * np.sqrt(0.1 * 0.9 / 1000))
    assert gibbs.probability["T=7 or T=7 again"] == pytest.approx((b[:, 0] | b[:, 2]).mean())
    assert table[table.engine == "svi"].mcse.isna().all()


def test_members_of_a_group_are_not_reported_as_a_failure(trees):
    """One chain on one twin, the other chain on the other: the pair is certain, its members' R-hat isn't the fit's."""
    tree = trees["gibbs"].copy(deep=True)
    b = np.zeros((4, 1500, 3), int)
    b[:2, :, 0] = b[2:, :, 2] = 1
    b[:, ::30, 1] = 1
    tree["posterior"]["b"].values[:] = b
    tree["sample_stats"]["gate_prob"].values[:] = b
    table = alps.inclusion_table({"gibbs": tree})
    rows = table.set_index("latent")
    assert rows.r_hat["T=7"] == np.inf
    assert rows.r_hat["T=7 or T=7 again"] == 1.0
    assert worst_convergence(table, "gibbs")[0] < 1.01


def test_a_latent_may_be_named_like_a_group(trees):
    """Its row is its own, and isn't taken for the group's."""
    tree = (
        trees["gibbs"]
        .copy(deep=True)
        .map_over_datasets(
            lambda d: d.assign_coords(latent=["T=7", "T=7 or T=7 again", "T=7 again"]) if "latent" in d.dims else d
        )
    )
    tree.attrs.update(trees["gibbs"].attrs)
    tree["posterior"]["b"][:2, :, 1], tree["posterior"]["b"][2:, :, 1] = 0, 1
    table = alps.inclusion_table(tree)
    assert list(table.latent) == ["T=7", "T=7 or T=7 again", "T=7 again", "(T=7 or T=7 again)"]
    assert list(table.engine) == ["gibbs"] * 4
    assert worst_convergence(table, "gibbs")[0] == np.inf


def test_one_chain_has_no_r_hat_and_one_draw_tells_nothing(trees):
    """Not a made-up number, for gates that never move too."""
    one = trees["gibbs"].isel(chain=[0]).copy(deep=True)
    one["posterior"]["b"].values[..., 0] = 1
    table = alps.inclusion_table({"gibbs": one})
    assert table.r_hat.isna().all()
    assert table.mcse.notna().all()
    assert np.isnan(worst_convergence(table, "gibbs")[0])
    single = alps.inclusion_table({"gibbs": trees["gibbs"].isel(draw=[0])})
    assert single[["mcse", "r_hat", "ess"]].isna().all(axis=None)
    assert single.probability.notna().all()


def test_what_isnt_a_tree_is_an_error(trees, mcmc):
    with pytest.raises(TypeError, match=r"trees: expected to_datatree's result, or several by engine, got MCMC"):
        alps.inclusion_table(mcmc)
    with pytest.raises(TypeError, match=r"trees\['gibbs'\]: expected to_datatree's result, got"):
        alps.inclusion_table({"gibbs": mcmc})
    with pytest.raises(TypeError, match=r"trees\['svi'\]: expected to_datatree's result, got"):
        alps.inclusion_table({"svi": trees["svi"]["posterior"]})


def test_signs_are_aligned(trees):
    posterior = trees["gibbs"]["posterior"].to_dataset()
    flip = xr.DataArray(np.random.default_rng(0).choice([-1, 1], (4, 1500)), dims=("chain", "draw"))
    flipped = posterior.assign(x=posterior["x"] * flip, H=posterior["H"] * flip)
    aligned, again = alps.align_signs(posterior), alps.align_signs(flipped)
    xr.testing.assert_allclose(abs(aligned["H"]), abs(posterior["H"]))
    on = (posterior["b"].sel(latent="T=7") == 1) & (posterior["b"].sel(latent="T=7 again") == 0)
    for result in (aligned, again):
        H = result["H"].sel(latent="T=7").where(on)
        assert float(H.sel(output="u").mean()) == pytest.approx(float(abs(H.sel(output="u")).mean()), rel=0.02)
        assert float(H.sel(output="v").mean()) < 0
    f = (aligned["x"] * aligned["H"] * aligned["b"]).isel(chain=0, draw=3)
    xr.testing.assert_allclose(f, (posterior["x"] * posterior["H"] * posterior["b"]).isel(chain=0, draw=3))


def test_non_finite_draws_are_an_error(mcmc, problem, monkeypatch):
    model, t, y = problem
    samples = mcmc.get_samples(group_by_chain=True)
    broken = samples | {"H": samples["H"].at[0, 0].set(np.nan)}
    monkeypatch.setattr(mcmc, "get_samples", lambda group_by_chain=False: broken)
    with pytest.raises(ValueError, match=r"the draws of H hold values that aren't finite; fit again in 64-bit"):
        alps.to_datatree(mcmc, model, t, y)


def test_gate_diagnostics_vectors_and_numbers(trees):
    """Against counts by loops; the probabilities' mean is the inclusion table's."""
    tree = trees["gibbs"]
    gates, probs = tree["posterior"]["b"].values, tree["sample_stats"]["gate_prob"].values
    frame = alps.gate_diagnostics(tree)
    table = alps.inclusion_table(tree)
    for j, name in enumerate(frame.index):
        flips = sum(gates[c, d, j] != gates[c, d + 1, j] for c in range(4) for d in range(1499))
        assert frame.flips[name] == pytest.approx(1000 * flips / (4 * 1499))
        assert frame.lowest[name] <= table.set_index("latent").probability[name] <= frame.highest[name]
        assert frame.ess[name] == pytest.approx(float(arviz_stats.base.array_stats.ess(probs[..., j])))
    # The exchange of the two latents of period 7 makes each of them flip.
    assert frame.flips["T=7"] > 10

    vectors = alps.gate_vectors(tree)
    for _, row in vectors.iterrows():
        share = (gates == row[list(frame.index)].to_numpy()).all(-1).mean()
        assert row.probability == pytest.approx(share)
    assert vectors.probability.is_monotonic_decreasing
    assert len(alps.gate_vectors(tree, top=2)) == 2
    numbers = alps.num_active(tree)
    assert numbers.probability.sum() == pytest.approx(1)
    assert list(numbers.index) == [0, 1, 2, 3]
    assert numbers.probability[2] == pytest.approx((gates.sum(-1) == 2).mean())
    assert (numbers.mcse.dropna() > 0).all()


@pytest.mark.slow
def test_chains_start_from_an_svi_fit(problem):
    model, t, y = problem
    fit = alps.fit_svi(model, t, y, num_inducing=8, num_steps=300, rng_key=jax.random.key(1), progress_bar=False)
    run = MCMC(
        alps.ALPSGibbs(model), num_warmup=0, num_samples=5, num_chains=2, chain_method="vectorized", progress_bar=False
    )
    start = alps.init_from_svi(fit, jax.random.key(3), num_chains=2)
    run.run(jax.random.key(0), t, y, init_params=start)
    assert start["x"].shape == (2, 3, 40)
    assert np.isfinite(run.get_samples()["x"]).all()
    assert alps.init_from_svi(fit, jax.random.key(3))["b"].shape == (3,)


def test_two_engines_side_by_side(trees, mcmc, problem):
    model, t, y = problem
    prediction = alps.predict(mcmc, model, t, y, t)
    shifted = prediction.assign(
        mean=prediction["mean"] + 0.1 * prediction["sd"].mean("time"), sd=1.5 * prediction["sd"]
    )
    table = alps.compare_engines(trees, {"svi": shifted, "gibbs": prediction}).set_index(["quantity", "of"])
    wide = alps.inclusion_table(trees).pivot(index="latent", columns="engine", values="probability")
    gates = table.loc["inclusion probability"]
    np.testing.assert_allclose(gates["difference"], (wide["svi"] - wide["gibbs"]).loc[gates.index])
    np.testing.assert_allclose(table.loc["predictive mean"]["difference"], 0.1)
    np.testing.assert_allclose(table.loc["predictive sd"]["difference"], 0.5)
    on = wide.index[((wide > 0.5).all(axis=1)) & ~wide.index.str.contains(" or ")]
    assert {of.split(", ")[1] for of in table.loc["H mean"].index} == set(on)
    same = alps.compare_engines({"a": trees["gibbs"], "b": trees["gibbs"]}, {"a": prediction, "b": prediction})
    assert (same.difference == 0).all()
    bare = xr.DataTree.from_dict({"posterior": trees["gibbs"]["posterior"].to_dataset()})
    with pytest.raises(TypeError, match="expected to_datatree's result"):
        alps.inclusion_table(bare)
    with pytest.raises(ValueError, match="expected predict's results at the same inputs"):
        alps.compare_engines(trees, {"svi": alps.predict(mcmc, model, t, y, t + 1), "gibbs": prediction})
    with pytest.raises(
        ValueError, match=r"expected two engines, the same in both, got \['svi', 'gibbs'\] and \['svi'\]"
    ):
        alps.compare_engines(trees, {"svi": prediction})
