"""q: a gate, and given it the weights and the loadings of its latents.

q = prod_g q(b_g) q(w_g | b_g) prod_i q(h_ig | b_g) prod_i q(c_i, sigma_i^2), with w_g the weights of all latents of
gate g and h_ig output i's loadings on them. Given b_g = 0 both are at their priors, as they are in the posterior; given
b_g = 1 they are Gaussian. c_i is the point of output i's private memory. All expectations are closed form, so that the
bound is that of the discrete model, without Monte Carlo error.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, logsumexp
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs.conditionals import log_points
from alps_ppl.gibbs.layout import Layout
from alps_ppl.gibbs.statistics import Statistics
from alps_ppl.model.alps import ALPS


class Group(NamedTuple):
    """Gates whose latents have as many features and members: they are updated by one compiled step."""

    gates: Int[np.ndarray, " gate"]
    features: Int[np.ndarray, "gate feature"]
    member: Float[np.ndarray, "gate feature member"]  # whose feature it is, one-hot
    latents: Int[np.ndarray, "gate member"]


class WhenOn(NamedTuple):
    """Of the gates of a group, q given that they are on, and the log odds of that."""

    logit: Float[Array, " gate"]
    mean_w: Float[Array, "gate feature"]
    cov_w: Float[Array, "gate feature feature"]
    mean_h: Float[Array, "gate output member"]
    cov_h: Float[Array, "gate output member member"]

    @property
    def prob(self) -> Float[Array, " gate"]:
        return jax.nn.sigmoid(self.logit)


class Likelihood(NamedTuple):
    """The data at every point of the private memories' grid; one point where there are none.

    ``pattern`` says whose ``gram`` is an output's.
    """

    gram: Float[Array, "point pattern feature feature"]
    projection: Float[Array, "point output feature"]
    sum_squares: Float[Array, "point output"]
    log_prior: Float[Array, " point"]
    half_log_det: Float[Array, "point output"]
    num_observed: Float[Array, " output"]
    pattern: Int[Array, " output"]


class Expected(NamedTuple):
    """E[C^-1 / sigma^2] in the place of I: Phi^T . Phi and Phi^T . y of each output."""

    gram: Float[Array, "output feature feature"]
    projection: Float[Array, "output feature"]


def groups(model: ALPS, layout: Layout) -> tuple[Group, ...]:
    """The gates by the number of their features and of their latents."""
    owner, of_gate = layout.owner, model.gate_of
    latents = [np.flatnonzero(of_gate == g) for g in range(len(model.gate_names))]
    features = [np.flatnonzero(of_gate[owner] == g) for g in range(len(model.gate_names))]
    sizes = [(len(own), len(members)) for own, members in zip(features, latents, strict=True)]
    found = []
    for size in sorted(set(sizes)):
        gates = np.array([g for g, this in enumerate(sizes) if this == size])
        own, members = (np.array([part[g] for g in gates]) for part in (features, latents))
        member = (owner[own][:, :, None] == members[:, None, :]).astype(float)
        found.append(Group(gates, own, member, members))
    return tuple(found)


def likelihood(stats: Statistics) -> Likelihood:
    """The statistics as this engine needs them."""
    if stats.private is None:
        none = jnp.zeros_like(stats.sum_squares)[None]
        gram, projection, squares = stats.gram[None], stats.projection[None], stats.sum_squares[None]
        return Likelihood(gram, projection, squares, none[:, 0], none, stats.num_observed, stats.pattern)
    p: Any = stats.private
    at_points = p.gram, p.projection, p.sum_squares, p.memory.log_prior, p.half_log_det
    return Likelihood(*at_points, stats.num_observed, stats.pattern)


def gated_means(groups: tuple[Group, ...], q: tuple[WhenOn, ...], size: int) -> Float[Array, "output feature"]:
    """E[h_ij b_j w_jr] of each output i and feature r of latent j."""
    num_outputs = q[0].mean_h.shape[1]
    found = jnp.zeros((num_outputs, size), q[0].mean_h.dtype)
    for group, on in zip(groups, q, strict=True):
        means = jnp.einsum("g,gim,gkm,gk->igk", on.prob, on.mean_h, group.member, on.mean_w)
        found = found.at[:, group.features].set(means)
    return found


def gated_squares(
    groups: tuple[Group, ...], q: tuple[WhenOn, ...], means: Float[Array, "output feature"]
) -> Float[Array, "output feature feature"]:
    """E[v_i v_i^T] of v_ir = h_ij b_j w_jr."""
    found = means[:, :, None] * means[:, None, :]
    for group, on in zip(groups, q, strict=True):
        hh, ww = second_moments(on)
        spread = jnp.einsum("gkm,gimn,gln->gikl", group.member, hh, group.member)
        together = on.prob[:, None, None, None] * spread * ww[:, None]
        own = jnp.moveaxis(means[:, group.features], 0, 1)  # (gate, output, feature)
        together -= own[..., :, None] * own[..., None, :]
        rows, columns = group.features[:, :, None], group.features[:, None, :]
        found = found.at[:, rows, columns].add(jnp.moveaxis(together, 0, 1))
    return found


def second_moments(on: WhenOn) -> tuple[Array, Array]:
    """E[h_ig h_ig^T] (gate, output, member, member) and E[w_g w_g^T] (gate, feature, feature) of gates that are on."""
    hh = on.cov_h + on.mean_h[..., :, None] * on.mean_h[..., None, :]
    return hh, on.cov_w + on.mean_w[..., :, None] * on.mean_w[..., None, :]


def expected_squares(
    data: Likelihood, groups: tuple[Group, ...], q: tuple[WhenOn, ...]
) -> Float[Array, "point output"]:
    """E[(y_i - f_i)^T C^-1 (y_i - f_i)] at every point of the grid."""
    means = gated_means(groups, q, data.projection.shape[-1])
    squares = gated_squares(groups, q, means)
    cross = jnp.einsum("pir,ir->pi", data.projection, means)

    def of_output(both):
        pattern, square = both
        return jnp.einsum("prs,rs->p", data.gram[:, pattern], square)

    return data.sum_squares - 2 * cross + jax.lax.map(of_output, (data.pattern, squares)).T


def noise_terms(
    model: ALPS, data: Likelihood, squares: Float[Array, "point output"]
) -> tuple[Float[Array, "point output"], Float[Array, " output"]]:
    """E[1 / sigma_i^2; c_i = c] under the best q(c_i, sigma_i^2), and the log of its normaliser.

    q(c, sigma^2) is prior x exp(E log p(y_i | f_i, sigma^2, c)), an InverseGamma(alpha + n_i / 2, beta + squares / 2)
    at each point of the grid where sigma^2 is learnt. The log of the normaliser is E[log p(y_i | ...)] less the
    divergence from the prior.
    """
    logs, rates = log_noise_points(model, data, squares)
    probs, log_normaliser = jax.nn.softmax(logs, axis=0), logsumexp(logs, axis=0)
    if not model.learns_noise:
        return probs / jnp.asarray(model.noise_variance, squares.dtype), log_normaliser
    return probs * (model.noise_variance.concentration + 0.5 * data.num_observed) / rates, log_normaliser


def log_noise_points(
    model: ALPS, data: Likelihood, squares: Float[Array, "point output"]
) -> tuple[Float[Array, "point output"], Any]:
    """Log q(c_i = c) up to its normaliser, sigma^2 integrated out, and there q(sigma_i^2)'s rate where it is learnt."""
    squares = jnp.clip(squares, 0.0)
    at_points = data.log_prior, squares, data.half_log_det, data.num_observed
    if not model.learns_noise:
        return log_points(*at_points, jnp.asarray(model.noise_variance, squares.dtype)), None
    return log_points(*at_points, model.noise_variance), model.noise_variance.rate + 0.5 * squares


