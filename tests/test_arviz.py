"""Trees over cells, latents integrated out, and every call of ArviZ that has a use on a fit with missing cells."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import arviz_plots
import arviz_stats
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from arviz_calls import CALLS, NOT_HERE
from problems import periods, rough_data, rough_model, sines
from scipy import stats
from simulation import MEMORY, OBSERVED, TIMES, small_model
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs.features import latent_features
from alps_ppl.gibbs.kernel import by_latents
from alps_ppl.results.calibration import Calibration
from alps_ppl.results.left_out import left_out

PAGE = Path(__file__).parents[1] / "docs/arviz.md"
TRIED = ["0.8.0", "1.3.3"]  # of arviz-stats
QUICK = {"num_starts": 1, "num_rounds": 0}  # of fit_vb


@pytest.fixture(scope="module")
def vb():
    """Two outputs of ten unsorted times, four cells missing."""
    t, y, _ = sines(10, noise=0.3)
    y[2, 0] = y[5, 1] = y[7] = np.nan
    model = periods(["u", "v"], noise_variance=dist.InverseGamma(3.0, 0.3))
    order = np.random.default_rng(0).permutation(10)
    return alps.fit_vb(model, t[order], y[order], rng_key=jax.random.key(0), progress_bar=False, **QUICK)


@pytest.fixture(scope="module")
def fit(vb):
    """VB's draws as those of two chains, since compiling a sampler takes longer than all calls do."""
    of_chains = jax.tree.map(lambda v: v[0, :100].reshape(2, 50, *v.shape[2:]), (vb.sites, vb.weights, vb.sample_stats))
    return alps.GibbsFit(vb.model, vb.inputs, vb.y, vb.features, *of_chains)


@pytest.fixture(scope="module")
def tree(fit):
    return alps.cell_tree(fit, num_prior=400)


@pytest.fixture(scope="module")
def a(fit, vb, tree):
    """What the calls take."""
    left = alps.cell_tree(fit, integrate_latents=True)
    return SimpleNamespace(
        tree=tree,
        left=left,
        u=tree.isel(cell=np.flatnonzero(tree["observed_data"]["output"] == "u")).isel(output=0),
        v=tree["posterior"]["noise_variance"].transpose("output", ...),
        wrapper=alps.ArvizWrapper(vb, tree=alps.cell_tree(vb, num_draws=100), rng_key=jax.random.key(1), **QUICK),
        ranks=ranks(),
    )


def ranks():
    """The tree of a calibration whose ranks are uniform and whose gates are as probable as they say."""
    rng = np.random.default_rng(0)
    prob = rng.uniform(size=(40, 2))
    pit = {"f": rng.uniform(size=40), "log likelihood": rng.uniform(size=40)}
    return Calibration(pit, rng.uniform(size=(40, 2)) < prob, prob).tree


def test_y_runs_over_the_observed_cells_in_every_group(vb, tree):
    t, y = np.asarray(vb.inputs), np.asarray(vb.y)
    observed = ~np.isnan(y)
    row, column = np.nonzero(observed)
    sizes = {"posterior_predictive": (2, 50, 16), "log_likelihood": (2, 50, 16), "observed_data": (16,)}
    for name, shape in (sizes | {"prior_predictive": (1, 400, 16)}).items():
        assert tree[name]["y"].shape == shape
        assert list(tree[name]["cell"].values) == list(range(16))
        np.testing.assert_array_equal(tree[name]["time"], t[row])
        assert list(tree[name]["output"].values) == [("u", "v")[i] for i in column]
    np.testing.assert_array_equal(tree["observed_data"]["y"], y[observed])
    np.testing.assert_array_equal(tree["constant_data"]["cell_time"], t[row])
    posterior = tree["posterior"].to_dataset().isel(chain=0, draw=7)
    f = (posterior["x"].values.T * posterior["b"].values) @ posterior["H"].values.T
    np.testing.assert_allclose(posterior["f"], f[observed], rtol=1e-10)
    sd = posterior["noise_scale"].values
    expected = stats.norm(f, sd).logpdf(y)[observed]
    np.testing.assert_allclose(tree["log_likelihood"]["y"][0, 7], expected, rtol=1e-8)


def test_where_nothing_is_missing_cells_are_all_there_are(fit):
    whole = replace(fit, y=jnp.nan_to_num(fit.y), sites={n: v[:, :2] for n, v in fit.sites.items()})
    whole = replace(whole, weights=fit.weights[:, :2], sample_stats={})
    tree = alps.cell_tree(whole)
    assert tree["log_likelihood"]["y"].shape == (2, 2, 20)
    assert list(tree["log_likelihood"]["output"][:3].values) == ["u", "v", "u"]


