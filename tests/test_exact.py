"""P(b | Y) of the sampler against exact answers: enumerated with H held, by quadrature with H integrated out.

Chains start at the prior and are independent, so the mean over chains is compared by Student's t.
"""

import functools
from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from arviz_stats.base import array_stats
from problems import periodic
from scipy import stats as scipy_stats
from scipy.special import betaln
from simulation import choose
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import features
from alps_ppl.gibbs.kernel import CHOICE, SETS
from alps_ppl.gibbs.moves import MOVES
from alps_ppl.gibbs.sweep import sweep
from benchmarks.cases import stand_ins

COVARIANCES = {
    "rough": kernels.Exp(scale=1.0),
    "smooth": kernels.ExpSquared(scale=1.5),
    "sine 2": alps.linear_periodic(2.0),
    "sine 3": alps.linear_periodic(3.0),
    "slow": kernels.Matern32(scale=4.0),
    "periodic": periodic(1.3),
    "sine 5": alps.linear_periodic(5.0),
    "smoother": kernels.ExpSquared(scale=3.0),
}
NUM_CHAINS, NUM_WARMUP, NUM_SAMPLES = 250, 100, 100


class Sampler:
    """Sweeps of a model on data, compiled once for all sets of ``moves``; H stays at ``held``, if it is given."""

    def __init__(self, model, t, y, moves, *, held=None, low_rank=None):
        self.model, self.moves = model, moves
        self.kernel = alps.ALPSGibbs(model, moves=moves, start="prior")
        with mock.patch.object(features, "LOW_RANK", low_rank or features.LOW_RANK):
            self.kernel.bind(t, y)
        self.held = None if held is None else jnp.asarray(held)
        self._compiled = jax.jit(self._draws)

    def _draws(self, states, on):
        one = partial(sweep, self.kernel.plan, self.model, self.kernel.stats)
        mixing = MOVES["mixing"] if self.held is None else MOVES["mixing"]._replace(step=self._hold)

        def step(state, _):
            state = jax.vmap(one)(state)
            return state, state.z | {"gate_prob": state.gate_prob}

        with choose(on), mock.patch.dict(MOVES, mixing=mixing):
            states = jax.lax.fori_loop(0, NUM_WARMUP, lambda _, state: step(state, None)[0], states)
            return jax.lax.scan(step, states, None, NUM_SAMPLES)[1]

    def _hold(self, target, chain, random):
        return chain._replace(H=self.held)

    def run(self, key, moves):
        """Draws by site, (draw, chain, ...), with gate_prob."""
        given = None if self.held is None else {"H": jnp.broadcast_to(self.held, (NUM_CHAINS, *self.held.shape))}
        states = self.kernel.first_states(jax.random.split(key, NUM_CHAINS), 0, given)
        on = {move: jnp.asarray(move in moves) for move in self.moves}
        return {name: np.asarray(value) for name, value in self._compiled(states, on).items()}

    def f(self, draws):
        """F (draw, chain, time, output) at the data."""
        phi, weights = self.kernel.features.phi(), jnp.asarray(draws["weights"])
        x = jax.jit(jax.vmap(lambda w: self.kernel.features.latents(w, phi)))(weights.reshape(-1, weights.shape[-1]))
        gated_H = draws["H"] * draws["b"][..., None, :]
        return np.einsum("scij,scjt->scti", gated_H, np.asarray(x).reshape(*draws["b"].shape[:2], *x.shape[1:]))


def z_score(draws, exact):
    """Of the mean of draws (draw, chain) of an expectation, by the spread of the chains' means."""
    means = np.asarray(draws, float).mean(0)
    return (means.mean() - exact) / (means.std(ddof=1) / np.sqrt(len(means)))


def bound(number, num_chains=NUM_CHAINS, level=1e-4):
    """What the largest of so many |z| exceeds with at most this probability if the sampler is right (Bonferroni)."""
    return scipy_stats.t.ppf(1 - level / 2 / number, num_chains - 1)


def agree(z):
    """Whether all z scores, by name, are within the bound; prints the largest."""
    name = max(z, key=lambda name: abs(z[name]))
    print(name, z[name])
    return abs(z[name]) < bound(len(z))


