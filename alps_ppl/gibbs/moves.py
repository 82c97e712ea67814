"""The moves of a sweep, a function each: ``move(target, chain, random)`` is the chain after it.

A move leaves the posterior as it is. ``MOVES`` has them in the order of a sweep, with how many standard normals and
uniforms each takes, and how many proposals it accepts or refuses by a uniform each. A sweep draws all of them at
once, since every draw costs .3 s of compilation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random as jax_random
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs.features import Layout
from alps_ppl.gibbs.randomness import RandomNumbers
from alps_ppl.gibbs.statistics import Moments, Statistics, moments
from alps_ppl.model.alps import ALPS


class Plan(NamedTuple):
    """What a compiled sweep depends on besides shapes; hashable. ``equal_pairs``: latents that can change places."""

    moves: tuple[str, ...]
    layout: Layout
    equal_pairs: tuple[tuple[int, int], ...] = ()


class Chain(NamedTuple):
    """Where a chain is within a sweep.

    ``residual_squares`` is each output's residual sum of squares once the noise has been drawn. ``gate_probs`` holds,
    for each move of the gates, the probabilities (gate) with which it drew them on.
    """

    H: Float[Array, "output latent"]
    b: Float[Array, " latent"]
    weights: Float[Array, " weight"]
    noise_variance: Float[Array, " output"]
    inclusion_prob: Any = None
    residual_squares: Any = None
    gate_probs: tuple[Float[Array, " gate"], ...] = ()

    def with_gates(self, gate_prob: Float[Array, " gate"], **changed: Array) -> "Chain":
        """The chain after a move of the gates."""
        return self._replace(gate_probs=(*self.gate_probs, gate_prob), **changed)


class Target(NamedTuple):
    """What moves leave as it is: the posterior of ``model`` under the data that ``stats`` are of.

    ``logits`` are logit theta of each latent's gate, infinite while the gate is held open.
    """

    plan: Plan
    model: ALPS
    stats: Statistics
    logits: Float[Array, " latent"]

    @property
    def mixing_variance(self) -> Float[Array, "output latent"]:
        """s, in the precision of the data."""
        return jnp.asarray(self.model.mixing_variance, self.logits.dtype)

    @property
    def single(self) -> Int[np.ndarray, " single"]:
        """The latents that share their gate with no other."""
        gate_of = self.model.gate_of
        return np.flatnonzero(np.bincount(gate_of)[gate_of] == 1)

    def by_gate(self, prob: Float[Array, " single"]) -> Float[Array, " gate"]:
        """Probabilities of the gates of ``single`` latents; NaN for the shared gates, which that move leaves out."""
        gates = self.model.gate_of[self.single]
        return jnp.full(len(self.model.gate_names), jnp.nan, prob.dtype).at[gates].set(prob)

    def moments(self, chain: Chain) -> Moments:
        """Inner products of latents and outputs at the chain's weights."""
        return moments(self.stats, chain.weights, len(chain.b))

    def log_marginal(self, H, b, noise_variance) -> Float[Array, ""]:
        """Log p(Y, H, b | sigma^2) with all latents integrated out, up to a constant."""
        return c.log_evidence(self.stats, H, b, noise_variance) + log_prior(self.model, H, b, self.logits)


def log_prior(model: ALPS, H, b, logits) -> Float[Array, ""]:
    """Of b and H, up to a constant; a shared gate counts once."""
    gates = jax.nn.log_sigmoid(jnp.where(b == 1, logits, -logits))[model.first].sum()
    return gates - 0.5 * (H**2 / model.mixing_variance).sum()


class Sizes(NamedTuple):
    """What the shapes of random numbers are made of."""

    outputs: int
    latents: int
    gates: int
    single: int
    plan: Plan


Shape = Callable[[Sizes], tuple[int, ...]]


class Move(NamedTuple):
    """A move, the shapes of the random numbers that it takes, and whether all sweeps have it."""

    step: Callable[[Target, Chain, RandomNumbers], Chain]
    normal: Shape | None = None
    uniform: Shape | None = None
    acceptance: Callable[[Sizes], int] | None = None
    always: bool = False