def test_a_file_with_cells_is_read_as_any_other(fit, tree, tmp_path):
    alps.save(fit, tmp_path / "fit.nc", tree=tree)
    np.testing.assert_array_equal(alps.load(tmp_path / "fit.nc").samples["H"], fit.samples["H"])


def test_the_log_prior_is_that_of_each_site(vb, tree):
    draw = tree["posterior"].to_dataset().isel(chain=0, draw=3)
    found = tree["log_prior"].to_dataset().isel(chain=0, draw=3)
    assert sorted(map(str, found.data_vars)) == ["H", "b", "noise_variance"]
    np.testing.assert_allclose(found["b"], 2 * np.log(0.5))
    np.testing.assert_allclose(found["H"], stats.norm(0, np.sqrt(vb.model.mixing_variance)).logpdf(draw["H"]).sum())
    prior = stats.invgamma(3.0, scale=0.3)
    np.testing.assert_allclose(found["noise_variance"], prior.logpdf(draw["noise_variance"]).sum())


def test_the_prior_is_the_program_s(vb, tree):
    """Moments of 400 draws, within six standard errors."""
    prior = tree["prior"].to_dataset()
    assert abs(float(prior["b"].mean()) - 0.5) < 6 * 0.5 / np.sqrt(800)
    square = (prior["H"] ** 2 / vb.model.mixing_variance).mean()
    assert abs(float(square) - 1) < 6 * np.sqrt(2 / 1600)
    # Of four independent gates and loadings, given which y is N(0, sum_j H_j^2 b_j + sigma^2) at each time.
    f = (prior["H"] ** 2 * prior["b"]).sum("latent") + prior["noise_variance"]
    y = tree["prior_predictive"]["y"].isel(cell=[0, 1])[0]  # of both outputs at one time
    assert list(y["output"].values) == ["u", "v"]
    z = y.values / np.sqrt(f.values[0])
    assert abs((z**2).mean() - 1) < 6 * np.sqrt(2 / 400)


def _sites(model, num_draws, outputs, latents):
    rng = np.random.default_rng(4)
    sites = {
        "b": rng.integers(0, 2, (1, num_draws, len(model.gate_names))),
        "H": rng.normal(size=(1, num_draws, outputs, latents)),
        "noise_variance": rng.uniform(0.2, 1.0, (1, num_draws, outputs)),
    }
    if model.private_memory is not None:
        sites["memory"] = rng.integers(0, 3, (1, num_draws, outputs))
    for site, one in zip(model.scale_sites, model.unknown_scales.values(), strict=True):
        sites[site] = rng.choice(np.asarray(one.grid.values), (1, num_draws))
    return {name: jnp.asarray(value) for name, value in sites.items()}


def _left_out_problem(kind):
    if kind == "plain":
        return rough_model(), *rough_data()
    y = np.where(OBSERVED, np.random.default_rng(5).normal(size=OBSERVED.shape), np.nan)
    order = [3, 0, 4, 1, 2]
    return small_model(memory=True, unknown=True), TIMES[order], y[order]


@pytest.mark.parametrize("kind", ["plain", "memories and scales"])
def test_left_out_cells_are_the_ratio_of_two_evidences(kind):
    """Log p(y_c | other cells) = log p(y) - log p(y without c), both the dense joint's; 500 draws of y_c fit it."""
    model, t, y = _left_out_problem(kind)
    features = latent_features(
        model.covariances, jnp.asarray(t), names=model.latents, states=False, unknown=by_latents(model)
    )
    fit = alps.GibbsFit(model, jnp.asarray(t), jnp.asarray(y), features, {}, None, {})
    sites = _sites(model, 2, 2, len(model.latents))
    densities, drawn = left_out(fit, {n: jnp.repeat(v, 500, 1) for n, v in sites.items()}, jax.random.key(0))
    assert densities.shape == drawn.shape == (1, 1000, *y.shape)
    for s in range(2):
        draw = {name: np.asarray(value[0, s]) for name, value in sites.items()}
        own = None
        if "memory" in draw:
            own = [reference.own_covariance(MEMORY.share[g], MEMORY.lengthscale[g], t, t) for g in draw["memory"]]
        points = {name: float(draw[name]) for name in model.scale_sites}
        of = (model.at_scales(points), draw["H"], np.asarray(model.gates(draw["b"])), draw["noise_variance"], t)
        whole = reference.log_evidence(*of, y, own)
        for cell in zip(*np.nonzero(~np.isnan(y)), strict=True):
            without = y.copy()
            without[cell] = np.nan
            expected = whole - reference.log_evidence(*of, without, own)
            np.testing.assert_allclose(densities[0, 500 * s][cell], expected, rtol=1e-6, atol=1e-8)
            here = drawn[0, 500 * s : 500 * (s + 1), *cell]
            z = (y[cell] - here.mean()) / here.std()
            # By the delta method: the log density's error from a mean and sd of 500 draws.
            error = np.sqrt((z**2 + (z**2 - 1) ** 2 / 2) / 500)
            assert abs(stats.norm(here.mean(), here.std()).logpdf(y[cell]) - expected) < 6 * error + 0.02


