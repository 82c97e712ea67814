"""Priors changed after the fact, latents left out."""

import itertools

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import betaln
from test_exact import COVARIANCES
from test_gibbs import run

import alps_ppl as alps

NAMES = ["rough", "sine 2", "smooth"]


def fitted(key, **prior):
    """A run on two outputs of weak evidence, H nearly held by a prior of its own, and its tree."""
    rng = np.random.default_rng(3)
    t = np.sort(rng.uniform(0, 6, 10))
    y = np.stack([np.sin(np.pi * t), 0.5 * np.cos(np.pi * t)], 1) + 0.7 * rng.normal(size=(10, 2))
    model = alps.ALPS({name: COVARIANCES[name] for name in NAMES}, 2, noise_variance=0.5, **prior)
    mcmc = run(model, t, y, key=key, num_samples=2_000, num_chains=8, blocks="few outputs")
    return alps.to_datatree(mcmc, model, t, y)


@pytest.fixture(scope="module")
def module_key():
    import jax

    return jax.random.key(11)


@pytest.fixture(scope="module")
def at_half(module_key):
    return fitted(module_key, inclusion_prob=0.5)


@pytest.mark.parametrize("prob", [0.2, 0.7])
def test_reweighted_draws_are_another_runs(prob, at_half, module_key):
    """A run with the other prior, within 5 Monte Carlo errors of both."""
    moved = alps.inclusion_sensitivity(at_half, [prob]).set_index("latent")
    again = alps.inclusion_table(fitted(module_key, inclusion_prob=prob)).set_index("latent")
    assert moved.reliable.all()
    for name in NAMES:
        error = np.hypot(again.mcse[name], np.sqrt(0.25 / moved.ess[name]))
        assert abs(moved.probability[name] - again.probability[name]) < 5 * error, name


def test_from_a_learnt_prior(at_half, module_key):
    """The Beta's draws at theta = 1/2 are the fixed prior's."""
    tree = fitted(module_key, inclusion_prob=dist.Beta(1.0, 2.0))
    moved = alps.inclusion_sensitivity(tree, [0.5]).set_index("latent")
    table = alps.inclusion_table(at_half).set_index("latent")
    for name in NAMES:
        error = np.hypot(table.mcse[name], np.sqrt(0.25 / moved.ess[name]))
        assert abs(moved.probability[name] - table.probability[name]) < 5 * error, name


def toy_tree(gates, **constant):
    """A tree of given gates (chain, draw, latent)."""
    from arviz_base import from_dict

    m = gates.shape[-1]
    names = [f"L{j}" for j in range(m)]
    groups = {
        "posterior": {"b": gates},
        "constant_data": {"prior_inclusion_prob": np.full(m, 0.5), "covariance_group": np.arange(m)}
        | {"prior_of_group": np.full(m, 0.5), "gate": np.arange(m)}
        | constant,
    }
    dims = {name: ["latent"] for name in ("b", *groups["constant_data"]) if name != "inclusion_concentration"}
    return from_dict(groups, dims=dims, coords={"latent": names})


@pytest.mark.parametrize("beta", [None, (2.0, 5.0)])
def test_exact_on_enumerated_gates(beta):
    """Draws in exact proportion to a posterior of three gates: Bayes' rule by a table."""
    likelihood = np.array([1.0, 2.0, 1.0, 5.0, 3.0, 4.0, 2.0, 9.0])
    vectors = np.array(list(itertools.product((0, 1), repeat=3)))
    on = vectors.sum(1)
    prior = np.ones(8) if beta is None else np.exp(betaln(beta[0] + on, beta[1] + 3 - on) - betaln(*beta))
    counts = np.round(100_000 * likelihood * prior / (likelihood * prior).sum()).astype(int)
    draws = np.random.default_rng(0).permutation(np.repeat(vectors, counts, axis=0))[None]
    constant = {} if beta is None else {"inclusion_concentration": np.array(beta)}
    table = alps.inclusion_sensitivity(toy_tree(draws, **constant), [0.1, 0.9])
    for prob in (0.1, 0.9):
        new = likelihood * prob**on * (1 - prob) ** (3 - on)
        exact = new @ vectors / new.sum()
        np.testing.assert_allclose(table[table.inclusion_prob == prob].probability, exact, atol=2e-3)


def test_what_draws_cannot_know():
    """Nothing is said of a gate that never turned where the prior moves far towards its other value."""
    rng = np.random.default_rng(1)
    gates = np.stack([np.ones((2, 500)), np.zeros((2, 500)), rng.integers(0, 2, (2, 500))], -1)
    table = alps.inclusion_sensitivity(toy_tree(gates), [0.01, 0.5, 0.99]).set_index(["inclusion_prob", "latent"])
    assert not table.reliable[0.01, "L0"]  # on in all draws: is it still when the prior says 1 %?
    assert table.reliable[0.99, "L0"]
    assert not table.reliable[0.99, "L1"]
    assert table.reliable[0.01, "L1"]
    assert table.reliable[0.5].all()
    with pytest.raises(ValueError, match=r"inclusion_probs: expected a number from 1e-06 to 0\.999999, got 1"):
        alps.inclusion_sensitivity(toy_tree(gates), [1])


def test_only_a_sampler_s_tree():
    """SVI's gates are apart by construction: weighting its draws says nothing of another posterior."""
    gates = np.ones((1, 50, 2))
    tree = toy_tree(gates)
    tree.attrs["engine"] = "svi"
    with pytest.raises(ValueError, match="tree: expected a Gibbs run's"):
        alps.inclusion_sensitivity(tree)
    with pytest.raises(TypeError, match="tree: expected one result of to_datatree, got dict"):
        alps.inclusion_sensitivity({"gibbs": toy_tree(gates)})
    with pytest.raises(ValueError, match="inclusion_probs: expected at least one probability"):
        alps.inclusion_sensitivity(toy_tree(gates), [])


def test_prune_keeps_one_of_a_pair():
    """The likelier of two equal latents that share the evidence; the rest by the threshold."""
    covariances = {"L0": COVARIANCES["rough"], "L1": COVARIANCES["sine 2"], "L2": COVARIANCES["sine 2"]}
    model = alps.ALPS(covariances | {"L3": COVARIANCES["slow"]}, ["u", "v"], noise_variance=0.1)
    rng = np.random.default_rng(2)
    first = rng.uniform(size=(2, 500)) < 0.6
    gates = np.stack([np.zeros((2, 500)), ~first, first, np.ones((2, 500))], -1).astype(int)
    tree = toy_tree(gates, covariance_group=np.array([0, 1, 1, 2]))
    assert alps.prune(model, tree).latents == ("L2", "L3")
    assert alps.prune(model, tree, threshold=0.3).latents == ("L1", "L2", "L3")
    assert alps.prune(model, tree, threshold=0.7).latents == ("L2", "L3")
    with pytest.raises(ValueError, match=r"tree: expected the latents of the model, \['L3'\]"):
        alps.prune(model.subset(["L3"]), tree)
    with pytest.raises(ValueError, match=r"threshold: no latent reaches 0.5; the largest probability is 0.000"):
        alps.prune(model, toy_tree(np.zeros_like(gates)))
