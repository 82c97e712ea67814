"""Coordinate ascent: each update makes the bound as large as one factor of q can."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from alps_ppl.gibbs.conditionals import SharedScale
from alps_ppl.model.alps import ALPS
from alps_ppl.vb.family import (
    Expected,
    Group,
    Likelihood,
    WhenOn,
    bound,
    divergence,
    expected,
    expected_squares,
    gated_means,
    in_order,
    left_of,
    noise_terms,
    prior_logits,
    second_moments,
)

# Weights and loadings depend on each other: so many rounds of both at each visit of a gate.
ROUNDS = 2
# Of an output's variance, where the noise is held.
HELD_NOISE = 0.2


def sweep(
    model: ALPS,
    data: Likelihood,
    groups: tuple[Group, ...],
    q: tuple[WhenOn, ...],
    open_: Bool[Array, " gate"],
    shut: Bool[Array, " gate"],
    hold_noise: Bool[Array, ""],
    offset: Float[Array, " gate"] | float = 0.0,
) -> tuple[tuple[WhenOn, ...], Float[Array, ""], Float[Array, "point output"]]:
    """All factors once: noise and memories, then gate by gate its weights, loadings and log odds.

    Gates in ``open_`` are held on, those in ``shut`` off; where ``hold_noise`` is true learnt noise is white and a
    fifth of each output's variance. ``offset`` is added to the gates' log odds. Also returns the bound of ``q``, from
    before the sweep, and its ``expected_squares``.
    """
    squares = expected_squares(data, groups, q)
    precision, _ = noise_terms(model, data, squares)
    if model.learns_noise:
        white = 0 if model.private_memory is None else jnp.argmin(jnp.asarray(model.private_memory.share))
        variance = data.sum_squares[white] / jnp.maximum(data.num_observed, 1)
        held = jnp.zeros_like(precision).at[white].set(1 / (HELD_NOISE * variance))
        precision = jnp.where(hold_noise & (variance > 0), held, precision)
    weighted = expected(data, precision)
    logits, _ = prior_logits(model, in_order(groups, [on.prob for on in q]))
    logits = jnp.where(shut, -jnp.inf, jnp.where(open_, jnp.inf, logits + offset))
    means = gated_means(groups, q, data.projection.shape[-1])
    updated = []
    for group, on in zip(groups, q, strict=True):

        def step(means, one):
            single, here, gate = one
            new, means = _gate(model, weighted, single, here, means, logits[gate])
            return means, new

        single = Group(*map(jnp.asarray, group))  # type: ignore[arg-type]
        means, new = jax.lax.scan(step, means, (single, on, jnp.asarray(group.gates)))
        updated.append(new)
    return tuple(updated), bound(model, groups, q, squares, data), squares


def _gate(
    model: ALPS, weighted: Expected, group: Group, on: WhenOn, means: Float[Array, "output feature"], logit: Array
) -> tuple[WhenOn, Float[Array, "output feature"]]:
    """One gate's factors, and all features' means with them; the arrays of ``group`` and ``on`` are of one gate."""
    own, member = group.features, group.member
    s = jnp.asarray(model.mixing_variance, means.dtype)[:, group.latents]  # (output, member)
    left, gram = left_of(weighted, own, means)
    for _ in range(ROUNDS):
        hh, _ = second_moments(on)
        precision = jnp.einsum("km,imn,ln,ikl->kl", member, hh, member, gram) + jnp.eye(len(own), dtype=s.dtype)
        mean_w, cov_w = _gaussian((on.mean_h @ member.T * left).sum(0), precision)
        on = on._replace(mean_w=mean_w, cov_w=cov_w)
        _, ww = second_moments(on)
        precision = jnp.einsum("km,ikl,ln->imn", member, gram * ww, member) + jax.vmap(jnp.diag)(1 / s)
        mean_h, cov_h = _gaussian((mean_w * left) @ member, precision)
        on = _rescaled(on._replace(mean_h=mean_h, cov_h=cov_h), s, member)
    hh, ww = second_moments(on)
    quadratic = jnp.einsum("km,imn,ln,ikl,kl->", member, hh, member, gram, ww)
    gain = jnp.einsum("im,km,k,ik->", on.mean_h, member, on.mean_w, left) - 0.5 * quadratic
    of_one: Any = jax.tree.map(lambda part: part[None], (group, on))
    logit = jnp.clip(logit + gain - divergence(model, *of_one)[0], -1e6, 1e6)
    on = on._replace(logit=logit)
    return on, means.at[:, own].set(on.prob * (on.mean_h @ member.T) * on.mean_w)


def _gaussian(potential: Float[Array, "*batch dim"], precision: Float[Array, "*batch dim dim"]) -> tuple[Array, Array]:
    """Mean and covariance."""
    covariance = jnp.linalg.inv(precision)
    covariance = 0.5 * (covariance + covariance.mT)
    return (covariance @ potential[..., None])[..., 0], covariance


def _rescaled(on: WhenOn, s: Float[Array, "output member"], member: Any) -> WhenOn:
    """The best scale c of (c h_m, w_m / c) for each latent m: the likelihood doesn't see it, the priors do."""
    squares_h = (on.mean_h**2 + jnp.diagonal(on.cov_h, axis1=-2, axis2=-1)) / s
    squares_w = (on.mean_w**2 + jnp.diagonal(on.cov_w)) @ member
    power = s.shape[0] - member.sum(0)
    scale = jnp.exp(SharedScale(power, squares_h.sum(0), squares_w).laplace().loc)
    of_feature = member @ (1 / scale)
    return on._replace(
        mean_h=on.mean_h * scale,
        cov_h=on.cov_h * scale[:, None] * scale,
        mean_w=on.mean_w * of_feature,
        cov_w=on.cov_w * of_feature[:, None] * of_feature,
    )
