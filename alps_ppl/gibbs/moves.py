"""The moves of a sweep, a function each: ``move(target, chain, random)`` is the chain after it.

A move leaves the posterior as it is. ``MOVES`` has them in the order of a sweep, with how many standard normals and
uniforms each takes, and how many proposals it accepts or refuses by a uniform each. A sweep draws all of them at
once, since every draw costs .3 s of compilation.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random as jax_random
from jaxtyping import Array

from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs.gaussians import PrecisionNormal
from alps_ppl.gibbs.handover import hand_over
from alps_ppl.gibbs.products import residual_statistics
from alps_ppl.gibbs.randomness import RandomNumbers, categorical, index
from alps_ppl.gibbs.scales import unknown_scale
from alps_ppl.gibbs.shears import shear
from alps_ppl.gibbs.student import draw_cells
from alps_ppl.gibbs.target import Chain, Move, Target, log_prior


def marginal_gate(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """b_j given H, all latents integrated out: the evidence of the other value accepts it."""
    of_gate = jnp.asarray(target.of_gate)

    def propose(H, b, latents):
        return H, jnp.where(latents, 1 - b, b)

    uniform = random.acceptance["marginal_gate"]
    if target.stats.states is None:
        (H, b), log_ratio, before = _metropolis(target, chain, propose, of_gate, uniform)
    else:
        H, (b, log_ratio, before) = chain.H, _flips_beside_states(target, chain, uniform)
    was_on = (before * of_gate).any(-1)
    return chain.with_gates(jax.nn.sigmoid(jnp.where(was_on, -log_ratio, log_ratio)), H=H, b=b)


def _flips_beside_states(target: Target, chain: Chain, uniform: Array):
    """b, the log ratio of each gate's flip, and b before it: gates without Markov states first, then those with.

    One factorisation of the states does for all flips of the first kind: they change the border alone, which is as
    large as the features. With S and u the border's when all of its gates are open, the evidence with a set B of them
    on is that of the states less log|I + S_BB| / 2 plus u_B^T (I + S_BB)^-1 u_B / 2.
    """
    stats, layout, of_gate = target.given(chain), target.plan.layout, target.of_gate
    with_states = of_gate[:, list(set(layout.state_owner))].any(1)
    in_border = ~of_gate[with_states].any(0)
    owner = layout.owner[: sum(layout.ranks)]

    def factorise(b):
        opened = jnp.where(in_border, 1.0, b)
        return c.weights_conditional(stats, chain.H, opened, chain.noise_variance).border

    def log_marginal(border, b):
        states, S, u = border
        keep = b[owner]
        of_border = PrecisionNormal(keep * u, jnp.eye(len(u), dtype=u.dtype) + keep[:, None] * S * keep)
        return states + of_border.log_integral + log_prior(target.model, chain.H, b, target.logits)

    def step(border_of, carry, gate_and_uniform):
        (b, border, here), (gate, u) = carry, gate_and_uniform
        proposed = jnp.where(gate, 1 - b, b)
        new_border = border_of(proposed, border)
        there = log_marginal(new_border, proposed)
        after = (proposed, new_border, there)
        accept = jnp.log(u) < there - here
        return jax.tree.map(lambda new, old: jnp.where(accept, new, old), after, carry), (there - here, b)

    border = factorise(chain.b)
    carry = chain.b, border, log_marginal(border, chain.b)
    kinds = [(~with_states, lambda b, border: border), (with_states, lambda b, border: factorise(b))]
    log_ratio, before = jnp.zeros(len(of_gate), chain.b.dtype), jnp.zeros(of_gate.shape, chain.b.dtype)
    for chosen, border_of in kinds:
        gates = np.flatnonzero(chosen)
        if len(gates):
            steps = jnp.asarray(of_gate[gates]), uniform[gates]
            carry, (ratios, bs) = jax.lax.scan(partial(step, border_of), carry, steps)
            log_ratio, before = log_ratio.at[gates].set(ratios), before.at[gates].set(bs)
    return carry[0], log_ratio, before


def marginal_swap(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """The gates and columns of H of two processes change places, all latents integrated out; which two is drawn.

    Both have as many latents, one as a rule; see ``Target.swappable``. Where both gates are closed there is nothing to
    swap, nor where both are open and ``shear`` mixes the two.
    """
    orders, mixed = [], np.zeros((len(chain.b), len(chain.b)), bool)
    if "shear" in target.plan.moves:
        mixed[tuple(np.array(target.plan.sheared).T)] = True
    uniforms = random.uniform["marginal_swap"]
    for group, number in zip(target.swappable, target.num_swaps, strict=True):
        size, (first, second) = len(group), uniforms[:, :number]
        uniforms = uniforms[:, number:]
        j = index(first, size)
        k = (j + 1 + index(second, size - 1)) % size
        j, k = jnp.asarray(group)[j], jnp.asarray(group)[k]  # (proposal, member)
        order = jnp.broadcast_to(jnp.arange(len(chain.b)), (number, len(chain.b)))
        here = jnp.arange(number)[:, None]
        orders.append(order.at[here, j].set(k).at[here, k].set(j))
    if not orders:
        return chain
    acceptance = random.acceptance["marginal_swap"]
    swap = jnp.concatenate(orders)

    def is_idle(b, order):
        moved = order != jnp.arange(len(order))
        open_ = jnp.asarray(mixed)[jnp.arange(len(order)), order] & (b == 1)
        return (~moved | (b[order] == b) & ((b == 0) | open_)).all()

    (H, b), *_ = _metropolis(target, chain, lambda H, b, order: (H[:, order], b[order]), swap, acceptance, is_idle)
    return chain._replace(H=H, b=b)


def marginal_walk(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """A random walk of each H_:j, all latents integrated out.

    No step size is the right one for every column: each is drawn, from .02 to 1 prior sd.
    """
    m = len(chain.b)
    size, acceptance = random.uniform["marginal_walk"], random.acceptance["marginal_walk"]
    scale = 0.02 * 50 ** size[:, None] * jnp.sqrt(target.mixing_variance.T)
    steps = (scale * random.normal["marginal_walk"])[:, :, None] * jnp.eye(m, dtype=chain.H.dtype)[:, None, :]
    (H, b), *_ = _metropolis(target, chain, lambda H, b, step: (H + step, b), steps, acceptance)
    return chain._replace(H=H, b=b)


def _metropolis(
    target: Target,
    chain: Chain,
    propose: Callable,
    proposals: Array,
    uniform: Array,
    is_idle: Callable = lambda b, proposal: jnp.array(False),
):
    """(H, b) after each of ``proposals`` in turn, as probable backwards as forwards, given sigma^2.

    Also the log ratio of each, and b before it. An idle proposal is left out, and costs nothing.
    """
    stats = target.given(chain)

    def log_marginal(H, b):
        return c.log_evidence(stats, H, b, chain.noise_variance) + log_prior(target.model, H, b, target.logits)

    def step(carry, proposal_and_uniform):
        (H, b), here = carry
        proposal, u = proposal_and_uniform
        proposed, idle = propose(H, b, proposal), is_idle(b, proposal)
        there = jax.lax.cond(idle, lambda: here, lambda: log_marginal(*proposed))
        accept = ~idle & (jnp.log(u) < there - here)
        after = jax.tree.map(lambda new, old: jnp.where(accept, new, old), (proposed, there), ((H, b), here))
        return after, (there - here, b)

    none = jax.vmap(partial(is_idle, chain.b))(proposals).all()
    here = jax.lax.cond(none, lambda: jnp.zeros((), chain.H.dtype), lambda: log_marginal(chain.H, chain.b))
    (after, _), (log_ratio, before) = jax.lax.scan(step, ((chain.H, chain.b), here), (proposals, uniform))
    return after, log_ratio, before


def latents(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """C.1: all latents at once, given H, b and sigma^2; their weights, r of them in all, instead of the paper's nm."""
    conditional = c.weights_conditional(target.given(chain), chain.H, chain.b, chain.noise_variance)
    weights = conditional.transform(random.normal["latents"])
    if target.plan.private_states:  # they are integrated out of all other moves
        num_features, states = sum(target.plan.layout.ranks), len(target.plan.layout.state_owner)
        by_time = weights[num_features:].reshape(-1, states + target.plan.private_states)[:, :states]
        weights = jnp.concatenate([weights[:num_features], by_time.reshape(-1)])
    return chain._replace(weights=weights)


