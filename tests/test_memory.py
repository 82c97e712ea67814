"""A private memory of each output: its filter, its distribution and the program that has it, against dense algebra."""

import functools
from itertools import pairwise
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from numpyro import handlers
from numpyro.infer.util import log_density
from scipy import integrate, stats
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs import features
from alps_ppl.gibbs.features import latent_features
from alps_ppl.gibbs.products import moments, residual_statistics
from alps_ppl.gibbs.statistics import statistics
from alps_ppl.model.memory import OutputNoise, PrivateMemory, kalman

T = np.array([3.0, 0.5, 0.9, 2.0, 2.0, 7.0, 4.4])
NOISE = stats.invgamma(3.0, scale=1.0)
SHARE, LENGTH = np.array([0.0, 0.8, 0.999]), np.array([1.0, 0.4, 9.0])


@pytest.fixture
def cells():
    y = np.random.default_rng(0).normal(size=(7, 3))
    y[1, 0] = y[[2, 4], 1] = y[6] = np.nan
    return y


@pytest.fixture
def grid():
    return PrivateMemory(SHARE, LENGTH, np.zeros(3))


def dense(i):
    return reference.own_covariance(SHARE[i], LENGTH[i], T, T)


def test_density_by_cell_is_the_dense_normals(cells, grid):
    f, variance = np.random.default_rng(1).normal(size=cells.shape), np.array([0.5, 2.0, 1.3])
    noise = OutputNoise(jnp.asarray(f), jnp.asarray(variance), grid, jnp.asarray(T), observed=jnp.asarray(cells))
    by_cell = noise.by_cell(jnp.nan_to_num(cells))
    np.testing.assert_array_equal(by_cell[np.isnan(cells)], 0.0)
    for i in range(3):
        seen = ~np.isnan(cells[:, i])
        cov = variance[i] * dense(i)[np.ix_(seen, seen)]
        expected = stats.multivariate_normal(f[seen, i], cov).logpdf(cells[seen, i])
        np.testing.assert_allclose(by_cell[:, i].sum(), expected, rtol=1e-9)
    batch = jnp.stack([jnp.nan_to_num(cells), 1 + jnp.nan_to_num(cells)])
    np.testing.assert_allclose(noise.log_prob(batch)[0], by_cell.sum(), rtol=1e-12)


def test_the_memory_given_its_outputs_values_is_dense_conditioning(cells, grid):
    order = np.argsort(T, kind="stable")
    e = np.nan_to_num(cells)[order]
    filter_ = kalman(grid, jnp.asarray(T[order]), ~np.isnan(cells[order]))
    mean, variance = filter_.smooth(jnp.asarray(e))
    noise = jax.random.normal(jax.random.key(0), (4000, *e.shape))
    draws, _ = jax.vmap(lambda z: filter_.smooth(jnp.asarray(e), z))(noise)
    for i in range(3):
        seen = ~np.isnan(cells[order, i])
        t = T[order]
        K = SHARE[i] * np.exp(-np.abs(t[:, None] - t) / LENGTH[i])
        C = K + (1 - SHARE[i]) * np.eye(len(t))
        gain = K[:, seen] @ np.linalg.inv(C[np.ix_(seen, seen)])
        left = K - gain @ K[seen]
        np.testing.assert_allclose(mean[:, i], gain @ e[seen, i], atol=1e-9)
        np.testing.assert_allclose(variance[:, i], np.diag(left), atol=1e-9)
        np.testing.assert_allclose(
            filter_.half_log_det[i], 0.5 * np.linalg.slogdet(C[np.ix_(seen, seen)])[1], atol=1e-9
        )
        # Wishart: an entry's error is at most sqrt(2 / draws) of the largest variance; five of them.
        np.testing.assert_allclose(np.cov(draws[..., i].T), left, atol=5 * np.sqrt(2 / 4000) * left.max() + 1e-12)


