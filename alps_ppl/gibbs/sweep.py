"""A sweep: the list of its moves, between two states of a chain (paper, App. C)."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float, Int
from numpyro.util import is_prng_key

from alps_ppl.gibbs.layout import MOST_STATES, SIDE_BY_SIDE
from alps_ppl.gibbs.moves import MOVES
from alps_ppl.gibbs.products import weights_squares
from alps_ppl.gibbs.randomness import RandomNumbers, random_numbers
from alps_ppl.gibbs.statistics import Statistics
from alps_ppl.gibbs.student import at_factors
from alps_ppl.gibbs.target import Chain, Plan, Sizes, Target, log_prior
from alps_ppl.model.alps import ALPS

# The order of the random numbers in a sweep's one draw, on which the draws of a seed depend. The uniforms that accept
# proposals are there in any case, and the first of them isn't used.
NORMALS = ("latents", "mixing", "gate_column", "gate_latent", "marginal_walk", "scale", "hand_over", "shear")
UNIFORMS = (
    "gate",
    "gate_column",
    "gate_latent",
    "acceptance",
    "marginal_swap",
    "marginal_walk",
    "exchange",
    "scale",
    "noise",
    "hand_over",
    "unknown_scale",
    "noise_factor",
)
STARTS = ("held", "prior", "dispersed", "off", "on")


class ALPSGibbsState(NamedTuple):
    """What moves from sweep to sweep; the data's statistics are arguments of the compiled sweep.

    ``z``: b (latent), H, the latents' weights and, where they are learnt, noise_variance, inclusion_prob, memory,
    noise_factor and ``scales``, the points of unknown scales.
    ``potential_energy`` is -log p(Y, w, H, b, sigma^2), with the latents' weights for the latents; NaN
    before the first sweep. ``gate_prob`` (gate,) is the probability with which the sweep drew each gate on: its mean
    over the draws estimates the inclusion probability with less Monte Carlo error than the mean of ``b``.
    ``open_sweeps`` counts the sweeps to come in which all gates are held open, ``white_sweeps`` those in which the
    outputs' own parts are held at white noise of half, and then of a fifth, of an output's variance.
    """

    z: dict[str, Array]
    potential_energy: Float[Array, ""]
    gate_prob: Float[Array, " gate"]
    rng_key: Array
    open_sweeps: Int[Array, ""]
    white_sweeps: Int[Array, " 2"]


def sweep(plan: Plan, model: ALPS, stats: Statistics, state: ALPSGibbsState) -> ALPSGibbsState:
    """All moves of ``plan`` once, in their order.

    Parameters
    ----------
    plan
        Which moves, and the layout of the weights; static.
    model, stats
        The priors, and the sufficient statistics of the data.
    state
        Of one chain.
    """
    z, dtype = state.z, stats.gram.dtype
    logits = _logits(model, z)
    logits = jnp.where((state.open_sweeps > 0) & (logits > -jnp.inf), jnp.inf, logits)
    variance = stats.sum_squares / jnp.maximum(stats.num_observed, 1)
    held = jnp.array([0.5, 0.2], dtype)[jnp.argmax(state.white_sweeps > 0)] * variance
    own_variance = jnp.where((state.white_sweeps > 0).any() & (variance > 0), held, jnp.nan)
    learnt = z.get("inclusion_prob"), z.get("memory"), z.get("scales"), z.get("noise_factor")
    if model.tails is not None:
        factors = jnp.asarray(model.tails.variance, dtype)[z["noise_factor"]]
        stats = at_factors(stats, factors, z.get("memory"))
    target = Target(plan, model, stats, logits, own_variance)
    chain = Chain(z["H"], z["b"].astype(dtype), z["weights"], model.noise_variances(z), *learnt)
    rng_key, key, gamma_key = random.split(state.rng_key, 3)
    numbers = _numbers(plan, target, key, dtype)._replace(key=gamma_key)

    for name in plan.moves:
        chain = MOVES[name].step(target, chain, numbers)

    z = {"b": chain.b.astype(jnp.int32), "H": chain.H, "weights": chain.weights}
    z |= {"noise_variance": chain.noise_variance} if model.learns_noise else {}
    z |= {"inclusion_prob": chain.inclusion_prob} if model.learns_inclusion else {}
    z |= {} if model.private_memory is None else {"memory": chain.memory}
    z |= {"scales": chain.scales} if model.unknown_scales else {}
    z |= {} if model.tails is None else {"noise_factor": chain.noise_factor}
    gate_prob = jnp.nanmean(jnp.stack(chain.gate_probs), 0)
    energy = _potential_energy(target, chain)
    white_sweeps = state.white_sweeps.at[jnp.argmax(state.white_sweeps > 0)].add(-1)
    return ALPSGibbsState(
        z, energy, gate_prob, rng_key, jnp.maximum(state.open_sweeps - 1, 0), jnp.maximum(white_sweeps, 0)
    )


def sweep_chains(plan: Plan, model: ALPS, stats: Statistics, state: ALPSGibbsState) -> ALPSGibbsState:
    """``sweep`` of one chain, or of each of a batch: side by side, or in turn where their matrices are large."""
    one = partial(sweep, plan, model, stats)
    if is_prng_key(state.rng_key):
        return one(state)
    entries = len(state.rng_key) * plan.layout.largest_matrix**2
    states = len(plan.layout.state_owner) + plan.private_states
    side_by_side = entries <= SIDE_BY_SIDE and states <= MOST_STATES
    return jax.vmap(one)(state) if side_by_side else jax.lax.map(one, state)


def first_state(
    plan: Plan,
    start: str,
    model: ALPS,
    stats: Statistics,
    rng_key: Array,
    sites: dict[str, Array],
    open_sweeps: int,
    white_sweeps: int,
) -> ALPSGibbsState:
    """Where a chain starts: at ``sites``, and where they lack a site as ``start`` says, the rest from the prior."""
    dtype = stats.gram.dtype
    rng_key, key, noise_key = random.split(rng_key, 3)
    num_gates = len(model.gate_names)
    numbers = random_numbers(
        key,
        {"H": model.mixing_variance.shape, "weights": plan.layout.owner.shape},
        {"b": (num_gates,), "prob": ()},
        dtype,
    )
    prior = model.inclusion_prob[model.first]
    probs: dict[str, Any] = {"prior": prior, "dispersed": numbers.uniform["prob"], "off": 0.0, "on": 1.0}
    probs["held"] = jnp.where(prior > 0, 1.0, 0.0)
    z = {
        "b": numbers.uniform["b"] <= probs[start],
        "H": numbers.normal["H"] * jnp.sqrt(model.mixing_variance),
        "weights": numbers.normal["weights"],
    }
    if model.learns_noise:
        z["noise_variance"] = model.noise_variance.expand((len(model.outputs),)).sample(noise_key)
    if model.learns_inclusion:
        z["inclusion_prob"] = model.inclusion_prior.mean
    if model.private_memory is not None:
        shape = (len(model.outputs),)
        logits = jnp.asarray(model.private_memory.log_prior)
        z["memory"] = random.categorical(random.fold_in(noise_key, 1), logits, shape=shape)
    if model.unknown_scales:
        keys = random.split(random.fold_in(noise_key, 2), len(stats.scales))
        drawn = [random.categorical(key, scale.log_prior) for key, scale in zip(keys, stats.scales, strict=True)]
        z["scales"] = jnp.stack(drawn)
    if model.tails is not None:
        z["noise_factor"] = jnp.full(plan.factors, model.tails.one)
    z = {name: jnp.asarray(sites.get(name, value), dtype) for name, value in z.items()}
    z |= {name: z[name].astype(jnp.int32) for name in {"memory", "scales"} & set(z)}
    z |= {"noise_factor": z["noise_factor"].astype(jnp.int8)} if model.tails is not None else {}
    z["b"] = model.gates(z["b"]).astype(jnp.int32)
    unknown = jnp.full((), jnp.nan, dtype)  # the first sweep's to compute: a second of compilation
    left = jnp.asarray(open_sweeps, jnp.int32), jnp.full(2, white_sweeps // 2, jnp.int32)
    return ALPSGibbsState(z, unknown, jnp.asarray(prior, dtype), rng_key, *left)


def _numbers(plan: Plan, target: Target, key: Array, dtype) -> RandomNumbers:
    """What the moves of ``plan`` take."""
    model = target.model
    swaps = sum(target.num_swaps)
    has_memory = model.private_memory is not None
    counts = len(model.outputs), len(model.latents), len(model.gate_names), swaps
    sizes = Sizes(*counts, has_memory, len(plan.layout.scaled), plan)
    moves = {name: MOVES[name] for name in plan.moves}
    normal = {name: move.normal(sizes) for name, move in moves.items() if move.normal}
    uniform = {name: move.uniform(sizes) for name, move in moves.items() if move.uniform}
    uniform["acceptance"] = (1 + 3 * sizes.latents,)
    uniform |= {} if model.tails is None else {"noise_factor": plan.factors}
    normal = {name: normal[name] for name in NORMALS if name in normal}
    numbers = random_numbers(key, normal, {name: uniform[name] for name in UNIFORMS if name in uniform}, dtype)

    accepting = [name for name, move in moves.items() if move.acceptance]
    ends = np.cumsum([1, *(moves[name].acceptance(sizes) for name in accepting)])
    parts = jnp.split(numbers.uniform["acceptance"], ends)[1:]
    return numbers._replace(acceptance=dict(zip(accepting, parts, strict=False)))


def _logits(model: ALPS, z: dict[str, Array]) -> Float[Array, " latent"]:
    """Logit theta of each latent's gate."""
    logits = jnp.asarray(model.inclusion_logits, z["H"].dtype)
    if not model.learns_inclusion:
        return logits
    return jnp.where(model.certain, logits, jax.scipy.special.logit(z["inclusion_prob"]))


