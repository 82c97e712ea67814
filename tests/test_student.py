"""Student's noise: its grid, its program, the statistics at given factors and the factors' draw, against dense sums."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import stats
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs import features
from alps_ppl.gibbs.features import latent_features
from alps_ppl.gibbs.products import moments, residual_statistics
from alps_ppl.gibbs.statistics import statistics
from alps_ppl.gibbs.student import at_factors, draw_factors
from alps_ppl.model.memory import OutputNoise, PrivateMemory
from alps_ppl.model.tails import NoiseFactors, noise_factors, spread_evenly
from alps_ppl.results.outliers import cell_weights

T = np.array([3.0, 0.5, 0.9, 2.0, 2.0, 7.0, 4.4])
SHARE, LENGTH = np.array([0.0, 0.8, 0.999]), np.array([1.0, 0.4, 9.0])
MEMORY = PrivateMemory(SHARE, LENGTH, np.log([0.5, 0.3, 0.2]))


def data():
    y = np.random.default_rng(0).normal(size=(7, 3))
    y[1, 0] = y[[2, 4], 1] = y[6] = np.nan
    return y


@pytest.mark.parametrize("df", [2.0, 3.0, 4.0, 10.0, 30.0])
def test_the_mixture_is_students(df):
    """Its density is within .0025, and the probability of |z| > 2 within .003."""
    grid = noise_factors(df)
    assert np.exp(grid.log_prior).sum() == pytest.approx(1.0, abs=1e-9)
    assert grid.variance[grid.one] == 1.0
    z = np.linspace(-60, 60, 2001)
    noise = grid.mixture(jnp.zeros((2001, 1)), jnp.ones(1))
    np.testing.assert_allclose(np.exp(noise.log_prob(z[:, None]))[:, 0], stats.t(df).pdf(z), atol=0.0025)
    beyond = 2 * np.exp(grid.log_prior) @ stats.norm(0, np.sqrt(grid.variance)).sf(2)
    assert beyond == pytest.approx(2 * stats.t(df).sf(2), abs=0.003)


def test_even_draws_have_the_priors_probabilities():
    grid = noise_factors(4.0)
    drawn = np.asarray(spread_evenly(grid, 1000, 3))
    for v, prob in zip(grid.variance, np.exp(grid.log_prior), strict=True):
        assert np.abs((drawn == v).mean(0) - prob).max() <= 1 / 1000
    assert not np.array_equal(drawn[:, 0], drawn[:, 1])


@functools.cache
def sampled(states, memory):
    """A model, its features and statistics, and where a chain is."""
    t = T.copy() if states else T + 0.3 * np.arange(7)  # with states, a time that is there twice
    third = alps.linear_periodic(2.5) if states else kernels.Exp(scale=2.0)
    m = alps.ALPS(
        {"a": kernels.Exp(scale=0.7), "b": kernels.Matern32(scale=1.5), "c": third},
        3,
        copies={"c": 2},
        noise_variance=dist.InverseGamma(3.0, 1.0),
        mixing_variance=[1.0, 0.7, 2.0],
        private_memory=MEMORY if memory else None,
        noise_df=3.0,
        jitter=None if states else 0.0,
    )
    with mock.patch.object(features, "LOW_RANK", 2 if states else features.LOW_RANK):
        basis = latent_features(m.covariances, *m.check(t)[:1], names=m.latents)
    assert (basis.space is not None) == states
    found = statistics(basis, jnp.asarray(data()), m.private_memory, student=True)
    rng = np.random.default_rng(5)
    here = {"weights": rng.normal(size=len(basis.owner)), "H": 0.3 * rng.normal(size=(3, 4))}
    here |= {"noise_variance": np.array([0.2, 0.5, 0.9]), "b": np.array([1.0, 0, 1, 1])}
    here |= {"noise_factor": rng.integers(0, len(m.tails.variance), (7, 3))}
    here |= {"memory": np.array([1, 2, 0])} if memory else {}
    return m, basis, found, t, {name: jnp.asarray(value) for name, value in here.items()}


def own(m, t, here):
    v = m.tails.variance[np.asarray(here["noise_factor"])]
    points = np.asarray(here.get("memory", np.zeros(3, int)))
    return [reference.own_covariance(SHARE[g], LENGTH[g], t, t, v[:, i]) for i, g in enumerate(points)]


SLOW = pytest.mark.slow
CASES = pytest.mark.parametrize("memory", [pytest.param(False, marks=SLOW), True])
BOTH = pytest.mark.parametrize("states", [pytest.param(False, marks=SLOW), True])


@pytest.mark.parametrize(
    ("states", "memory"), [(False, False), (False, True), pytest.param(True, False, marks=SLOW), (True, True)]
)
def test_evidence_at_given_factors_is_the_dense_joints(states, memory):
    m, _, found, t, here = sampled(states, memory)
    factors = jnp.asarray(m.tails.variance)[here["noise_factor"]]
    given = at_factors(found, factors, here.get("memory")).given(here.get("memory"))
    arguments = here["H"], here["b"], here["noise_variance"]
    expected = reference.log_evidence(m.covariances, *arguments, t, data(), own(m, t, here))
    np.testing.assert_allclose(c.log_evidence(given, *arguments), expected, atol=1e-8)


@BOTH
@CASES
def test_products_at_given_factors_are_dense(states, memory):
    """x_j^T C_i^-1 x_k over the observed cells, and the same with y_i."""
    m, basis, found, t, here = sampled(states, memory)
    factors = jnp.asarray(m.tails.variance)[here["noise_factor"]]
    given = at_factors(found, factors, here.get("memory")).given(here.get("memory"))
    products = moments(given, here["weights"], 4)
    x, y = np.asarray(basis.latents(here["weights"], basis.phi())), data()
    for i, C in enumerate(own(m, t, here)):
        seen = ~np.isnan(y[:, i])
        solved = np.linalg.solve(C[np.ix_(seen, seen)], np.column_stack([x[:, seen].T, y[seen, i]]))
        np.testing.assert_allclose(products.xx[i], x[:, seen] @ solved[:, :-1], rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(products.xy[i], x[:, seen] @ solved[:, -1], rtol=1e-8, atol=1e-9)


GRID = NoiseFactors(np.array([0.5, 1.0, 30.0]), np.log([0.3, 0.5, 0.2]))
SPIKE, SHIFT = np.array([0.3, 4.0, -0.2, 0.1]), np.array([0.1, 2.5, 2.6, 2.4])


def counts_after_a_draw(key, share, errors, draw=draw_factors, num=60_000):
    """How often each combination of factors comes, one draw after factors from their posterior; and what is right."""
    t = np.array([0.0, 0.4, 0.9, 3.0])
    combinations, posterior = reference.factor_posterior(*GRID, errors, share, 1.3, t)
    keys = jax.random.split(key)
    start = jnp.asarray(combinations)[jax.random.choice(keys[0], len(combinations), (num,), p=jnp.asarray(posterior))]
    memory = PrivateMemory(jnp.array([share]), jnp.array([1.3]), None)

    def one(points, u):
        precision = 1 / jnp.asarray(GRID.variance)[points]
        return draw(GRID, jnp.asarray(errors)[:, None], jnp.asarray(t), precision[:, None], memory, u)[:, 0]

    drawn = jax.vmap(one)(start, jax.random.uniform(keys[1], (num, 4, 1)))
    found = np.bincount(np.asarray(drawn) @ 3 ** np.arange(3, -1, -1), minlength=81)
    return found, num * posterior


@pytest.mark.parametrize("errors", [SPIKE, SHIFT])
@pytest.mark.parametrize("share", [0.0, 0.6, 0.95])
def test_a_draw_of_the_factors_keeps_their_posterior(share, errors, key):
    """All 81 combinations of four cells with a memory beside them, against the dense sum."""
    found, expected = counts_after_a_draw(key, share, errors)
    often = expected > 5
    rest = np.append(found[often], found[~often].sum()), np.append(expected[often], expected[~often].sum())
    rest = [part[rest[1] > 0] for part in rest]
    assert stats.chisquare(*rest).pvalue > 1e-4


def test_a_draw_that_forgets_the_later_cells_is_caught(key):
    def forgetful(grid, errors, times, precision, memory, uniform):
        with mock.patch("alps_ppl.gibbs.student.jax.lax.scan", without_the_future):
            return draw_factors(grid, errors, times, precision, memory, uniform)

    scan = jax.lax.scan

    def without_the_future(step, start, steps, reverse=False):
        after, found = scan(step, start, steps, reverse=reverse)
        return (after, jax.tree.map(jnp.zeros_like, found)) if reverse else (after, found)

    found, expected = counts_after_a_draw(key, 0.95, SHIFT, forgetful)
    often = expected > 5
    assert ((found - expected)[often] ** 2 / expected[often]).sum() > stats.chi2(often.sum()).isf(1e-6)


@pytest.mark.parametrize("memory", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_program_with_students_noise(memory):
    """Its log density is the sum of its sites'; y's is the dense normal around f with the factors in it."""
    m, *_ = sampled(True, memory)
    cells = data()
    trace = handlers.trace(handlers.seed(m, 0)).get_trace(T)
    assert trace["noise_factor"]["value"].shape == trace["y"]["value"].shape == (7, 3)
    sites = {n: s["value"] for n, s in trace.items() if s["type"] == "sample" and n != "y"}
    total, conditioned = log_density(m, (T, cells), {}, sites)
    prior, _ = log_density(handlers.block(m, hide=["y"]), (T, cells), {}, sites)
    f = np.asarray(conditioned["f"]["value"])
    expected = 0.0
    for i, C in enumerate(own(m, T, sites)):
        seen = ~np.isnan(cells[:, i])
        cov = float(sites["noise_variance"][i]) * C[np.ix_(seen, seen)]
        expected += stats.multivariate_normal(f[seen, i], cov).logpdf(cells[seen, i])
    np.testing.assert_allclose(total - prior, expected, rtol=1e-8)


@SLOW
def test_a_cells_density_sums_its_factor_out():
    """Given the earlier cells and their factors: Student's where there is no memory, else the ratio of dense sums."""
    grid, t = noise_factors(3.0), jnp.arange(3.0)
    f, y = jnp.zeros((3, 1)), jnp.array([[0.2], [2.0], [-0.4]])
    v = jnp.asarray(grid.variance)[jnp.array([[3], [6], [4]])]
    none, memory = (PrivateMemory(jnp.array([rho]), jnp.array([2.0]), None) for rho in (0.0, 0.7))
    white = OutputNoise(f, jnp.ones(1), none, t, factors=v).by_cell(y, grid)
    np.testing.assert_allclose(white, grid.mixture(f, jnp.ones(1)).log_prob(y), rtol=1e-9)
    found = OutputNoise(f, jnp.ones(1), memory, t, factors=v).by_cell(y, grid)[2, 0]
    logs = []
    for mine in grid.variance:
        C = reference.own_covariance(0.7, 2.0, t, t, np.array([*v[:2, 0], mine]))
        logs.append(stats.multivariate_normal(cov=C).logpdf(y[:, 0]))
    before = stats.multivariate_normal(cov=C[:2, :2]).logpdf(y[:2, 0])
    expected = np.log(np.exp(grid.log_prior) @ np.exp(np.array(logs) - before))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def spiky(seed=0, n=150):
    """Two outputs of one cycle with Student's noise of three degrees, two cells moved far, some missing."""
    rng = np.random.default_rng(seed)
    t = np.arange(float(n))
    y = np.column_stack([np.sin(2 * np.pi * t / 24 + phase) for phase in (0.0, 1.0)]) + 0.3 * rng.standard_t(3, (n, 2))
    y[40, 0] += 12
    y[90, 1] -= 12
    y[10:14] = np.nan
    return t, y