def test_draws_have_the_covariance(grid):
    f, variance = jnp.ones((7, 3)), jnp.array([0.5, 2.0, 1.3])
    draws = OutputNoise(f, variance, grid, jnp.asarray(T)).sample(jax.random.key(2), (20_000,))
    for i in range(3):
        scale = float(variance[i])
        np.testing.assert_allclose(np.cov(draws[..., i].T), scale * dense(i), atol=5 * np.sqrt(2 / 20_000) * scale)


def test_the_grid_is_uniform_over_shares_and_over_lengthscales():
    grid = alps.private_memory(np.arange(50.0))
    np.testing.assert_allclose(np.exp(grid.log_prior).sum(), 1.0)
    shares, counts = np.unique(grid.share, return_counts=True)
    np.testing.assert_allclose([np.exp(grid.log_prior)[grid.share == rho].sum() for rho in shares], 1 / 7)
    assert counts.tolist() == [1] + 6 * [10]
    assert (grid.lengthscale.min(), grid.lengthscale.max()) == (1.0, pytest.approx(98.0))


def model(**settings):
    memory = PrivateMemory(SHARE, LENGTH, np.log([0.5, 0.3, 0.2]))
    latents = {"a": alps.linear_periodic(4.0), "b": alps.linear_periodic(2.3)}
    return alps.ALPS(latents, 3, noise_variance=dist.InverseGamma(3.0, 1.0), private_memory=memory, **settings)


def test_the_program_with_a_private_memory(cells):
    """Its log density is the sum of its sites'; y's is the dense normal around f."""
    m = model(copies={"a": 2})
    assert m.latents == ("a 1", "a 2", "b")
    assert m.gate_names == ("a", "b")
    trace = handlers.trace(handlers.seed(m, 0)).get_trace(T)
    assert trace["memory"]["value"].shape == (3,)
    assert trace["y"]["value"].shape == (7, 3)
    sites = {n: s["value"] for n, s in trace.items() if s["type"] == "sample" and n != "y"}
    total, conditioned = log_density(m, (T, cells), {}, sites)
    prior, _ = log_density(handlers.block(m, hide=["y"]), (T, cells), {}, sites)
    f = np.asarray(conditioned["f"]["value"])
    expected = 0.0
    for i in range(3):
        seen, point = ~np.isnan(cells[:, i]), int(sites["memory"][i])
        cov = float(sites["noise_variance"][i]) * dense(point)[np.ix_(seen, seen)]
        expected += stats.multivariate_normal(f[seen, i], cov).logpdf(cells[seen, i])
    np.testing.assert_allclose(total - prior, expected, rtol=1e-8)


def test_no_memory_is_the_papers_model(cells):
    paper = alps.ALPS({"a": alps.linear_periodic(4.0)}, 3, noise_variance=0.3)
    white = alps.ALPS(
        {"a": alps.linear_periodic(4.0)}, 3, noise_variance=0.3, private_memory=alps.private_memory(T, shares=[0.0])
    )
    sites = {"x": jnp.ones((1, 7)), "b": jnp.ones(1, int), "H": jnp.ones((3, 1))}
    np.testing.assert_allclose(
        log_density(white, (T, cells), {}, sites | {"memory": jnp.zeros(3, int)})[0],
        log_density(paper, (T, cells), {}, sites)[0],
        rtol=1e-12,
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"copies": {"c": 2}}, "copies"),
        ({"copies": {"a": 0}}, "copies"),
        ({"copies": {"a": 10**6}}, "copies"),
        ({"copies": 2}, r"copies: .*\{latent: number of copies\}"),
        ({"copies": [("a", 2)]}, r"copies: .*\{latent: number of copies\}"),
        ({"shared_gates": 2}, r"shared_gates: .*\{gate: \[latents\]\}"),
        ({"shared_gates": {"g": 3}}, "shared_gates"),
        ({"covariance_bounds": 2}, "covariance_bounds"),
        ({"always_on": 2}, "always_on"),
        ({"private_memory": 3}, "private_memory"),
    ],
)
def test_what_isnt_copies_or_a_memory_is_refused(settings, words):
    with pytest.raises((ValueError, TypeError), match=words):
        alps.ALPS({"a": alps.linear_periodic(4.0)}, 1, noise_variance=1.0, **settings)