def scores(draws, exact):
    """Of every likely gate vector, and of each gate by its draws and by its probabilities; ``exact`` {vector: P}."""
    b, gate_prob = draws["b"], draws["gate_prob"]
    means = sum(q * np.array(v) for v, q in exact.items())
    uncertain = np.flatnonzero((means > 0.01) & (means < 0.99))
    z = {f"b={v}": z_score((b == v).all(-1), q) for v, q in exact.items() if q > 0.01}
    z |= {f"b{j}": z_score(b[..., j], means[j]) for j in uncertain}
    return z | {f"gate_prob{j}": z_score(gate_prob[..., j], means[j]) for j in uncertain}


# --- H held: all gate vectors, by each move that doesn't draw H


def with_missing(rng, num_outputs):
    """Eight times, and noise of which a fifth of the cells is missing, one row whole."""
    t, y = np.sort(rng.uniform(0, 6, 8)), rng.normal(size=(8, num_outputs))
    y[rng.uniform(size=y.shape) < 0.2] = np.nan
    y[3] = np.nan
    return t, y


@functools.cache
def with_H_held(num_latents, num_outputs, states=False):
    rng = np.random.default_rng(num_latents)
    H, prob = rng.normal(size=(num_outputs, num_latents)) * 0.7, rng.uniform(0.2, 0.8, num_latents)
    noise = rng.uniform(0.5, 1.0, num_outputs)
    t, y = with_missing(rng, num_outputs)
    covariances = dict(list(COVARIANCES.items())[:num_latents])
    model = alps.ALPS(covariances, num_outputs, inclusion_prob=prob, noise_variance=noise)
    moves = ["gate", "marginal_gate"] if states else ["gate", "gate_latent", "marginal_gate"]
    sampler = Sampler(model, t, y, moves, held=H, low_rank=2 if states else None)
    assert (sampler.kernel.features.space is not None) == states
    arguments = model.covariances, H, noise, prob, t, y
    return sampler, reference.gate_posterior(*arguments)[0], reference.posterior_mean_of_f(*arguments, t)


@pytest.mark.parametrize("move", ["gate", "gate_latent", "marginal_gate"])
@pytest.mark.parametrize("problem", [(4, 1), pytest.param((6, 3), marks=pytest.mark.slow)], ids=str)
def test_all_gate_vectors_with_H_held(move, problem, key):
    """P(b | Y, H) of every likely gate vector, E[b_j | Y, H] and E[f | Y, H]."""
    check_all_gate_vectors(move, problem, False, key)


@pytest.mark.slow
@pytest.mark.parametrize("move", ["gate", "marginal_gate"])
def test_all_gate_vectors_of_latents_with_states(move, key):
    check_all_gate_vectors(move, (5, 2), True, key)


def check_all_gate_vectors(move, problem, states, key):
    sampler, exact, f_mean = with_H_held(*problem, states)
    draws = sampler.run(key, {move})
    assert (draws["H"] == sampler.held).all()
    f = sampler.f(draws)
    z = scores(draws, exact) | {f"f{n}": z_score(f[..., *n], f_mean[n]) for n in np.ndindex(f_mean.shape)}
    assert agree(z)


BETA = (2.0, 3.0)
NAMES = ["rough", "sine 2", "smooth", "sine 3", "slow"]
GATES = ["rough", "sines", "smooth", "slow"]  # in the order of their first latents
GATE_OF = [0, 1, 2, 1, 3]


def shared_model(p, noise):
    """The rough latent is always on, the two sines share a gate, and theta ~ Beta(2, 3) governs the three gates."""
    return alps.ALPS(
        {name: COVARIANCES[name] for name in NAMES},
        p,
        inclusion_prob=dist.Beta(*BETA),
        always_on=["rough"],
        shared_gates={"sines": ["sine 2", "sine 3"]},
        noise_variance=noise,
    )


@functools.cache
def with_shared_gates():
    """The sampler with H held, P(gates | Y, H) with theta integrated out (the Beta-Bernoulli), and E[theta | Y, H]."""
    rng = np.random.default_rng(5)
    H, noise = rng.normal(size=(2, 5)) * 0.5, np.array([0.8, 1.1])
    t, y = with_missing(rng, 2)
    model = shared_model(2, noise)
    logs = {}
    for gates in np.ndindex(2, 2, 2):
        on = sum(gates)
        log_prior = betaln(BETA[0] + on, BETA[1] + 3 - on) - betaln(*BETA)
        b = np.array([1, *gates])[GATE_OF]
        logs[(1, *gates)] = reference.log_evidence(model.covariances, H, b, noise, t, y) + log_prior
    weights = np.exp(np.array(list(logs.values())) - max(logs.values()))
    exact = dict(zip(logs, weights / weights.sum(), strict=True))
    theta = sum(q * (BETA[0] + sum(gates) - 1) / (sum(BETA) + 3) for gates, q in exact.items())
    return Sampler(model, t, y, ["gate", "gate_latent", "marginal_gate"], held=H), exact, theta