def student_model(t, memory=True, df=4.0):
    return alps.ALPS(
        {"daily": alps.linear_periodic(24.0), "decoy": alps.linear_periodic(31.0)},
        2,
        copies={"daily": 2, "decoy": 2},
        noise_variance=dist.InverseGamma(1.0, 0.2),
        private_memory=alps.private_memory(t) if memory else None,
        noise_df=df,
    )


def sampled_from(df):
    t, y = spiky()
    settings = {"num_warmup": 150, "num_samples": 150, "num_chains": 2, "progress_bar": False}
    return alps.fit_gibbs(student_model(t, df=df), t, y, rng_key=jax.random.key(0), **settings)


@pytest.fixture(scope="module")
def fit():
    return sampled_from(4.0)


def test_spikes_weigh_little(fit):
    """Their factors are large, the gates right; and they are the outliers that are listed."""
    weight = cell_weights(fit)
    assert weight[40, 0] < 0.05
    assert weight[90, 1] < 0.05
    assert 0.5 < np.nanmedian(weight) < 2
    assert np.isnan(weight[10:14]).all()
    assert fit.inclusion_prob[0] > 0.95
    assert fit.inclusion_prob[2] < 0.1
    listed = alps.outliers(fit)
    assert set(zip(listed.time[:2], listed.output[:2], strict=True)) == {(40.0, "y1"), (90.0, "y2")}
    assert (listed.weight.diff().dropna() >= 0).all()
    assert abs(listed.value[:2]).min() > 9