@pytest.mark.parametrize(
    ("inputs", "settings"),
    [
        (np.zeros((3, 2)), {}),
        ([1.0], {}),
        ([1.0, 2.0], {"shares": [1.0]}),
        ([1.0, 2.0], {"shares": []}),
        ([1.0, 2.0], {"lengthscales": []}),
        ([1.0, 2.0], {"lengthscales": [-1.0]}),
        ([1.0, 2.0], {"lengthscales": -1.0}),
    ],
)
def test_a_grid_that_cannot_be_is_refused(inputs, settings):
    with pytest.raises(ValueError, match=r"inputs|shares|lengthscales"):
        alps.private_memory(inputs, **settings)


ROUGH = {"a": kernels.Exp(scale=0.7), "b": kernels.Matern32(scale=1.5)}


@functools.cache
def sampled(states):
    """A model with copies and a private memory, its features and statistics, and where a chain is."""
    cells = np.random.default_rng(0).normal(size=(7, 3))
    cells[1, 0] = cells[[2, 4], 1] = cells[6] = np.nan
    t = np.array([3.0, 0.5, 0.9, 2.0, 2.3, 7.0, 4.4])
    if states:
        t[4] = 2.0  # a time that is there twice
    # Of full rank, so that x has a density; where the rough ones have states, one beside them that has features.
    third = alps.linear_periodic(2.5) if states else kernels.Exp(scale=2.0)
    m = alps.ALPS(
        ROUGH | {"c": third},
        3,
        copies={"c": 2},
        noise_variance=dist.InverseGamma(3.0, 1.0),
        mixing_variance=[1.0, 0.7, 2.0],
        private_memory=PrivateMemory(SHARE, LENGTH, np.log([0.5, 0.3, 0.2])),
        jitter=None if states else 0.0,
    )
    with mock.patch.object(features, "LOW_RANK", 2 if states else features.LOW_RANK):
        basis = latent_features(m.covariances, *m.check(t)[:1], names=m.latents)
    assert (basis.space is not None) == states
    stats_ = statistics(basis, jnp.asarray(cells), m.private_memory)
    rng = np.random.default_rng(5)
    here = {"weights": rng.normal(size=len(basis.owner)), "H": 0.3 * rng.normal(size=(3, 4))}
    here |= {"noise_variance": np.array([0.2, 0.5, 0.9]), "memory": np.array([1, 2, 0]), "b": np.array([1.0, 0, 1, 1])}
    return m, basis, stats_, t, cells, {name: jnp.asarray(value) for name, value in here.items()}