def marginal_gate(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """b_j given H, all latents integrated out: the evidence of the other value accepts it."""
    num_gates = len(target.model.gate_names)
    of_gate = jnp.asarray(target.model.gate_of == np.arange(num_gates)[:, None])

    def propose(H, b, latents):
        return H, jnp.where(latents, 1 - b, b)

    (H, b), log_ratio, before = _metropolis(target, chain, propose, of_gate, random.acceptance["marginal_gate"])
    was_on = (before * of_gate).any(-1)
    return chain.with_gates(jax.nn.sigmoid(jnp.where(was_on, -log_ratio, log_ratio)), H=H, b=b)


def marginal_swap(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """(b_j, H_:j) and (b_k, H_:k) change places, all latents integrated out; j and k are drawn."""
    single, index = jnp.asarray(target.single), jnp.arange(len(chain.b))
    size = len(single)
    if size < 2:
        return chain
    first, second = random.uniform["marginal_swap"]
    j = jnp.minimum(first * size, size - 1).astype(int)[:, None]
    k = (j + 1 + jnp.minimum(second * (size - 1), size - 2).astype(int)[:, None]) % size
    j, k = single[j], single[k]
    acceptance = random.acceptance["marginal_swap"]
    orders = jnp.where(index == j, k, jnp.where(index == k, j, index))
    (H, b), *_ = _metropolis(target, chain, lambda H, b, order: (H[:, order], b[order]), orders, acceptance)
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


def _metropolis(target: Target, chain: Chain, propose: Callable, proposals: Array, uniform: Array):
    """(H, b) after each of ``proposals`` in turn, as probable backwards as forwards, given sigma^2.

    Also the log ratio of each, and b before it.
    """

    def step(carry, proposal_and_uniform):
        (H, b), here = carry
        proposal, u = proposal_and_uniform
        proposed = propose(H, b, proposal)
        there = target.log_marginal(*proposed, chain.noise_variance)
        accept = jnp.log(u) < there - here
        after = jax.tree.map(lambda new, old: jnp.where(accept, new, old), (proposed, there), ((H, b), here))
        return after, (there - here, b)

    here = target.log_marginal(chain.H, chain.b, chain.noise_variance)
    (after, _), (log_ratio, before) = jax.lax.scan(step, ((chain.H, chain.b), here), (proposals, uniform))
    return after, log_ratio, before


def latents(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """C.1: all latents at once, given H, b and sigma^2; their weights, r of them in all, instead of the paper's nm."""
    conditional = c.weights_conditional(target.stats, chain.H, chain.b, chain.noise_variance)
    return chain._replace(weights=conditional.transform(random.normal["latents"]))


def gate_latent(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """b_j with its latent integrated out, then the latent."""
    likelihood = c.weights_likelihood(target.stats, chain.H, chain.noise_variance)
    owner = target.stats.owner

    def draw(carry, step):
        b, weights = carry
        j, own, u, normal = step
        conditional = c.gate_and_latent_conditional(likelihood, weights * b[owner], target.logits, j, own)
        value = conditional.transform(u, normal)
        return (b.at[j].set(value[0]), weights.at[own].set(value[1:], mode="drop")), conditional.probs

    j = target.single
    own = jnp.asarray(target.plan.layout.own_features[j])
    steps = (jnp.asarray(j), own, random.uniform["gate_latent"][j], random.normal["gate_latent"][j])
    (b, weights), prob = jax.lax.scan(draw, (chain.b, chain.weights), steps)
    return chain.with_gates(target.by_gate(prob), b=b, weights=weights)


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
    """b_j with its column of H integrated out, then the column."""
    products, s = target.moments(chain), target.mixing_variance

    def draw(carry, step):
        H, b = carry
        j, u, normal = step
        conditional = c.gate_and_column_conditional(products, H, b, chain.noise_variance, s, target.logits, j)
        value = conditional.transform(u, normal)
        return (H.at[:, j].set(value[1:]), b.at[j].set(value[0])), conditional.probs

    j = target.single
    steps = (jnp.asarray(j), random.uniform["gate_column"][j], random.normal["gate_column"][j])
    (H, b), prob = jax.lax.scan(draw, (chain.H, chain.b), steps)
    return chain.with_gates(target.by_gate(prob), H=H, b=b)


def mixing(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """C.2: all of H, given the latents, b and sigma^2."""
    conditional = c.mixing_conditional(target.moments(chain), chain.b, chain.noise_variance, target.mixing_variance)
    return chain._replace(H=conditional.transform(random.normal["mixing"]))


def noise(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """sigma_i^2 given the residuals, where it is learnt; and the residuals' squares (the paper has it fixed)."""
    residual_squares = c.residual_sum_squares(target.stats, target.moments(chain), chain.H, chain.b)
    chain = chain._replace(residual_squares=residual_squares)
    if not target.model.learns_noise:
        return chain
    conditional = c.noise_conditional(target.stats, residual_squares, target.model.noise_variance)
    return chain._replace(noise_variance=conditional.sample(random.key).astype(chain.H.dtype))


def exchange(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """Two latents of one covariance change places; the likelihood stays, the priors decide (Barker's rule)."""
    model, logits = target.model, target.logits
    H, b, weights = chain.H, chain.b, chain.weights
    for (j, k), u in zip(target.plan.equal_pairs, random.uniform["exchange"], strict=True):
        order = np.arange(len(b))
        order[[j, k]] = k, j
        new_H, new_b = H[:, order], b[order]
        accept = u < jax.nn.sigmoid(log_prior(model, new_H, new_b, logits) - log_prior(model, H, b, logits))
        H, b = jnp.where(accept, new_H, H), jnp.where(accept, new_b, b)
        weights = jnp.where(accept, weights[target.plan.layout.swapped(j, k)], weights)
    return chain._replace(H=H, b=b, weights=weights)


def scale(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """The scale that H_:j and x_j share, by independence Metropolis; the proposal is somewhat wider than the target."""
    conditional = c.scale_conditional(target.stats, chain.H, chain.weights, target.mixing_variance)
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
    "marginal_gate": Move(marginal_gate, acceptance=lambda n: n.gates),
    "marginal_swap": Move(
        marginal_swap,
        uniform=lambda n: (2, n.latents),
        acceptance=lambda n: n.latents if n.single > 1 else 0,
    ),
    "marginal_walk": Move(
        marginal_walk,
        normal=lambda n: (n.latents, n.outputs),
        uniform=lambda n: (n.latents,),
        acceptance=lambda n: n.latents,
    ),
    "latents": Move(latents, normal=lambda n: (len(n.plan.layout.owner),), always=True),
    "gate_latent": Move(gate_latent, normal=lambda n: n.plan.layout.own_features.shape, uniform=lambda n: (n.latents,)),
    "gate": Move(gate, uniform=lambda n: (n.gates,)),
    "gate_column": Move(gate_column, normal=lambda n: (n.latents, n.outputs), uniform=lambda n: (n.latents,)),
    "mixing": Move(mixing, normal=lambda n: (n.outputs, n.latents), always=True),
    "noise": Move(noise, always=True),
    "exchange": Move(exchange, uniform=lambda n: (len(n.plan.equal_pairs),)),
    "scale": Move(scale, normal=lambda n: (n.latents,), uniform=lambda n: (n.latents,)),
    "inclusion_prob": Move(inclusion_prob, always=True),
}
