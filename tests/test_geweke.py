"""Geweke's joint distribution test (JASA 2004): sweeps alternate with redraws of y, so the sites must keep their prior.

Every chain starts at a draw of the program, so a right sampler's chains are stationary from the start: their means are
independent and unbiased, and the mean of them all is compared with the prior's exact means by Student's t.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import stats
from simulation import Simulation, prior, prior_means, summaries

from alps_ppl.gibbs import _CHAIN_AXES

NUM_CHAINS = 200


SETS = ["few outputs", "many outputs", "paper", "collapsed", "all"]
SINGLE = [
    ("gate_column",),
    ("gate_latent",),
    ("marginal_gate",),
    ("gate", "marginal_swap"),
    ("gate", "marginal_walk"),
    ("gate", "exchange"),
    ("gate", "scale"),
]


def chain_means(simulation, key, num_sweeps):
    """Each chain's means of the test functions over its sweeps, (chain, ...) by name."""
    keys = random.split(key, 3)
    states = simulation.states(keys[0], NUM_CHAINS, prior(keys[1], NUM_CHAINS))

    def step(carry, key):
        state, sites, total = carry
        noise = random.normal(key, sites["f"].shape)
        y = sites["f"] + jnp.sqrt(sites["noise_variance"]) * noise
        state = simulation.sweep(state, y)
        sites = simulation.sites(state)
        values = summaries(sites, y) | {"gate_prob": state.gate_prob}
        return (state, sites, jax.tree.map(jnp.add, total, values)), None

    zeros = jax.tree.map(lambda mean: jnp.zeros(np.shape(mean)), prior_means())

    def chain(state, key):
        (_, _, total), _ = jax.lax.scan(step, (state, simulation.sites(state), zeros), random.split(key, num_sweeps))
        return jax.tree.map(lambda value: value / num_sweeps, total)

    return jax.jit(jax.vmap(chain, (_CHAIN_AXES, 0)))(states, random.split(keys[2], NUM_CHAINS))


def z_scores(means):
    """By test function, of the mean over chains."""
    return {
        name: (means[name].mean(0) - exact) / (means[name].std(0, ddof=1) / np.sqrt(NUM_CHAINS))
        for name, exact in prior_means().items()
    }


def largest(scores):
    """The largest |z|, and whose."""
    name = max(scores, key=lambda name: np.abs(scores[name]).max())
    return float(np.abs(scores[name]).max()), name


def bound(scores, level=1e-4):
    """What the largest |z| exceeds with at most this probability if the sampler is right (Bonferroni)."""
    number = sum(np.size(value) for value in scores.values())
    return stats.t.ppf(1 - level / 2 / number, NUM_CHAINS - 1)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [*SETS, *SINGLE], ids=str)
def test_sweeps_and_redrawn_data_keep_the_prior(blocks, key):
    """The exact means of all sites, f, the log likelihood and the gates' probabilities, in a chain over (sites, y)."""
    scores = z_scores(chain_means(Simulation(blocks), key, num_sweeps=1_000))
    print(blocks, *largest(scores))
    assert largest(scores)[0] < bound(scores)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", ["few outputs", "paper", "all"])
def test_so_do_latents_with_states(blocks, monkeypatch, key):
    """The same where the two rough latents have Markov states and the third has features."""
    monkeypatch.setattr("alps_ppl.features.LOW_RANK", 2)
    simulation = Simulation(blocks)
    assert simulation.kernel._features.space is not None
    scores = z_scores(chain_means(simulation, key, num_sweeps=1_000))
    print(blocks, "states", *largest(scores))
    assert largest(scores)[0] < bound(scores)


def test_prior_means_are_the_programs(key):
    """The exact means above, against the program's own draws."""
    sites = prior(key, 10_000)
    sites["f"] = jnp.einsum("sij,sj,sjt->sti", sites["H"], sites["b"], sites["x"])
    values = jax.vmap(summaries)(sites, sites["y"])
    for name, value in values.items():
        error = (value.mean(0) - prior_means()[name]) / (value.std(0) / 100)
        assert np.abs(error).max() < 5.5, name
