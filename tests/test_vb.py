"""Coordinate ascent: its bound against a dense one, its updates against the bound's gradient, and what it answers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from problems import oracle
from scipy import integrate, stats
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs.features import latent_features
from alps_ppl.gibbs.statistics import statistics
from alps_ppl.model.memory import PrivateMemory
from alps_ppl.vb import evidence, family, search, updates
from alps_ppl.vb.fit import why_not

T = np.array([0.0, 0.7, 1.1, 2.0, 2.6, 3.9, 5.0])
SHARE, LENGTH, LOG_PRIOR = np.array([0.0, 0.8]), np.array([1.0, 0.9]), np.log([0.4, 0.6])
QUIET = {"progress_bar": False}
SLOW = pytest.mark.slow
CASES = pytest.mark.parametrize("memory", [pytest.param(False, marks=SLOW), True])


def cells():
    y = np.random.default_rng(0).normal(size=(7, 2))
    y[1, 0] = y[4, 1] = y[6, 1] = np.nan
    return y


@functools.cache
def problem(memory, theta=(0.3, 0.6)):
    """Two gates, one with two copies and one with two latents of different ranks; and a q that is nowhere special."""
    m = alps.ALPS(
        {"cycle": alps.linear_periodic(2.5), "slow": kernels.ExpSquared(scale=4.0), "line": alps.linear(2.0, 1.0)},
        2,
        copies={"cycle": 2},
        shared_gates={"level": ["slow", "line"]},
        inclusion_prob=[theta[0], theta[1], theta[1]],
        mixing_variance=[[1.0, 0.5, 2.0], [0.7, 1.5, 0.4]],
        noise_variance=dist.InverseGamma(3.0, 1.0),
        private_memory=PrivateMemory(SHARE, LENGTH, LOG_PRIOR) if memory else None,
    )
    basis = latent_features(m.covariances, m.check(T)[0], names=m.latents, states=False)
    stats_ = statistics(basis, jnp.asarray(cells()), m.private_memory)
    data, groups = family.likelihood(stats_), family.groups(m, basis.layout)
    q = search.random_start(m, search.Static(groups), jax.random.key(1), data.projection)
    nothing = jnp.zeros(2, bool)
    q, *_ = updates.sweep(m, data, groups, q, nothing, nothing, jnp.array(False))
    q = tuple(on._replace(logit=on.logit + 1.0, mean_w=on.mean_w + 0.3, cov_h=1.5 * on.cov_h) for on in q)
    return m, basis, data, groups, q


def bound(m, data, groups, q):
    return family.bound(m, groups, q, family.expected_squares(data, groups, q), data)


@CASES
def test_the_bound_is_the_dense_one(memory):
    m, basis, data, groups, q = problem(memory)
    by_gate = {"prob": np.zeros(2), "w": [None, None], "h": [None, None]}
    for group, on in zip(groups, q, strict=True):
        for k, g in enumerate(group.gates):
            by_gate["prob"][g] = on.prob[k]
            by_gate["w"][g] = np.asarray(on.mean_w[k]), np.asarray(on.cov_w[k])
            by_gate["h"][g] = [(np.asarray(on.mean_h[k, i]), np.asarray(on.cov_h[k, i])) for i in range(2)]
    grid = list(zip(SHARE, LENGTH, LOG_PRIOR, strict=True)) if memory else [(0.0, 1.0, 0.0)]
    own = [[(reference.own_covariance(share, length, T, T), log) for share, length, log in grid]] * 2
    prior = {"theta": m.inclusion_prob[m.first], "s": m.mixing_variance}
    expected = reference.vb_bound(basis.phi(), basis.owner, m.gate_of, by_gate, prior, own, cells(), (3.0, 1.0))
    np.testing.assert_allclose(bound(m, data, groups, q), expected, rtol=1e-7)


def sweeper(m, data, groups):
    nothing = jnp.zeros(len(m.gate_names), bool)
    return jax.jit(lambda q: updates.sweep(m, data, groups, q, nothing, nothing, jnp.array(False)))


@CASES
def test_no_update_lowers_the_bound(memory):
    """Each group of gates by itself, with the best noise for what was there, and whole sweeps."""
    m, _, data, groups, q = problem(memory)
    sweep, of = sweeper(m, data, groups), jax.jit(lambda q: bound(m, data, groups, q))
    bounds = [float(of(q))]
    assert len(groups) == 2
    for order in [(0,), (0,), (0, 1), (0, 1), (0,), (0, 1)]:
        after, was, _ = sweep(q)
        np.testing.assert_allclose(was, bounds[-1], rtol=1e-10)
        q = tuple(after[k] if k in order else q[k] for k in range(2))  # the first is updated before the second
        bounds.append(float(of(q)))
    assert (np.diff(bounds) > -1e-9).all()
    assert bounds[-1] > bounds[0] + 0.1


@CASES
def test_where_it_ends_the_bound_is_flat(memory):
    """Its gradient by every number of q is zero: of means, of covariances' factors, and of the log odds."""
    m, _, data, groups, q = problem(memory)
    sweep = sweeper(m, data, groups)
    for _ in range(1_000):
        q, *_ = sweep(q)
    factors = [
        (on.logit, on.mean_w, jnp.linalg.cholesky(on.cov_w), on.mean_h, jnp.linalg.cholesky(on.cov_h)) for on in q
    ]

    def of(factors):
        again = [family.WhenOn(logit, w, W @ W.mT, h, V @ V.mT) for logit, w, W, h, V in factors]
        return bound(m, data, groups, tuple(again))

    for slope in jax.tree.leaves(jax.jit(jax.grad(of))(factors)):
        square = slope.ndim > 2 and slope.shape[-1] == slope.shape[-2]
        np.testing.assert_allclose(jnp.tril(slope) if square else slope, 0.0, atol=1e-5)