@pytest.mark.slow
def test_bands_are_as_wide_as_without_spikes(fit):
    ahead = np.arange(150.0, 160.0)
    sd, normals = (alps.predict(one, ahead)["sd"].mean() for one in (fit, sampled_from(None)))
    assert sd < 0.75 * normals
    with pytest.raises(ValueError, match="noise_df"):
        alps.outliers(sampled_from(None))


@SLOW
def test_a_fit_with_students_noise_is_saved_whole(fit, tmp_path):
    alps.save(fit, tmp_path / "fit.nc")
    again = alps.load(tmp_path / "fit.nc")
    assert again.model.noise_df == 4.0
    ahead = np.arange(140.0, 160.0)
    for name in ("mean", "sd", "lower", "upper"):
        np.testing.assert_array_equal(alps.predict(fit, ahead)[name], alps.predict(again, ahead)[name])


@SLOW
def test_its_tree_has_the_factors_and_a_likelihood_without_them(fit):
    tree = alps.to_datatree(fit, num_draws=20)
    assert tree["posterior"]["noise_factor"].dims == ("chain", "draw", "time", "output")
    likelihood = tree["log_likelihood"]["y"]
    assert likelihood.dims == ("chain", "draw", "cell")
    assert np.isfinite(likelihood).all()
    at_spikes = likelihood.where((likelihood.cell_time == 40) & (likelihood.cell_output == "y1"), drop=True)
    assert at_spikes.size == 40
    assert (at_spikes < -5).all()  # the cell's own factor would have made it likely