@pytest.mark.slow
@pytest.mark.parametrize("moves", [("marginal_gate",), ("gate",), ("gate", "gate_latent")], ids=str)
def test_all_vectors_of_shared_gates(moves, key):
    """And a latent that is always on, and a learnt inclusion probability."""
    sampler, exact, theta = with_shared_gates()
    draws = sampler.run(key, moves)
    draws["b"] = draws["b"][..., sampler.model.first]
    assert draws["b"].shape[-1] == len(GATES)
    assert (draws["b"][..., 0] == 1).all()
    assert agree(scores(draws, exact) | {"theta": z_score(draws["inclusion_prob"], theta)})


# --- H integrated out: two latents, by quadrature


def quadrature(o, model, y, t_new):
    return reference.quadrature_posterior(
        model.covariances, model.mixing_variance, o["noise_var"], o["theta"], o["t"], y, t_new
    )


def test_quadrature_is_the_oracles(oracle, exact_model):
    o = oracle("alps_exact")
    gates, f_mean, _ = quadrature(o, exact_model, o["y"], o["t"])
    np.testing.assert_allclose(gates, o["E_b"], atol=1e-6)
    np.testing.assert_allclose(f_mean, o["posterior_mean_f_at_t"], atol=1e-6)
    # The gate's formula as the paper prints it gives .097 where 1.000 is exact.
    assert abs(o["E_b"][1] - 0.097) > 0.5


T_NEW = np.array([0.35, 1.0, 2.6, 4.3, 5.0])


def test_a_fit_and_its_predictions(oracle, exact_model, key):
    """``fit_gibbs`` as it comes, two cells missing: P(b | Y), and the mean and sd of f at new times."""
    o = oracle("alps_exact")
    y = np.array(o["y"], float)
    y[[1, 6]] = np.nan
    gates, mean, variance = quadrature(o, exact_model, y, T_NEW)
    lengths = {"num_warmup": 100, "num_samples": 100, "num_chains": NUM_CHAINS}
    fit = alps.fit_gibbs(exact_model, o["t"], y, rng_key=key, progress_bar=False, **lengths)
    predicted = alps.predict(fit, T_NEW, include_noise=False, num_draws=NUM_CHAINS * 100)
    first = predicted["mean"].values[:, 0]
    second = predicted["sd"].values[:, 0] ** 2 + first**2
    # Their Monte Carlo errors, from what each draw adds to them.
    draws = fit.at(jnp.asarray(T_NEW), NUM_CHAINS * 100)
    H = np.asarray(draws.gated_H[:, 0])
    f = np.einsum("sk,nk,sk->sn", draws.weights, draws.basis, H[:, draws.owner])
    added = np.stack([f, f**2 + H**2 @ np.asarray(draws.latent_variance)]).reshape(2, NUM_CHAINS, 100, -1)
    np.testing.assert_allclose(added.mean((1, 2)), [first, second], atol=1e-9)
    z = {f"b{j}": z_score(np.asarray(fit.samples["b"])[..., j].T, gates[j]) for j in range(2)}
    z |= {f"mean {n}": z_score(added[0, ..., n].T, mean[n]) for n in range(5)}
    z |= {f"second {n}": z_score(added[1, ..., n].T, variance[n] + mean[n] ** 2) for n in range(5)}
    assert agree(z)


@functools.cache
def _oracles_sampler(model, t, y):
    return Sampler(model, t, y, list(CHOICE))