@SLOW
def test_it_is_below_the_evidence():
    """Of the exact model by quadrature, at every start."""
    o = oracle("alps_exact")
    m = alps.ALPS(
        {"rbf": kernels.ExpSquared(scale=0.8), "periodic": kernels.ExpSineSquared(scale=1.3, gamma=2.0)},
        inclusion_prob=o["theta"],
        mixing_variance=o["H_prior_var"],
        noise_variance=o["noise_var"],
    )
    fit = alps.fit_vb(m, np.array(o["t"]), np.array(o["y"])[:, None], rng_key=jax.random.key(0), **QUIET)
    prior = {
        f"b{i}{j}": np.prod([p if b else 1 - p for p, b in zip(np.broadcast_to(o["theta"], 2), (i, j), strict=True)])
        for i in (0, 1)
        for j in (0, 1)
    }
    exact = np.logaddexp.reduce([o["log_evidence"][b] + np.log(p) for b, p in prior.items()])
    assert exact - 5 < fit.elbo < exact


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_small_gaussian_integral_is_that_of_dense_algebra(size):
    """Relative to that of a standard normal: the log of its mean of exp(a^T w - w^T (P - I) w / 2)."""
    rng = np.random.default_rng(size)
    root, a = rng.normal(size=(5, size, size)), rng.normal(size=(5, size))
    P = np.eye(size) + root @ root.mT
    found = evidence.log_integral(jnp.asarray(P), jnp.asarray(a))
    expected = [0.5 * b @ np.linalg.solve(Q, b) - 0.5 * np.linalg.slogdet(Q)[1] for Q, b in zip(P, a, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def one_gate(seed=0):
    """One process of one feature, three outputs, fixed noise: the evidence is an integral over one weight."""
    rng = np.random.default_rng(seed)
    y = 0.35 * rng.normal(size=3) * T[:, None] / 2 + rng.normal(size=(7, 3))
    s = np.array([[1.0], [0.5], [2.0]])
    m = alps.ALPS(
        {"line": alps.linear(0.0, 2.0)}, 3, inclusion_prob=0.3, mixing_variance=s, noise_variance=[1.0, 0.5, 2.0]
    )

    def density(w):
        x = T / 2.0 * w
        covs = [np.eye(7) * v + s_ * np.outer(x, x) for v, s_ in zip([1.0, 0.5, 2.0], s[:, 0], strict=True)]
        logs = [stats.multivariate_normal(cov=C).logpdf(y[:, i]) for i, C in enumerate(covs)]
        off = [stats.multivariate_normal(cov=v * np.eye(7)).logpdf(y[:, i]) for i, v in enumerate([1.0, 0.5, 2.0])]
        return np.exp(sum(logs) - sum(off)) * stats.norm.pdf(w)

    return m, y, integrate.quad(density, -8, 8, limit=200)[0]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in (1, 2, 3))])
