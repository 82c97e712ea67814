"""The move of unknown scales: a lengthscale's or a period's point of the grid, together with the gate."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs.gaussians import PrecisionNormal
from alps_ppl.gibbs.layout import SIDE_BY_SIDE
from alps_ppl.gibbs.randomness import RandomNumbers, categorical, index
from alps_ppl.gibbs.target import Chain, Target

# Points are taken side by side as if there were so many chains.
FEW_CHAINS = 4
# How far a neighbouring point may be.
STEPS = (-4, -3, -2, -1, 1, 2, 3, 4)


def unknown_scale(target: Target, chain: Chain, random: RandomNumbers) -> Chain:
    """Each unknown scale in turn, all latents integrated out.

    Of latents with features (b_g, scale) is drawn from its conditional, "off" being one category more. Of latents with
    Markov states the scale is moved by Metropolis, to a neighbouring point or to one from the prior.
    """
    here = None  # the evidence where the chain is, known after a move beside states
    for k, scale in enumerate(target.stats.scales):
        uniforms = random.uniform["unknown_scale"][k]
        if scale.transition is None:
            chain, here = draw_with_gate(target, chain, k, uniforms), None
        else:
            chain, here = move_point(target, chain, k, uniforms, here)
    return chain


def draw_with_gate(target: Target, chain: Chain, k: int, uniforms: Float[Array, " 4"]) -> Chain:
    """(b_g, scale) | H, sigma^2, the other gates and scales, Y.

    With the features of g held open beside all other weights, one Schur complement leaves S and u of theirs; at a point
    with maps M the latents' evidence is that of I + M^T S M and M^T u.
    """
    latents, scale = target.plan.layout.scaled[k], target.stats.scales[k]
    gate = target.model.gate_of[latents[0]]
    S, u = _border(target, chain, k)

    def log_evidence(M):
        spread = jnp.kron(jnp.eye(len(latents), dtype=M.dtype), M)
        of_point = PrecisionNormal(spread.T @ u, jnp.eye(spread.shape[1], dtype=M.dtype) + spread.T @ S @ spread)
        return of_point.log_integral

    size = len(latents) * scale.maps.shape[-1]
    at_a_time = max(1, min(len(scale.maps), SIDE_BY_SIDE // FEW_CHAINS // size**2))
    on = scale.log_prior + jax.lax.map(log_evidence, scale.maps, batch_size=at_a_time)
    logit = target.logits[latents[0]]
    is_held = jnp.isposinf(logit)
    off = jnp.where(is_held, -jnp.inf, 0.0)
    probs = jax.nn.softmax(jnp.append(jnp.where(is_held, 0.0, logit) + on, off))
    drawn = categorical(probs, uniforms[0])
    is_off = drawn == len(on)
    point = jnp.where(is_off, categorical(jnp.exp(scale.log_prior), uniforms[1]), drawn)
    b = jnp.where(jnp.asarray(target.model.gate_of) == gate, jnp.where(is_off, 0.0, 1.0).astype(chain.b.dtype), chain.b)
    prob = jnp.full(len(target.model.gate_names), jnp.nan, chain.b.dtype).at[gate].set(1 - probs[-1])
    return chain.with_gates(prob, b=b, scales=chain.scales.at[k].set(point))


def _border(target: Target, chain: Chain, k: int) -> tuple[Float[Array, "feature feature"], Float[Array, " feature"]]:
    """S and u of the open features of a process, all else integrated out."""
    latents = target.plan.layout.scaled[k]
    stats = target.at_scales(chain, opened=k).given(chain.memory)
    b = chain.b.at[jnp.array(latents)].set(1.0)
    size = stats.projection.shape[-1]
    if stats.states is None:
        potential, precision = c.weights_likelihood(stats, chain.H * b, chain.noise_variance)
    else:
        _, precision, potential = c.weights_conditional(stats, chain.H, b, chain.noise_variance).border
    mine, others = target.plan.layout.opened(k)
    order = jnp.concatenate([others, mine])
    tril = jnp.linalg.cholesky(jnp.eye(size, dtype=precision.dtype) + precision[order][:, order])
    whitened = solve_triangular(tril, potential[order], lower=True)
    last = tril[len(others) :, len(others) :]
    return last @ last.T - jnp.eye(len(mine), dtype=precision.dtype), last @ whitened[len(others) :]


def move_point(target: Target, chain: Chain, k: int, uniforms: Float[Array, " 4"], here: Array | None):
    """The chain after a proposal of another point, and the evidence where it is then."""
    scale = target.stats.scales[k]

    def log_evidence(points: Int[Array, " scaled"]) -> Array:
        stats = target.given(chain._replace(scales=points))
        return c.log_evidence(stats, chain.H, chain.b, chain.noise_variance)

    now = chain.scales[k]
    num_points = len(scale.log_prior)
    step = jnp.asarray(STEPS)[index(uniforms[0], len(STEPS))]
    from_prior = categorical(jnp.exp(scale.log_prior), uniforms[1])
    is_on = chain.b[target.plan.layout.scaled[k][0]] == 1
    independent = (uniforms[2] < 0.3) | ~is_on
    proposed = jnp.where(independent, from_prior, now + step)
    inside = (proposed >= 0) & (proposed < num_points)
    proposed = jnp.clip(proposed, 0, num_points - 1).astype(now.dtype)
    here = log_evidence(chain.scales) if here is None else here
    points = chain.scales.at[k].set(proposed)
    there = log_evidence(points)
    log_ratio = there - here + jnp.where(independent, 0.0, scale.log_prior[proposed] - scale.log_prior[now])
    accept = inside & (jnp.log(uniforms[3]) < jnp.where(is_on, log_ratio, 0.0))
    return chain._replace(scales=jnp.where(accept, points, chain.scales)), jnp.where(accept, there, here)