def _potential_energy(target: Target, chain: Chain) -> Float[Array, ""]:
    model, stats = target.model, target.at_scales(chain)
    noise, weights = chain.noise_variance, chain.weights
    s = jnp.asarray(model.mixing_variance, noise.dtype)
    logits = _logits(model, {"H": chain.H, "inclusion_prob": chain.inclusion_prob})
    log_likelihood = -0.5 * (stats.num_observed @ jnp.log(2 * jnp.pi * noise) + chain.residual_squares @ (1 / noise))
    log_joint = (
        log_prior(model, chain.H, chain.b, logits)
        + log_likelihood
        - 0.5 * (weights_squares(stats, weights, s.shape[1]).sum() + weights.size * np.log(2 * np.pi))
        - 0.5 * jnp.log(2 * jnp.pi * s).sum()
    )
    if stats.states is not None:
        log_joint += stats.states.half_log_det
    if model.private_memory is not None:
        log_joint += jnp.asarray(model.private_memory.log_prior, noise.dtype)[chain.memory].sum()
    if model.tails is not None:
        log_joint += jnp.asarray(model.tails.log_prior, noise.dtype)[chain.noise_factor].sum()
    if chain.half_log_det is not None:
        log_joint -= chain.half_log_det.sum()
    for k, scale in enumerate(stats.scales):
        log_joint += scale.log_prior[chain.scales[k]]
    if model.learns_noise:
        log_joint += model.noise_variance.log_prob(noise).sum()
    if model.learns_inclusion:
        log_joint += model.inclusion_prior.log_prob(chain.inclusion_prob)
    return -log_joint.astype(noise.dtype)