def gate_latent(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """b_j with its latents integrated out, then the latents."""
    likelihood = c.weights_likelihood(target.given(chain), chain.H, chain.noise_variance)
    owner, layout = target.stats.owner, target.plan.layout

    def draw(carry, step):
        b, weights = carry
        j, gate, own, u, normal = step
        conditional = c.gate_and_latent_conditional(likelihood, weights * b[owner], target.logits, j, own)
        value = conditional.transform(u, normal)
        return (jnp.where(gate, value[0], b), weights.at[own].set(value[1:], mode="drop")), conditional.probs

    first, own = jnp.asarray(target.model.first), layout.features_of(target.members)
    # The normals are by latent, each one's padded to the largest rank; a gate takes those of its features.
    places = np.append(np.flatnonzero(layout.own_features.ravel() < sum(layout.ranks)), 0)
    normals = random.normal["gate_latent"].reshape(-1)[places][own]
    steps = (first, jnp.asarray(target.of_gate), jnp.asarray(own), random.uniform["gate_latent"][first], normals)
    (b, weights), prob = jax.lax.scan(draw, (chain.b, chain.weights), steps)
    return chain.with_gates(prob, b=b, weights=weights)


def gate(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """C.3: b_j given the latents and H, the paper's own step."""
    products, gate_of = target.moments(chain), target.model.gate_of

    def draw(b, step):
        j, u = step
        prob = c.gate_conditional(products, chain.H, b, chain.noise_variance, target.logits, j, gate_of).probs
        return jnp.where(jnp.asarray(gate_of) == jnp.asarray(gate_of)[j], (u <= prob).astype(b.dtype), b), prob

    b, prob = jax.lax.scan(draw, chain.b, (jnp.asarray(target.model.first), random.uniform["gate"]))
    return chain.with_gates(prob, b=b)


def gate_column(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """b_j with its columns of H integrated out, then the columns."""
    products, s = target.moments(chain), target.mixing_variance

    def draw(carry, step):
        H, b = carry
        own, u, normal = step
        conditional = c.gate_and_column_conditional(products, H, b, chain.noise_variance, s, target.logits, own)
        value = conditional.transform(u, normal.T)
        columns = value[1:].reshape(len(H), -1)
        return (H.at[:, own].set(columns, mode="drop"), b.at[own].set(value[0], mode="drop")), conditional.probs

    size, gates = max(map(len, target.members)), target.members
    own = jnp.asarray([gate + (size - len(gate)) * [len(chain.b)] for gate in gates])
    normals = jnp.take(random.normal["gate_column"], own, axis=0, mode="fill", fill_value=0.0)
    steps = (own, random.uniform["gate_column"][jnp.asarray(target.model.first)], normals)
    (H, b), prob = jax.lax.scan(draw, (chain.H, chain.b), steps)
    return chain.with_gates(prob, H=H, b=b)


def mixing(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """C.2: all of H, given the latents, b and sigma^2."""
    conditional = c.mixing_conditional(target.moments(chain), chain.b, chain.noise_variance, target.mixing_variance)
    return chain._replace(H=conditional.transform(random.normal["mixing"]))


def noise(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """sigma_i^2 given the residuals, where it is learnt; and the residuals' squares (the paper has it fixed).

    With a private memory the point of its grid is drawn first, sigma_i^2 integrated out; and before it, where noise is
    Student's, the cells' factors.
    """
    model, stats = target.model, target.stats
    if model.tails is not None:
        chain = draw_cells(target, chain, random)
    elif model.private_memory is None:
        squares = c.residual_sum_squares(stats, target.moments(chain), chain.H, chain.b)
        chain = chain._replace(residual_squares=squares)
    else:
        residuals: Any = residual_statistics(target.at_scales(chain), chain.weights, chain.H, chain.b)
        points = c.memory_conditional(residuals, model.noise_variance)
        memory = categorical(points.probs, random.uniform["noise"])
        memory = jnp.where(jnp.isnan(target.own_variance), memory, jnp.argmin(model.private_memory.share))
        here = memory, jnp.arange(len(memory))
        chain = chain._replace(
            memory=memory.astype(jnp.int32),
            residual_squares=residuals.private.sum_squares[here],
            half_log_det=residuals.private.half_log_det[here],
        )
    chain = chain._replace(residual_squares=jnp.clip(chain.residual_squares, 0.0))
    if not model.learns_noise:
        return chain
    conditional = c.noise_conditional(stats, chain.residual_squares, model.noise_variance)
    drawn = conditional.sample(random.key).astype(chain.H.dtype)
    held = ~jnp.isnan(target.own_variance)
    return chain._replace(noise_variance=jnp.where(held, target.own_variance, drawn))


def exchange(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """Two gates whose latents have equal covariances change places; the priors decide (Barker's rule)."""
    model, logits = target.model, target.logits
    H, b, weights, scales = chain.H, chain.b, chain.weights, chain.scales
    for (g, h), u in zip(target.plan.equal_pairs, random.uniform["exchange"], strict=True):
        first, second = target.members[g], target.members[h]
        order = np.arange(len(b))
        order[[*first, *second]] = [*second, *first]
        new_H, new_b = H[:, order], b[order]
        accept = u < jax.nn.sigmoid(log_prior(model, new_H, new_b, logits) - log_prior(model, H, b, logits))
        H, b = jnp.where(accept, new_H, H), jnp.where(accept, new_b, b)
        places = target.plan.layout.swapped(list(zip(first, second, strict=True)))
        weights = jnp.where(accept, weights[places], weights)
        if scales is not None and (of := [_family_of(target, g), _family_of(target, h)])[0] is not None:
            swapped = scales.at[jnp.array(of)].set(scales[jnp.array(of[::-1])])
            scales = jnp.where(accept, swapped, scales)
    return chain._replace(H=H, b=b, weights=weights, scales=scales)


def _family_of(target: Target, gate: int) -> int | None:
    """Which of the unknown scales is a gate's."""
    mine = [k for k, latents in enumerate(target.plan.layout.scaled) if target.model.gate_of[latents[0]] == gate]
    return mine[0] if mine else None


def scale(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """The scale that H_:j and x_j share, by independence Metropolis; the proposal is somewhat wider than the target."""
    conditional = c.scale_conditional(target.at_scales(chain), chain.H, chain.weights, target.mixing_variance)
    mode = conditional.laplace()
    proposal = dist.Normal(mode.loc, 1.2 * mode.scale)
    u, here = proposal.loc + proposal.scale * random.normal["scale"], jnp.zeros_like(mode.loc)
    over = [conditional.log_density(v) - proposal.log_prob(v) for v in (u, here)]
    factor = jnp.where(jnp.log(random.uniform["scale"]) < over[0] - over[1], jnp.exp(u), 1.0)
    return chain._replace(H=chain.H * factor, weights=chain.weights / factor[target.stats.owner])


def inclusion_prob(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """Theta given the gates that it governs, where it is learnt: a Beta (the paper has it fixed)."""
    model = target.model
    if not model.learns_inclusion:
        return chain
    prior = model.inclusion_prior
    free = ~model.certain[model.first]
    on = jnp.where(free, chain.b[model.first], 0).sum()
    conditional = dist.Beta(prior.concentration1 + on, prior.concentration0 + free.sum() - on)
    return chain._replace(inclusion_prob=conditional.sample(jax_random.fold_in(random.key, 1)).astype(chain.H.dtype))


# In the order of a sweep.
MOVES = {
    "hand_over": Move(hand_over, normal=lambda n: (1,), uniform=lambda n: (4,)),
    "marginal_gate": Move(marginal_gate, acceptance=lambda n: n.gates),
    "marginal_swap": Move(
        marginal_swap,
        uniform=lambda n: (2, n.swaps),
        acceptance=lambda n: n.swaps,
    ),
    "marginal_walk": Move(
        marginal_walk,
        normal=lambda n: (n.latents, n.outputs),
        uniform=lambda n: (n.latents,),
        acceptance=lambda n: n.latents,
    ),
    "unknown_scale": Move(unknown_scale, uniform=lambda n: (n.scales, 4), always=True),
    "latents": Move(latents, normal=lambda n: (n.plan.num_normals,), always=True),
    "gate_latent": Move(gate_latent, normal=lambda n: n.plan.layout.own_features.shape, uniform=lambda n: (n.latents,)),
    "gate": Move(gate, uniform=lambda n: (n.gates,)),
    "gate_column": Move(gate_column, normal=lambda n: (n.latents, n.outputs), uniform=lambda n: (n.latents,)),
    "mixing": Move(mixing, normal=lambda n: (n.outputs, n.latents), always=True),
    "noise": Move(noise, uniform=lambda n: (n.outputs,) if n.memory else (0,), always=True),
    "exchange": Move(exchange, uniform=lambda n: (len(n.plan.equal_pairs),)),
    "shear": Move(shear, normal=lambda n: (len(n.plan.sheared),)),
    "scale": Move(scale, normal=lambda n: (n.latents,), uniform=lambda n: (n.latents,)),
    "inclusion_prob": Move(inclusion_prob, always=True),
}