def evidence(m, t, cells, H, b, noise_variance, memory):
    """Log p(Y | H, b, s^2, memory) from the dense joint of all observed cells."""
    own = [reference.own_covariance(SHARE[g], LENGTH[g], t, t) for g in memory]
    return reference.log_evidence(m.covariances, H, b, noise_variance, t, cells, own)


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("memory", [(0, 0, 0), (1, 2, 0), (2, 2, 1)])
def test_evidence_is_the_dense_joints(states, memory):
    m, _, stats_, t, cells, here = sampled(states)
    given = stats_.given(jnp.array(memory))
    found = c.log_evidence(given, here["H"], here["b"], here["noise_variance"])
    expected = evidence(m, t, cells, here["H"], here["b"], here["noise_variance"], memory)
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("states", [False, True])
def test_the_memorys_conditional_is_the_dense_one(states):
    """Every point of the grid for every output, s^2 integrated out by quadrature."""
    m, basis, stats_, t, cells, here = sampled(states)
    residuals = residual_statistics(stats_, here["weights"], here["H"], here["b"])
    squares = residuals.private.sum_squares
    x = basis.latents(here["weights"], basis.phi())
    errors = cells - np.asarray((x.T * here["b"]) @ here["H"].T)
    fixed = c.memory_conditional(residuals, here["noise_variance"]).probs
    learnt = c.memory_conditional(residuals, m.noise_variance).probs
    own_evidence = c.log_own_evidence(residuals, m.noise_variance)
    for i in range(3):
        seen = ~np.isnan(cells[:, i])
        covs = [reference.own_covariance(SHARE[g], LENGTH[g], t, t)[np.ix_(seen, seen)] for g in range(3)]
        e = errors[seen, i]
        for g in range(3):
            np.testing.assert_allclose(squares[g, i], e @ np.linalg.solve(covs[g], e), rtol=1e-8)

        def density(s2, g, e=e, covs=covs):
            return np.exp(stats.multivariate_normal(cov=s2 * covs[g]).logpdf(e)) * [0.5, 0.3, 0.2][g]

        by_hand = np.array([density(float(here["noise_variance"][i]), g) for g in range(3)])
        np.testing.assert_allclose(fixed[i], by_hand / by_hand.sum(), rtol=1e-8)
        whole = [integrate.quad(lambda s, g=g: density(s, g) * NOISE.pdf(s), 0, np.inf)[0] for g in range(3)]
        np.testing.assert_allclose(learnt[i], np.array(whole) / sum(whole), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(own_evidence[i], np.log(sum(whole)), rtol=1e-5)


SLOW = [pytest.param(f"gate_and_column-{gate}", True, marks=pytest.mark.slow) for gate in (0, 2)]


# The draw of all weights with states has the outputs' own among them: the evidence and Geweke's test cover it.
@pytest.mark.parametrize(
    ("block", "states"),
    [("weights", False), ("gate_and_column-0", False), ("gate_and_column-2", False), ("H", False), ("H", True), *SLOW],
)
def test_a_conditional_is_the_programs(block, states):
    """log_joint(u) - log_joint(v) = conditional.log_prob(u) - conditional.log_prob(v) for values of the block."""
    m, basis, stats_, t, cells, here = sampled(states)
    given = stats_.given(here["memory"])
    H, b, noise, s = here["H"], here["b"], here["noise_variance"], jnp.asarray(m.mixing_variance)
    if block == "weights":
        conditional, sites = c.weights_conditional(given, H, b, noise), lambda value: {"weights": value}
    elif block == "H":
        products = moments(given, here["weights"], 4)
        conditional, sites = c.mixing_conditional(products, b, noise, s), lambda value: {"H": value}
    else:
        products, gate = moments(given, here["weights"], 4), int(block[-1])
        own = jnp.array([[0, 4], [1, 4], [2, 3]][gate])
        logits = jnp.asarray(m.inclusion_logits)
        conditional = c.gate_and_column_conditional(products, H, b, noise, s, logits, own)

        def sites(value):
            columns = value[1:].reshape(3, 2)
            return {"H": H.at[:, own].set(columns, mode="drop"), "b": b.at[own].set(value[0], mode="drop")}

    draws = conditional.sample(jax.random.key(1), (4,))
    if block.startswith("gate"):
        draws = draws.at[:, 0].set(jnp.arange(4) % 2)
        draws = draws.at[:, 2::2].set(0.0) if block[-1] != "2" else draws  # the padding
    logs = []
    for value in draws:
        now = here | sites(value)
        weights, gates = now.pop("weights"), now.pop("b")
        now |= {"x": basis.latents(weights, basis.phi()), "b": gates[m.first].astype(int)}
        logs.append((float(log_density(m, (t, cells), {}, now)[0]), float(conditional.log_prob(value).sum())))
    for one, other in pairwise(logs):
        assert (one[0] - other[0]) == pytest.approx(one[1] - other[1], abs=2e-7)


@pytest.mark.parametrize("gate", range(3))
def test_a_gate_with_its_latents_integrated_out(gate):
    """Its odds are those of the dense evidence in which the other latents are given; copies are one block."""
    m, basis, stats_, t, cells, here = sampled(False)
    given = stats_.given(here["memory"])
    likelihood = c.weights_likelihood(given, here["H"], here["noise_variance"])
    members = [[0], [1], [2, 3]][gate]
    own = jnp.asarray(np.flatnonzero(np.isin(stats_.owner, members)))
    gated = here["weights"] * here["b"][stats_.owner]
    found = c.gate_and_latent_conditional(likelihood, gated, jnp.asarray(m.inclusion_logits), members[0], own).logits
    others = here["b"].at[jnp.array(members)].set(0.0)
    x = basis.latents(here["weights"], basis.phi())
    residual = cells - np.asarray((x.T * others) @ here["H"].T)
    on = np.zeros(4)
    on[members] = 1
    arguments = here["noise_variance"], here["memory"]
    expected = evidence(m, t, residual, here["H"], on, *arguments) - evidence(
        m, t, residual, here["H"], 0 * on, *arguments
    )
    np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.parametrize("states", [False, True])
def test_statistics_of_residuals(states):
    """They give the evidence of what some latents leave, by the others."""
    m, basis, stats_, t, cells, here = sampled(states)
    some = jnp.array([0.0, 1.0, 1.0, 1.0])
    residuals = residual_statistics(stats_, here["weights"], here["H"], some)
    x = basis.latents(here["weights"], basis.phi())
    left = cells - np.asarray((x.T * some) @ here["H"].T)
    memory, alone = np.array([1, 2, 0]), np.array([1.0, 0, 0, 0])
    found = c.log_evidence(residuals.given(jnp.asarray(memory)), here["H"], jnp.asarray(alone), here["noise_variance"])
    expected = evidence(m, t, left, here["H"], alone, here["noise_variance"], memory)
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("states", [False, True])
def test_residuals_squares_of_one_output(states):
    """All points of that output, and of the others the points that they are at."""
    *_, stats_, _, _, here = sampled(states)
    arguments = stats_, here["weights"], here["H"], here["b"]
    whole = residual_statistics(*arguments).private.sum_squares
    points = jnp.array([1, 2, 0])
    part = residual_statistics(*arguments, (jnp.array(1), points)).private.sum_squares
    np.testing.assert_allclose(part[:, 1], whole[:, 1], rtol=1e-12)
    np.testing.assert_allclose(part[points, jnp.arange(3)], whole[points, jnp.arange(3)], rtol=1e-12)


def test_one_column_of_times_is_times():
    """(time, 1) is (time,), as everywhere."""
    for one, other in zip(alps.private_memory(T), alps.private_memory(T[:, None]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_names_of_copies_are_free():
    with pytest.raises(ValueError, match=r"copies: a 1 is a latent's name"):
        alps.ALPS(
            {"a": alps.linear_periodic(4.0), "a 1": alps.linear_periodic(3.0)}, copies={"a": 2}, noise_variance=1.0
        )


@pytest.mark.slow
def test_what_a_memory_needs(cells):
    """One column of times; all of them at once; and predictions at no time are none."""
    m = model()
    with pytest.raises(ValueError, match="one column"):
        m(np.ones((7, 2)), cells)
    with pytest.raises(ValueError, match="num_times"):
        handlers.trace(handlers.seed(m, 0)).get_trace(T, cells, num_times=40)
    lengths = {"num_warmup": 2, "num_samples": 3, "num_chains": 1, "progress_bar": False}
    fit = alps.fit_gibbs(m, T, cells, rng_key=jax.random.key(0), **lengths)
    assert alps.predict(fit, [])["mean"].shape == (0, 3)