def expected(data: Likelihood, precision: Float[Array, "point output"]) -> Expected:
    """The data weighted by ``noise_terms``' first."""

    def of_output(both):
        pattern, weight = both
        return jnp.einsum("p,prs->rs", weight, data.gram[:, pattern])

    gram = jax.lax.map(of_output, (data.pattern, precision.T))
    return Expected(gram, jnp.einsum("pi,pir->ir", precision, data.projection))


def left_of(
    weighted: Expected, own: Any, means: Float[Array, "output feature"]
) -> tuple[Float[Array, "output own"], Float[Array, "output own own"]]:
    """What the other gates' means leave of each output in the features ``own``, and these features' products."""
    rows = weighted.gram[:, own]
    left = weighted.projection[:, own] - jnp.einsum("ikr,ir->ik", rows, means.at[:, own].set(0.0))
    return left, rows[:, :, own]


def divergence(model: ALPS, group: Group, on: WhenOn) -> Float[Array, " gate"]:
    """KL(q(w_g, h_g | b_g = 1) || prior) of each gate."""
    hh, ww = second_moments(on)
    s = jnp.moveaxis(jnp.asarray(model.mixing_variance, ww.dtype)[:, group.latents], 1, 0)  # (gate, output, member)
    of_w = jnp.trace(ww, axis1=-2, axis2=-1) - ww.shape[-1] - _log_det(on.cov_w)
    of_h = (jnp.diagonal(hh, axis1=-2, axis2=-1) / s + jnp.log(s)).sum((-2, -1))
    of_h += -_log_det(on.cov_h).sum(-1) - s.shape[1] * s.shape[2]
    return 0.5 * (of_w + of_h)