@pytest.mark.slow
def test_states_are_integrated_out_as_features_are():
    """A rough latent of 70 times has Markov states; its features give the same densities."""
    t = np.arange(70.0)
    y = np.random.default_rng(0).normal(size=(70, 1))
    model = alps.ALPS({"rough": kernels.Exp(scale=3.0)}, 1, noise_variance=dist.InverseGamma(3.0, 0.3))
    names = model.latents
    by_states, by_features = (
        latent_features(model.covariances, jnp.asarray(t), names=names, states=states) for states in (True, False)
    )
    assert by_states.space is not None
    assert by_features.space is None
    sites = _sites(model, 2, 1, 1)
    a, b = (
        left_out(alps.GibbsFit(model, jnp.asarray(t), jnp.asarray(y), one, {}, None, {}), sites, jax.random.key(0))[0]
        for one in (by_states, by_features)
    )
    np.testing.assert_allclose(a, b)


def test_a_wrapper_s_refit_gives_the_density_of_what_it_has_not_seen(a, vb):
    wrapper = a.wrapper
    cells = np.array([3, 8])
    left, excluded = wrapper.sel_observations(cells)
    y, (row, column) = np.asarray(vb.y), np.nonzero(~np.isnan(np.asarray(vb.y)))
    assert np.isnan(left).sum() == np.isnan(y).sum() + 2
    assert np.isnan(left[row[cells], column[cells]]).all()
    refit = wrapper.sample(left)
    density = wrapper.log_likelihood__i(excluded, wrapper.get_inference_data(refit))
    assert density.shape == (1, 1000, 2)
    expected = alps.log_predictive_density(refit, vb.inputs, y).values[row[cells], column[cells]]
    np.testing.assert_allclose(np.log(np.exp(density).mean(("chain", "draw"))), expected, rtol=1e-6)
    again = alps.fit_vb(vb.model, vb.inputs, left, rng_key=jax.random.key(1), progress_bar=False, **QUICK)
    np.testing.assert_array_equal(again.weights, refit.weights)


def test_what_can_t_be_is_an_error(vb, fit, tree):
    with pytest.raises(TypeError, match=r"fit: expected .*got int"):
        alps.cell_tree(3)
    with pytest.raises(TypeError, match=r"fit: expected what fit_gibbs .*got VBFit"):
        alps.cell_tree(vb, integrate_latents=True)
    with pytest.raises(ValueError, match=r"num_prior: .*whole number"):
        alps.cell_tree(vb, num_prior=-1)
    with pytest.raises(ValueError, match=r"num_draws: .*whole number"):
        alps.cell_tree(vb, num_draws=0)
    student = alps.ALPS({"a": alps.linear_periodic(3.0)}, 2, noise_variance=0.1, noise_df=4.0)
    with pytest.raises(ValueError, match="Student's noise"):
        alps.cell_tree(replace(fit, model=student), integrate_latents=True)
    with pytest.raises(ValueError, match="cell_tree's"):
        alps.variance_shares(tree)


# ArviZ's own: a Pareto k of few draws, and what newer versions of pandas and xarray tell it.
@pytest.mark.filterwarnings(
    "ignore:Estimated shape parameter of Pareto", "ignore::DeprecationWarning", "ignore::FutureWarning"
)
@pytest.mark.parametrize("name", CALLS)
def test_a_call(name, a):
    module = arviz_plots if "plot" in name else arviz_stats
    if not hasattr(module, name):
        pytest.skip(f"{module.__name__} {module.__version__} hasn't {name}")
    found = CALLS[name](a)
    plt.close("all")
    assert found is not None


def test_the_page_lists_every_call():
    """And the calls of the versions that were tried are all there are."""
    _, tables = PAGE.read_text().split("## Every call")
    used, not_here = tables.split("### Not here")
    assert sorted(re.findall(r"^\| `(\w+)` \|", used, re.MULTILINE)) == sorted(CALLS)
    first = "".join(row.split("|")[1] for row in not_here.splitlines() if row.startswith("|"))
    assert sorted(re.findall(r"`(\w+)`", first)) == sorted(NOT_HERE)
    if arviz_stats.__version__ not in TRIED:
        pytest.skip(f"arviz_stats {arviz_stats.__version__} is none of {TRIED}")
    both = [(name, getattr(module, name)) for module in (arviz_stats, arviz_plots) for name in dir(module)]
    there = {name for name, value in both if inspect.isfunction(value) and not name.startswith("_")}
    assert there <= {*CALLS, *NOT_HERE}
