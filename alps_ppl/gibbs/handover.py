"""The move between a shared memory and an output's own.

A shared memory whose column of H sits on one output does that output's private work at an equal likelihood, and no move
of the gate alone gets out of it: without it, the output's own part would be much too small.
"""

from typing import Any

import jax.numpy as jnp
from jax import random as jax_random
from jax.scipy.stats import norm

from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs.products import residual_statistics
from alps_ppl.gibbs.randomness import RandomNumbers, categorical, index
from alps_ppl.gibbs.target import Chain, Target

# The sd of the logarithm of an output's own variance, proposed around what keeps its white noise.
STEP = 0.5


def hand_over(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """b_j together with (g_i, s_i^2) of an output i, x_j integrated out, the other latents given.

    The process j is drawn evenly, the output by its share of H_:j squared. Going off, (g_i, s_i^2) is drawn from its
    conditional, so that what counts is the marginal likelihood of r_i, what the others leave of y_i. Coming on, g_i is
    drawn from its prior and log s_i^2 around that which keeps the white noise, (1 - rho) s_i^2.
    """
    model, memories = target.model, target.plan.memories
    which, where, grid_u, accept_u = random.uniform["hand_over"]
    gate = jnp.asarray(memories)[index(which, len(memories))]
    mine = jnp.asarray(model.gate_of) == gate
    j = jnp.argmax(mine)
    squares = (chain.H**2 * mine).sum(1)
    i = categorical(squares / squares.sum(), where)
    is_on = chain.b[j] == 1

    stats = residual_statistics(target.at_scales(chain), chain.weights, chain.H, chain.b * ~mine, (i, chain.memory))
    private: Any = stats.private
    n = stats.num_observed
    own = c.memory_conditional(stats, model.noise_variance)
    off_point = jnp.where(is_on, categorical(own.probs[i], grid_u), chain.memory[i])
    drawn = c.noise_conditional(stats, private.sum_squares[off_point], model.noise_variance)
    off_s2 = jnp.where(is_on, drawn.sample(jax_random.fold_in(random.key, 2))[i], chain.noise_variance[i])

    on_point = jnp.where(is_on, chain.memory[i], categorical(jnp.exp(private.memory.log_prior), grid_u))
    off_rho, on_rho = private.memory.share[off_point], private.memory.share[on_point]
    centre = jnp.log((1 - off_rho) * off_s2 / (1 - on_rho))
    on_s2 = jnp.where(is_on, chain.noise_variance[i], jnp.exp(centre + STEP * random.normal["hand_over"][0]))

    # What going off wins; the densities of g_i cancel.
    point, s2 = chain.memory.at[i].set(on_point), chain.noise_variance.at[i].set(on_s2)
    output = jnp.arange(len(n))
    alone = -0.5 * n * jnp.log(2 * jnp.pi * s2) - private.half_log_det[point, output]
    alone -= 0.5 * private.sum_squares[point, output] / s2
    prior = model.noise_variance.expand((len(n),))
    on = c.log_evidence(stats.given(point), chain.H * mine, jnp.ones_like(chain.b), s2) - alone.sum() + alone[i]
    on += prior.log_prob(s2)[i]
    log_proposal = norm.logpdf(jnp.log(on_s2), centre, STEP) - jnp.log(on_s2)
    off = c.log_own_evidence(stats, model.noise_variance)[i] + log_proposal
    log_ratio = off - on - target.logits[j]

    accept = jnp.log(accept_u) < jnp.where(is_on, log_ratio, -log_ratio)
    go_on, go_off = accept & ~is_on, accept & is_on

    def moved(here, if_on, if_off):
        return jnp.where(go_on, if_on, jnp.where(go_off, if_off, here)).astype(here.dtype)

    return chain._replace(
        b=jnp.where(mine, moved(chain.b, 1.0, 0.0), chain.b),
        memory=chain.memory.at[i].set(moved(chain.memory[i], on_point, off_point)),
        noise_variance=chain.noise_variance.at[i].set(moved(chain.noise_variance[i], on_s2, off_s2)),
    )
