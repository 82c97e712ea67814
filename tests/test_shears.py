"""The move along which no output changes, against the prior's own density."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import features, shears
from alps_ppl.gibbs.products import weights_squares

LATENTS = {
    "short": kernels.Exp(scale=0.7),
    "scaled": kernels.Constant(0.5) * kernels.Exp(scale=2.0),
    "white": alps.white(),
    "smooth": kernels.Matern32(scale=1.2),
    "smoother": kernels.Constant(2.0) * kernels.Matern32(scale=2.0),
    "walk": alps.random_walk(1.3, 4.0),
    "both": kernels.Exp(scale=1.0) + alps.linear_periodic(1.7),
    "wave": alps.linear_periodic(1.7),
}
TIMES = np.sort(np.random.default_rng(0).uniform(0, 5, 12))
ONE_STATE = ("short", "scaled", "white", "walk")


@pytest.fixture(scope="module")
def bound():
    """The kernel with states for all that isn't a cycle, and sites of a chain (H, weights)."""
    rng = np.random.default_rng(1)
    model = alps.ALPS(LATENTS, 3, mixing_variance=rng.uniform(0.5, 2, (3, len(LATENTS))), noise_variance=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "LOW_RANK", 3)
        kernel = alps.ALPSGibbs(model, moves="all")
        kernel.bind(TIMES, rng.normal(size=(12, 3)))
    return (
        kernel,
        jnp.asarray(rng.normal(size=(3, len(LATENTS)))),
        jnp.asarray(rng.normal(size=len(kernel.stats.owner))),
    )


def moved(kernel, H, weights, pair, e):
    """Where the chain is after e, and log p(e) by the conditional."""
    layout = kernel.plan.layout
    owner, (j, k) = np.array(layout.state_owner), pair
    own = jnp.asarray(np.array([np.flatnonzero(owner == latent) for latent in pair]))
    w, states = kernel.stats.split(weights)
    s = jnp.asarray(kernel.model.mixing_variance)
    conditional, added = shears.shear_conditional(kernel.stats.states, H, states, s, jnp.array(pair), own)
    states = states.at[:, own[0]].add(e * added)
    return H.at[:, k].add(-e * H[:, j]), jnp.concatenate([w, states.reshape(-1)]), conditional.log_prob(e)


def test_which_pairs(bound):
    """Latents with equally many states, whose value is the same combination of them, and without features."""
    kernel, names = bound[0], list(LATENTS)
    alike = [ONE_STATE, ("smooth", "smoother")]
    wanted = {(names.index(a), names.index(b)) for group in alike for a in group for b in group if a != b}
    assert set(kernel.plan.sheared) == wanted
    assert "shear" in kernel.plan.moves
    alone = alps.ALPSGibbs(alps.ALPS({"a": kernels.Exp(scale=1.0), "b": alps.linear_periodic(3)}, noise_variance=0.1))
    alone.bind(np.arange(200.0), np.zeros(200))
    assert "shear" not in alone.plan.moves


def test_no_output_changes_and_the_density_is_the_priors(bound):
    """For every pair, at several e; of latents with one state the prior is dense."""
    kernel, H, weights = bound
    phi, s = kernel.features.phi(), kernel.model.mixing_variance
    names = list(LATENTS)
    at_times = {name: reference.gram(LATENTS[name], TIMES, TIMES) for name in ONE_STATE}
    f = H @ kernel.features.latents(weights, phi)
    for pair in kernel.plan.sheared:
        left = {"states": [], "dense": []}
        for e in (-1.3, 0.2, 0.9):
            new_H, new, log_prob = moved(kernel, H, weights, pair, e)
            x = kernel.features.latents(new, phi)
            np.testing.assert_allclose(new_H @ x, f, atol=1e-9)
            log_prior = -0.5 * (new_H**2 / s).sum()
            squares = weights_squares(kernel.stats, new, len(names))
            left["states"].append(float(log_prob - log_prior + 0.5 * squares.sum()))
            if (name := names[pair[0]]) in at_times:
                x_j = np.asarray(x[pair[0]])
                left["dense"].append(float(log_prob - log_prior + 0.5 * x_j @ np.linalg.solve(at_times[name], x_j)))
        assert all(np.ptp(values) < 1e-8 for values in left.values() if values), pair


@pytest.mark.parametrize(("gates", "moves"), [((1, 1), True), ((1, 0), False), ((0, 0), False)])
def test_both_gates_have_to_be_open(bound, gates, moves):
    kernel, H, weights = bound
    b = jnp.zeros(len(LATENTS)).at[jnp.array([0, 1])].set(jnp.array(gates, float))
    target = shears.Target(kernel.plan, kernel.model, kernel.stats, jnp.zeros(len(b)), jnp.full(3, jnp.nan))
    chain = shears.Chain(H, b, weights, jnp.full(3, 0.1))
    normal = {"shear": jax.random.normal(jax.random.key(0), (len(kernel.plan.sheared),))}
    after = shears.shear(target, chain, shears.RandomNumbers(normal, {}))
    assert bool((after.H != H).any()) == moves
    phi = kernel.features.phi()
    before, now = ((c.H * b) @ kernel.features.latents(c.weights, phi) for c in (chain, after))
    np.testing.assert_allclose(now, before, atol=1e-9)
