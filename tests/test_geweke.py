"""Geweke's joint distribution test (JASA 2004): sweeps alternate with redraws of y, so the sites must keep their prior.

Every chain starts at a draw of the program, so a right sampler's chains are stationary from the start: their means are
independent and unbiased, and the mean of them all is compared with the prior's exact means by Student's t. A sampler
with a mistake must fail.
"""

import functools
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from mistakes import MISTAKES, possible
from scipy import stats
from simulation import Simulation, choose, prior, prior_means, summaries

from alps_ppl.gibbs import conditionals, handover, shears, student
from alps_ppl.gibbs.kernel import CHOICE, SETS

pytestmark = pytest.mark.usefixtures("optimised")

NUM_CHAINS = 1_000
NUM_SWEEPS = 200
NUM_SWEEPS_OF_A_MISTAKE = 100
# Each move with what a sweep needs besides it to get everywhere; "gate" alone is the paper's sampler.
SINGLE = {move: {move} if "gate" in move else {"gate", move} for move in CHOICE}


@functools.cache
def program(states=False, memory=False, unknown=False, student=False):
    """All moves and mistakes in one compiled program: each chain's means of the test functions over its sweeps."""
    chosen = [move for move in CHOICE if not (states and move == "gate_latent")]
    simulation = Simulation(chosen, states=states, memory=memory, unknown=unknown, student=student)
    zeros = jax.tree.map(lambda mean: jnp.zeros(np.shape(mean)), prior_means(memory, unknown, student))

    @jax.jit
    def means(chains, keys, num_sweeps, moves, mistakes):
        with nullcontext() if mistakes is None else possible(mistakes), choose(moves):
            if unknown:  # all side by side, XLA's program waited for ever
                one = lambda both: one_chain(*both, num_sweeps)  # noqa: E731
                return jax.lax.map(one, (chains, keys), batch_size=100)
            return jax.vmap(one_chain, (0, 0, None))(chains, keys, num_sweeps)

    def one_chain(state, key, num_sweeps):
        def step(n, carry):
            state, sites, total = carry
            y = simulation.redraw(random.fold_in(key, n), sites)
            state = simulation.sweep(state, y)
            sites = simulation.sites(state)
            values = summaries(sites, y) | {"gate_prob": state.gate_prob}
            values = {name: values[name] for name in zeros}
            return state, sites, jax.tree.map(jnp.add, total, values)

        _, _, total = jax.lax.fori_loop(0, num_sweeps, step, (state, simulation.sites(state), zeros))
        return jax.tree.map(lambda value: value / num_sweeps, total)

    def run(key, moves, mistake=None):
        keys = random.split(key, 3)
        chains = simulation.states(keys[0], NUM_CHAINS, prior(keys[1], NUM_CHAINS, memory, unknown, student))
        flags = {move: jnp.asarray(move in moves) for move in chosen}
        mistakes = None if states or memory or student else {name: jnp.asarray(name == mistake) for name in MISTAKES}
        num_sweeps = NUM_SWEEPS_OF_A_MISTAKE if mistake or unknown or student else NUM_SWEEPS
        return means(chains, random.split(keys[2], NUM_CHAINS), num_sweeps, flags, mistakes)

    return run


def z_scores(means, memory=False, unknown=False, student=False):
    """By test function, of the mean over chains."""
    return {
        name: (means[name].mean(0) - exact) / (means[name].std(0, ddof=1) / np.sqrt(NUM_CHAINS))
        for name, exact in prior_means(memory, unknown, student).items()
    }


def largest(scores):
    """The largest |z|, and whose."""
    name = max(scores, key=lambda name: np.abs(scores[name]).max())
    return float(np.abs(scores[name]).max()), name


def bound(scores, level=1e-4):
    """What the largest |z| exceeds with at most this probability if the sampler is right (Bonferroni)."""
    number = sum(np.size(value) for value in scores.values())
    return stats.t.ppf(1 - level / 2 / number, NUM_CHAINS - 1)


def z_scores_with(mistake, key):
    """Of a sampler with the mistake."""
    return z_scores(program()(key, {MISTAKES[mistake].move, *MISTAKES[mistake].others}, mistake))


def keeps_the_prior(moves, states, key, memory=False, unknown=False, student=False):
    scores = z_scores(program(states, memory, unknown, student)(key, moves), memory, unknown, student)
    print(moves, "states" if states else "features", *largest(scores))
    return largest(scores)[0] < bound(scores)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(move for move in CHOICE if move not in ("hand_over", "shear")), "all"])