def _log_det(covariance: Array) -> Array:
    tril = jnp.linalg.cholesky(covariance)
    return 2 * jnp.log(jnp.diagonal(tril, axis1=-2, axis2=-1)).sum(-1)


def prior_logits(model: ALPS, prob: Float[Array, " gate"]) -> tuple[Float[Array, " gate"], Float[Array, ""]]:
    """E[logit theta] of each gate, and E[log p(b | theta)] less q(theta)'s divergence where theta is learnt, else 0."""
    logits = jnp.asarray(model.inclusion_logits[model.first], prob.dtype)
    if not model.learns_inclusion:
        return logits, jnp.zeros((), prob.dtype)
    free = jnp.asarray(~model.certain[model.first])
    a, b = model.inclusion_prior.concentration1, model.inclusion_prior.concentration0
    on = jnp.where(free, prob, 0.0).sum()
    post_a, post_b = a + on, b + free.sum() - on
    expected_logit = jax.scipy.special.digamma(post_a) - jax.scipy.special.digamma(post_b)
    return jnp.where(free, expected_logit, logits), betaln(post_a, post_b) - betaln(a, b)


def bound(
    model: ALPS,
    groups: tuple[Group, ...],
    q: tuple[WhenOn, ...],
    squares: Float[Array, "point output"],
    data: Likelihood,
) -> Float[Array, ""]:
    """The lower bound on log p(Y), in nats, with the best q of the noise, of memories and of theta.

    ``squares`` are ``expected_squares``'.
    """
    _, log_normaliser = noise_terms(model, data, squares)
    logit, prob = in_order(groups, [on.logit for on in q]), in_order(groups, [on.prob for on in q])
    entropy = -(prob * jax.nn.log_sigmoid(logit) + (1 - prob) * jax.nn.log_sigmoid(-logit))
    logits, of_theta = prior_logits(model, prob)
    certain = jnp.asarray(model.certain[model.first])
    of_gates = jnp.where(certain, 0.0, entropy)
    if not model.learns_inclusion:
        finite = jnp.where(certain, 0.0, logits)
        of_gates += jnp.where(
            certain, 0.0, prob * jax.nn.log_sigmoid(finite) + (1 - prob) * jax.nn.log_sigmoid(-finite)
        )
    apart = sum((on.prob * divergence(model, group, on)).sum() for group, on in zip(groups, q, strict=True))
    return log_normaliser.sum() + of_gates.sum() + of_theta - apart


def in_order(groups: tuple[Group, ...], parts: list[Array]) -> Float[Array, " gate"]:
    """A value for each gate from those of the groups."""
    return (
        jnp.zeros(sum(len(group.gates) for group in groups), parts[0].dtype)
        .at[np.concatenate([group.gates for group in groups])]
        .set(jnp.concatenate(parts))
    )