@pytest.mark.slow
@CASES
def test_lp_is_the_programs(memory):
    """Up to a constant: weights for latents change the density by the determinant of Phi only."""
    t, y = np.arange(9.0), np.random.default_rng(1).normal(size=(9, 2))
    y[3, 0] = np.nan
    own = {"private_memory": MEMORY} if memory else {}
    noise = dist.InverseGamma(2.0, 0.5)
    m = alps.ALPS({"a": kernels.Exp(scale=3.0)}, 2, noise_variance=noise, noise_df=3.0, jitter=0.0, **own)
    settings = {"num_warmup": 3, "num_samples": 6, "num_chains": 2, "progress_bar": False}
    fit = alps.fit_gibbs(m, t, y, rng_key=jax.random.key(0), **settings)
    draws = {name: np.concatenate(fit.samples[name]) for name in fit.samples if name != "own_memory"}
    joint = jax.vmap(lambda sites: log_density(m, (t, y), {}, sites)[0])(draws)
    np.testing.assert_allclose(np.ptp(joint - np.concatenate(fit.sample_stats["lp"])), 0.0, atol=1e-7)


@pytest.mark.slow
def test_svi_sums_the_factors_out():
    """Its noise is Student's, too: the scale is that without the spikes; memories besides it can't have."""
    t, y = spiky()
    settings = {"num_inducing": 15, "num_steps": 800, "progress_bar": False}
    fit = alps.fit_svi(student_model(t, memory=False), t, y, rng_key=jax.random.key(0), **settings)
    assert 0.04 < float(fit.draw(200)["noise_variance"].mean()) < 0.16
    tree = alps.to_datatree(fit, num_draws=10)
    assert "noise_factor" not in tree["posterior"]
    assert np.isfinite(tree["log_likelihood"]["y"]).all()
    with pytest.raises(ValueError, match="noise_df: SVI can't"):
        alps.fit_svi(student_model(t), t, y, rng_key=jax.random.key(0), **settings)


@pytest.mark.parametrize("df", [1.0, 31.0, np.nan, "4", [4.0]])
def test_degrees_of_freedom_that_cannot_be_are_refused(df):
    with pytest.raises((ValueError, TypeError), match="noise_df"):
        student_model(np.arange(5.0), df=df)


def test_statistics_of_residuals_at_given_factors():
    """They give the evidence of what some latents leave, by the others; beside states, where ``hand_over`` needs it."""
    m, basis, found, t, here = sampled(True, True)
    given = at_factors(found, jnp.asarray(m.tails.variance)[here["noise_factor"]], here["memory"])
    some, alone = jnp.array([0.0, 1.0, 1.0, 1.0]), np.array([1.0, 0, 0, 0])
    residuals_ = residual_statistics(given, here["weights"], here["H"], some)
    left = data() - np.asarray((basis.latents(here["weights"], basis.phi()).T * some) @ here["H"].T)
    evidence = c.log_evidence(residuals_.given(here["memory"]), here["H"], jnp.asarray(alone), here["noise_variance"])
    dense = own(m, t, here)
    expected = reference.log_evidence(m.covariances, here["H"], alone, here["noise_variance"], t, left, dense)
    np.testing.assert_allclose(evidence, expected, atol=1e-8)
    for i, g in enumerate(here["memory"]):
        seen = ~np.isnan(left[:, i])
        C, e = dense[i][np.ix_(seen, seen)], left[seen, i]
        np.testing.assert_allclose(residuals_.private.sum_squares[g, i], e @ np.linalg.solve(C, e), rtol=1e-8)
        np.testing.assert_allclose(residuals_.private.half_log_det[g, i], 0.5 * np.linalg.slogdet(C)[1], atol=1e-9)