def test_a_gates_last_update_has_weights_and_loadings_together(seed):
    """Of one gate alone the odds are those of the evidence by quadrature; apart, weights and loadings give lower ones.

    An importance weight is at most twice its mean under the prior's half, so that 500 draws know odds to a few percent.
    """
    m, y, ratio = one_gate(seed)
    exact = 0.3 * ratio / (0.3 * ratio + 0.7)
    fit = alps.fit_vb(m, T, y, rng_key=jax.random.key(seed), **QUIET)
    found = fit.inclusion_prob[0]
    assert found / (1 - found) == pytest.approx(exact / (1 - exact), rel=0.15)
    basis = latent_features(m.covariances, m.check(T)[0], names=m.latents, states=False)
    data, groups = family.likelihood(statistics(basis, jnp.asarray(y))), family.groups(m, basis.layout)
    settings = {"num_starts": 2, "num_sweeps": 300, "tolerance": 1e-8, "num_rounds": 2}
    apart, *_ = search.search(m, data, groups, jax.random.key(0), **settings)
    assert search.probabilities(groups, apart)[0] < found


def wave(seed=0, n=96, memory=False):
    rng = np.random.default_rng(seed)
    t = np.arange(float(n))
    y = np.column_stack([np.sin(2 * np.pi * t / 24 + phase) for phase in (0.0, 1.0, 2.0)]) + 0.4 * rng.normal(
        size=(n, 3)
    )
    y[5] = y[20:25, 1] = np.nan
    m = alps.ALPS(
        {name: alps.linear_periodic(T_) for name, T_ in {"daily": 24.0, "other": 31.0, "third": 17.0}.items()},
        3,
        copies=dict.fromkeys(["daily", "other", "third"], 2),
        noise_variance=dist.InverseGamma(1.0, 0.2),
        private_memory=alps.private_memory(t) if memory else None,
        inclusion_prob=dist.Beta(1.0, 1.0) if seed == 1 else None,
    )
    return m, t, y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "memory"), [pytest.param(0, False, marks=SLOW), pytest.param(1, False, marks=SLOW), (2, True)]
)
def test_a_cycle_is_found(seed, memory, tmp_path):
    """By every start, with theta learnt or not; saved, it predicts the same; its bound never falls."""
    m, t, y = wave(seed, memory=memory)
    fit = alps.fit_vb(m, t, y, rng_key=jax.random.key(seed), **QUIET)
    probability = dict(zip(m.copy_of, fit.inclusion_prob, strict=True))
    assert probability["daily"] > 0.99
    assert max(probability["other"], probability["third"]) < 0.1
    assert (np.diff(fit.elbos) > -1e-8).all()
    assert np.ptp(fit.start_elbos) < 1
    ahead = np.arange(90.0, 110.0)
    found = alps.predict(fit, ahead)
    truth = np.column_stack([np.sin(2 * np.pi * ahead / 24 + phase) for phase in (0.0, 1.0, 2.0)])
    assert np.sqrt(((found["mean"] - truth) ** 2).mean()) < 0.25
    assert 0.35 < float(found["sd"].mean()) < 0.6
    alps.save(fit, tmp_path / "fit.nc")
    again = alps.load(tmp_path / "fit.nc")
    assert isinstance(again, alps.VBFit)
    assert again.elbo == fit.elbo
    for name in ("mean", "sd"):
        np.testing.assert_array_equal(alps.predict(again, ahead)[name], found[name])
    table = alps.inclusion_table(fit)
    assert table.mcse.isna().all()
    tree = alps.to_datatree(fit, num_draws=10)
    assert tree.attrs["engine"] == "vb"
    assert np.isfinite(tree["log_likelihood"]["y"]).all()


@SLOW
def test_its_draws_have_qs_moments():
    m, t, y = wave()
    fit = alps.fit_vb(m, t, y, rng_key=jax.random.key(0), **QUIET)
    b = np.asarray(fit.sites["b"][0])
    assert np.abs(b.mean(0) - fit.inclusion_prob[m.first]).max() <= 5 * np.sqrt(0.25 / 1000)
    off = b[:, 1] == 0
    H = np.asarray(fit.sites["H"][0])[off][:, :, 2]  # of a gate that is off: its prior
    assert abs(H.var() - 1) < 5 * np.sqrt(2 / H.size)


@pytest.mark.slow
def test_a_sampler_starts_from_it():
    m, t, y = wave()
    fit = alps.fit_vb(m, t, y, rng_key=jax.random.key(0), **QUIET)
    init = alps.init_from_vb(fit, jax.random.key(1), num_chains=2)
    lengths = {"num_warmup": 0, "num_samples": 50, "num_chains": 2}
    gibbs = alps.fit_gibbs(m, t, y, rng_key=jax.random.key(2), init_params=init, **lengths, **QUIET)
    assert gibbs.inclusion_prob[0] > 0.99


