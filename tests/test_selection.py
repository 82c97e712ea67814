"""Priors changed after the fact, latents left out."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import betaln, logit
from tinygp import kernels

import alps_ppl as alps

COVARIANCES = {
    "rough": kernels.Exp(scale=1.0),
    "sine 2": alps.linear_periodic(2.0),
    "smooth": kernels.ExpSquared(scale=1.5),
}


def fitted(**prior):
    """A run on two outputs of weak evidence."""
    rng = np.random.default_rng(3)
    t = np.sort(rng.uniform(0, 6, 10))
    y = np.stack([np.sin(np.pi * t), 0.5 * np.cos(np.pi * t)], 1) + 0.7 * rng.normal(size=(10, 2))
    lengths = {"num_warmup": 200, "num_samples": 2_000, "num_chains": 8, "moves": "marginal"}
    model = alps.ALPS(COVARIANCES, 2, noise_variance=0.5, **prior)
    return alps.fit_gibbs(model, t, y, rng_key=jax.random.key(11), progress_bar=False, **lengths)


@pytest.fixture(scope="module")
def at_half():
    return fitted(inclusion_prob=0.5)


def check_agree(moved, table):
    """Within 5 Monte Carlo errors of both."""
    for name in COVARIANCES:
        error = np.hypot(table.mcse[name], np.sqrt(0.25 / moved.ess[name]))
        assert abs(moved.probability[name] - table.probability[name]) < 5 * error, name


@pytest.mark.parametrize("prob", [0.2, pytest.param(0.7, marks=pytest.mark.slow)])
def test_reweighted_draws_are_another_runs(prob, at_half):
    moved = alps.inclusion_sensitivity(at_half, [prob]).set_index("latent")
    assert moved.reliable.all()
    check_agree(moved, alps.inclusion_table(fitted(inclusion_prob=prob)).set_index("latent"))


@pytest.mark.slow
def test_from_a_learnt_prior(at_half):
    """The Beta's draws at theta = 1/2 are the fixed prior's."""
    moved = alps.inclusion_sensitivity(alps.to_datatree(fitted(inclusion_prob=dist.Beta(1.0, 2.0))), [0.5])
    check_agree(moved.set_index("latent"), alps.inclusion_table(at_half).set_index("latent"))


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


def test_what_has_no_sensitivity(fits):
    """SVI's gates are apart by construction: weighting its draws says nothing of another posterior."""
    tree = toy_tree(np.ones((1, 50, 2)))
    cases = [
        ((fits["svi"],), ValueError, "tree: .*Gibbs"),
        (({"gibbs": tree},), TypeError, "tree: .*got dict"),
        ((tree, []), ValueError, "inclusion_probs: .*at least one"),
        ((tree, [1]), ValueError, "inclusion_probs: .*1e-06 to"),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            alps.inclusion_sensitivity(*arguments)


def with_probabilities(fit, probabilities):
    """An SVI fit whose gates have these probabilities."""
    return replace(fit, params=fit.params | {"b_logits": jnp.asarray(logit(probabilities))})


def test_prune_keeps_one_of_a_pair(fits):
    """The likelier of two equal latents that share the evidence; the rest by the threshold."""
    fit = with_probabilities(fits["svi"], [0.45, 0.1, 0.49, 0.9])  # the pair: 1 - .55 * .51 = .72
    assert alps.prune(fit).latents == ("T=7 again", "smooth")
    assert alps.prune(fit, threshold=0.4).latents == ("T=7", "T=7 again", "smooth")
    assert alps.prune(fit, threshold=0.75).latents == ("smooth",)
    assert "T=5" not in alps.prune(fits["gibbs"]).latents
    with pytest.raises(ValueError, match=r"threshold: no latent .* 0.900"):
        alps.prune(fit, threshold=0.95)
    with pytest.raises(TypeError, match=r"fit: .*got DataTree"):
        alps.prune(toy_tree(np.ones((1, 4, 2))))
