"""The move between latents that leaves every output as it is.

The likelihood sees sum_j h_ij x_j alone: it can't tell (x_j + e x_k, H_:k - e H_:j) from (x_j, H_:k). Drawing the
latents given H and then H given the latents moves along e by no more than the noise allows, little on many times.
"""

from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs.layout import Layout
from alps_ppl.gibbs.products import innovations
from alps_ppl.gibbs.randomness import RandomNumbers
from alps_ppl.gibbs.statistics import StateStatistics
from alps_ppl.gibbs.target import Chain, Target


def shear(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """(x_j, H_:k) -> (x_j + e x_k, H_:k - e H_:j) for each pair with open gates, e from its conditional.

    That is Gibbs sampling along the orbit of a group of maps, whose volume is 1 (Liu and Sabatti 2000, Generalised
    Gibbs sampler and multigrid Monte Carlo).
    """
    stats: Any = target.at_scales(chain)
    features, states = stats.split(chain.weights)
    owner = np.array(target.plan.layout.state_owner)
    own = [np.array([np.flatnonzero(owner == latent) for latent in pair]) for pair in target.plan.sheared]

    def step(carry, pair_and_normal):
        H, states = carry
        pair, own, normal = pair_and_normal
        conditional, added = shear_conditional(stats.states, H, states, target.mixing_variance, pair, own)
        e = conditional.loc + conditional.scale * normal
        e = jnp.where((chain.b[pair] == 1).all(), e, 0.0)
        j, k = pair
        return (H.at[:, k].add(-e * H[:, j]), states.at[:, own[0]].add(e * added)), None

    carry = chain.H, states
    sizes = np.array([part.shape[1] for part in own])
    for size in sorted(set(sizes)):
        mine = np.flatnonzero(sizes == size)
        steps = np.array(target.plan.sheared)[mine], np.stack([own[n] for n in mine])
        carry, _ = jax.lax.scan(step, carry, (*map(jnp.asarray, steps), random.normal["shear"][mine]))
    H, states = carry
    return chain._replace(H=H, weights=jnp.concatenate([features, states.reshape(-1)]))


def shear_conditional(
    s: StateStatistics,
    H: Float[Array, "output latent"],
    states: Float[Array, "time dim"],
    mixing_variance: Float[Array, "output latent"],
    pair: Int[Array, " 2"],
    own: Int[Array, "2 d"],
) -> tuple[dist.Normal, Float[Array, "time d"]]:
    """The distribution of e, and the states of x_k as j's states; ``own`` are the two latents' states.

    The likelihood doesn't change, so that the density is the priors': log p(e) = -(x_j + e x_k)^T K_j^-1 (x_j + e x_k)
    / 2 - sum_i (h_ik - e h_ij)^2 / (2 s_ik) up to a constant, with states for x.
    """
    (j, k), (mine, others) = pair, own
    seen = s.observe[j, mine]
    added = states[:, others] * (seen @ s.observe[k, others]) / (seen @ seen)
    transition, Q = (part[:, mine][..., mine] for part in (s.transition, s.precision))
    of_path, of_added = innovations(transition, states[:, mine]), innovations(transition, added)
    precision = jnp.einsum("td,tde,te", of_added, Q, of_added) + (H[:, j] ** 2 / mixing_variance[:, k]).sum()
    potential = (H[:, j] * H[:, k] / mixing_variance[:, k]).sum() - jnp.einsum("td,tde,te", of_added, Q, of_path)
    return dist.Normal(potential / precision, 1 / jnp.sqrt(precision)), added


def sheared(layout: Layout, observe: Float[np.ndarray, "latent dim"]) -> tuple[tuple[int, int], ...]:
    """The pairs (j, k) of latents for which x_j + e x_k is a path of j's states: their states are alike."""
    owner = np.array(layout.state_owner, int)
    seen = {j: observe[j, owner == j] for j in sorted(set(layout.state_owner)) if layout.ranks[j] == 0}
    return tuple((j, k) for j, k in permutations(seen, 2) if _are_parallel(seen[j], seen[k]))


def _are_parallel(first: Float[np.ndarray, " d"], second: Float[np.ndarray, " e"]) -> bool:
    return len(first) == len(second) and np.allclose(np.outer(first, second), np.outer(second, first))