@SLOW
def test_a_move_finds_what_an_ascent_shut():
    """From a q in which the true cycle is off and at its prior, a saddle, ascent alone doesn't move; a round does."""
    m, t, y = wave()
    inputs, cells_ = m.check_data(t, y)
    basis = latent_features(m.covariances, inputs, names=m.latents, states=False)
    data, groups = family.likelihood(statistics(basis, cells_)), family.groups(m, basis.layout)
    tried = list(search.moves(m, np.array([0.0, 1.0, 0.0]), np.random.default_rng(0)))
    opened, shut = (np.array(part) for part in zip(*tried, strict=True))
    assert [True, False, False] in opened.tolist()
    assert [True, False, True] in opened.tolist()
    swaps = [(list(o), list(s)) for o, s in zip(opened, shut, strict=True)]
    assert ([True, False, False], [False, True, False]) in swaps
    static, none = search.Static(groups), np.zeros(3, bool)
    q = search.random_start(m, static, jax.random.key(0), data.projection)
    q = tuple(on._replace(mean_h=0 * on.mean_h, logit=on.logit - 20) for on in q)
    stuck = search.climb(m, data, static, q, none, none, False, 0, 50, 1e-4, most_sweeps=50)
    assert search.probabilities(groups, stuck).max() < 0.5
    found, *_ = search.search(
        m, data, groups, jax.random.key(0), num_starts=1, num_sweeps=200, tolerance=1e-4, num_rounds=2
    )
    assert search.probabilities(groups, found)[0] > 0.99
    assert found.bound > stuck.bound + 10


@pytest.mark.slow
def test_square_wave():
    """As the sampler has it, odd harmonics at 1 and even ones at .024: every start at .016, one bound."""
    from models import square_wave

    data = square_wave.data()
    m = square_wave.model(data)
    fits = [alps.fit_vb(m, data.train_inputs, data.train_y, rng_key=jax.random.key(k), **QUIET) for k in range(5)]
    for fit in fits:
        np.testing.assert_allclose(fit.inclusion_prob[::2], 1.0, atol=1e-3)
        np.testing.assert_allclose(fit.inclusion_prob[1::2], 0.024, atol=0.02)
    assert np.ptp(np.concatenate([fit.start_elbos for fit in fits])) < 0.01


@pytest.mark.parametrize(
    ("changes", "settings", "words"),
    [
        ({"noise_df": 4.0}, {}, "noise_df: fit_vb takes no Student's noise"),
        (
            {"covariance_ranges": {"daily": {"scale": (20.0, 28.0)}}},
            {},
            "covariance_ranges: fit_vb takes no unknown scales",
        ),
        ({"noise_variance": dist.Gamma(2.0, 2.0)}, {}, "noise_variance: fit_vb needs"),
        ({}, {"num_starts": 0}, "num_starts"),
        ({}, {"num_rounds": -1}, "num_rounds"),
        ({}, {"tolerance": -1.0}, "tolerance"),
    ],
)
def test_what_it_doesnt_take_is_refused(changes, settings, words):
    noise = {"noise_variance": dist.InverseGamma(1.0, 0.2)} | changes
    m = alps.ALPS({"daily": alps.linear_periodic(24.0)}, 1, **noise)
    with pytest.raises(ValueError, match=words):
        alps.fit_vb(m, np.arange(9.0), np.zeros((9, 1)), rng_key=jax.random.key(0), **settings, **QUIET)


def test_too_many_features_are_refused():
    m = alps.ALPS({"rough": kernels.Exp(scale=1.0)}, 1, noise_variance=1.0)
    y = np.random.default_rng(0).normal(size=(1200, 1))
    with pytest.raises(ValueError, match="fit_gibbs, whose rough latents are Markov states"):
        alps.fit_vb(m, np.arange(1200.0), y, rng_key=jax.random.key(0), **QUIET)


def test_a_preview_asks_the_sampler_where_that_is_sooner():
    rough = {"rough": kernels.Matern32(scale=5.0)}
    cycle = {"cycle": alps.linear_periodic(7.0)}
    assert why_not(alps.ALPS(cycle, 1, noise_variance=0.1), 100_000) is None
    assert why_not(alps.ALPS(rough, 1, noise_variance=0.1), 300) is None
    assert why_not(alps.ALPS(cycle | rough, 1, noise_variance=0.1), 1_301) == "rough processes of 1,301 times"
    tails = alps.ALPS(cycle, 1, noise_variance=dist.InverseGamma(1.0, 0.1), noise_df=4.0)
    assert why_not(tails, 10) == "Student's noise"