def test_sweeps_and_redrawn_data_keep_the_prior(name, key):
    """The exact means of all sites, f, the log likelihood and the gates' probabilities, in a chain over (sites, y)."""
    assert keeps_the_prior(SETS["all"] if name == "all" else SINGLE[name], False, key)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shear", "marginal", "paper", "all"])
def test_so_do_latents_with_states(name, key):
    """The same where the two rough latents have Markov states and the third has features."""
    assert keeps_the_prior(SETS.get(name, SINGLE.get(name)), True, key)


@pytest.mark.slow
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("name", ["hand_over", "joint_swap", "all"])
def test_so_do_copies_and_private_memories(name, states, key):
    """Two copies of one latent, and a memory of each output's own: its point, and its share of all else."""
    moves = {"hand_over", "gate"} if name == "hand_over" else SETS[name]
    assert keeps_the_prior(moves, states, key, memory=True)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "states"), [("joint_swap", False), ("all", False), ("all", True)])
def test_so_do_unknown_scales(name, states, key):
    """Two rough processes of one range, which can change places, and a cycle of unknown period with two copies."""
    assert keeps_the_prior(SETS[name], states, key, memory=True, unknown=True)


@pytest.mark.slow
@pytest.mark.parametrize(("states", "memory"), [(False, False), (True, False), (False, True), (True, True)])
def test_so_do_the_factors_of_students_noise(states, memory, key):
    """With white noise alone, and beside the outputs' memories."""
    assert keeps_the_prior(SETS["all"], states, key, memory=memory, student=True)


def as_white_noise(right):
    def draw(grid, errors, times, precision, memory, uniform):
        return right(grid, errors, times, precision, memory._replace(share=0 * memory.share), uniform)

    return draw


@pytest.mark.slow
def test_a_mistake_with_students_noise_is_caught(key):
    """The factors drawn as if there were no memory beside the noise."""
    with mock.patch.object(student, "draw_factors", as_white_noise(student.draw_factors)):
        scores = z_scores(program.__wrapped__(memory=True, student=True)(key, {"gate_column"}), True, student=True)
    print(*largest(scores))
    assert largest(scores)[0] > bound(scores)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake, key):
    scores = z_scores_with(mistake, key)
    print(mistake, *largest(scores))
    assert largest(scores)[0] > bound(scores)


def without_the_proposals_density(right):
    return SimpleNamespace(logpdf=lambda value, *_: jnp.zeros_like(value))


def without_the_determinant(right):
    def log_points(stats, noise_variance):
        private = stats.private._replace(half_log_det=jnp.zeros_like(stats.private.half_log_det))
        return right(stats._replace(private=private), noise_variance)

    return log_points


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "mistake", "moves"),
    [
        (handover, "norm", without_the_proposals_density, {"hand_over", "gate_column"}),
        (conditionals, "_log_points", without_the_determinant, {"gate_column"}),
    ],
)
def test_a_mistake_with_private_memories_is_caught(module, name, mistake, moves, key):
    """The hand-over without its proposal's density, and the memory's point drawn without log |C|."""
    with mock.patch.object(module, name, mistake(getattr(module, name))):
        scores = z_scores(program.__wrapped__(memory=True)(key, moves), memory=True)
    print(mistake.__name__, *largest(scores))
    assert largest(scores)[0] > bound(scores)


def without_the_innovations(right):
    return lambda transition, path: path


@pytest.mark.slow
def test_a_mistake_of_the_shear_is_caught(key):
    """The conditional of e where the latent's covariance were white."""
    with mock.patch.object(shears, "innovations", without_the_innovations(shears.innovations)):
        scores = z_scores(program.__wrapped__(states=True)(key, {"gate", "shear"}))
    print(*largest(scores))
    assert largest(scores)[0] > bound(scores)


@pytest.mark.slow
def test_prior_means_are_the_programs(key):
    """The exact means above, against the program's own draws."""
    sites = prior(key, 10_000)
    sites["f"] = jnp.einsum("sij,sj,sjt->sti", sites["H"], sites["b"], sites["x"])
    values = jax.vmap(summaries)(sites, sites["y"])
    for name, value in values.items():
        error = (value.mean(0) - prior_means()[name]) / (value.std(0) / 100)
        assert np.abs(error).max() < 5.5, name