@pytest.mark.slow
@pytest.mark.parametrize(
    "moves",
    [*SETS, ("gate_latent",), ("marginal_gate",), ("gate", "marginal_swap", "marginal_walk", "scale")],
    ids=str,
)
def test_all_sets_of_moves(moves, oracle, exact_model, key):
    """Every gate vector and E[f | Y] at the data."""
    o = oracle("alps_exact")
    sampler = _oracles_sampler(exact_model, tuple(o["t"]), tuple(o["y"]))
    draws = sampler.run(key, SETS.get(moves, moves))
    exact = {tuple(map(int, name[1:])): q for name, q in o["posterior"].items() if name in ("b00", "b01", "b10", "b11")}
    f, f_mean = sampler.f(draws), o["posterior_mean_f_at_t"]
    assert agree(scores(draws, exact) | {f"f{n}": z_score(f[..., n, 0], f_mean[n]) for n in range(len(f_mean))})


@pytest.mark.slow
def test_four_equal_times(key):
    """E[f | y] by quadrature over h, as f | h is Gaussian."""
    y, noise = np.array([0.5, 0.9, 0.7, 1.1]), 0.1
    h = np.linspace(-6, 6, 20_001)
    log_weight = -0.5 * h**2 - 0.5 * np.log(noise + 4 * h**2) + 0.5 * h**2 * y.sum() ** 2 / (noise * (noise + 4 * h**2))
    weight = np.exp(log_weight - log_weight.max())
    exact = (weight * h**2 * y.sum() / (noise + 4 * h**2)).sum() / weight.sum()
    model = alps.ALPS({"x": kernels.ExpSquared(scale=1.0)}, inclusion_prob=1.0, noise_variance=noise)
    lengths = {"num_warmup": 50, "num_samples": 100, "num_chains": NUM_CHAINS}
    fit = alps.fit_gibbs(model, np.ones(4), y, rng_key=key, progress_bar=False, **lengths)
    draws = fit.at(jnp.ones(1), NUM_CHAINS * 100)
    f = np.asarray(draws.gated_H[:, 0, 0] * (draws.weights * draws.basis[0]).sum(1)).reshape(NUM_CHAINS, 100)
    assert agree({"f": z_score(f.T, exact)})


@pytest.mark.slow
def test_an_output_without_a_cell_keeps_its_prior(key):
    """Its H has mean 0 and variance s, and its noise the prior's precision."""
    shape, rate, s = 3.0, 1.0, np.array([[1.0], [4.0]])
    model = alps.ALPS(
        {"x": alps.linear_periodic(3.0)}, 2, mixing_variance=s, noise_variance=dist.InverseGamma(shape, rate)
    )
    y = np.stack([[0.3, -0.4, 0.9, 0.1, -0.2, 0.5, 0.0, 0.4], np.full(8, np.nan)], 1)
    lengths = {"num_warmup": 20, "num_samples": 100, "num_chains": NUM_CHAINS}
    fit = alps.fit_gibbs(model, np.arange(8.0), y, rng_key=key, progress_bar=False, **lengths)
    H, noise = (np.swapaxes(fit.samples[name], 0, 1) for name in ("H", "noise_variance"))
    z = {"H": z_score(H[..., 1, 0], 0), "H^2": z_score(H[..., 1, 0] ** 2, 4.0)}
    assert agree(z | {"precision": z_score(1 / noise[..., 1], shape / rate)})


@pytest.mark.slow
def test_latents_that_can_stand_in_for_each_other(key):
    """Where every known sampler's chains disagree: a long run of another set of moves gives the default's answer.

    The default flips gates with all latents integrated out; the other has columns of H, swaps and walks beside its own
    gate, and starts with all gates on. Both start far from each other's answer.
    """
    model, t, y = stand_ins()
    lengths = {"num_warmup": 200, "num_samples": 600, "progress_bar": False}
    others = ["gate_column", "marginal_swap", "marginal_walk", "marginal_gate", "scale"]
    default = alps.fit_gibbs(model, t, y, rng_key=key, start="dispersed", **lengths)
    other = alps.fit_gibbs(model, t, y, rng_key=jax.random.fold_in(key, 1), moves=others, start="on", **lengths)
    mcse = partial(array_stats.mcse, chain_axis=0, draw_axis=1)
    for j in range(len(model.latents)):
        a, b = (np.asarray(fit.sample_stats["gate_prob"])[..., j] for fit in (default, other))
        assert abs(a.mean() - b.mean()) < 5 * np.hypot(mcse(a), mcse(b)), model.latents[j]
        assert array_stats.rhat(a, chain_axis=0, draw_axis=1) < 1.02, model.latents[j]
