"""The Gibbs conditionals: a function each, which returns a distribution (paper, App. C).

They work in weight space on sufficient statistics of the data. Throughout i is an output, j and k are latents, s the
prior variance of H, and h_ij, b_j, x_j, sigma_i^2 as in the paper.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints

from alps_ppl.gibbs.gaussians import PrecisionNormal, StatesNormal
from alps_ppl.gibbs.products import Moments, weights_squares
from alps_ppl.gibbs.statistics import Statistics

Mixing = Float[Array, "output latent"]  # H, or its prior variances s
PerLatent = Float[Array, " latent"]
PerOutput = Float[Array, " output"]


class WeightsLikelihood(NamedTuple):
    """The likelihood of all latents' weights w with every gate open, up to a constant: exp(a^T w - w^T P w / 2)."""

    potential: Float[Array, " feature"]
    precision: Float[Array, "feature feature"]


def _precision_of_x(stats: Statistics, H, noise_variance) -> Float[Array, "pattern latent latent"]:
    """sum_i h_i h_i^T / sigma_i^2 over the outputs of a pattern."""
    return jax.ops.segment_sum(
        (H[:, :, None] * H[:, None, :]) / noise_variance[:, None, None],
        stats.pattern,
        num_segments=len(stats.gram),
    )


def weights_likelihood(stats: Statistics, H: Mixing, noise_variance: PerOutput) -> WeightsLikelihood:
    """C.1: P = sum_i h_i h_i^T o G_i / sigma_i^2, the outer product spread over the features by ``owner``."""
    size = stats.projection.shape[-1]
    owner = stats.owner[:size]
    # Spread from latents to features as matrix products: a gather per element would cost more than the sum.
    spread = jax.nn.one_hot(owner, H.shape[1], dtype=H.dtype)

    def add_pattern(precision, pattern):
        of_x, gram = pattern
        return precision + (spread @ of_x @ spread.T) * gram, None

    patterns = _precision_of_x(stats, H, noise_variance), stats.gram
    precision, _ = jax.lax.scan(add_pattern, jnp.zeros((size, size), H.dtype), patterns)
    potential = ((H / noise_variance[:, None]).T @ stats.projection)[owner, jnp.arange(size)]
    return WeightsLikelihood(potential, precision)


def weights_conditional(
    stats: Statistics, H: Mixing, b: PerLatent, noise_variance: PerOutput
) -> PrecisionNormal | StatesNormal:
    """C.1: all latents' weights w | H, b, sigma^2, Y, one Gaussian.

    The paper's is of x, with nm dimensions and precision K^-1 + H_b^T S_b^-1 H_b; its K is singular where a covariance
    has a low rank. With x_j = Phi_j w_j and K_j = Phi_j Phi_j^T it is one of r = sum_j r_j dimensions, whose precision
    is I + sum_i (h_i o b)(h_i o b)^T o G_i / sigma_i^2: r x r, and nothing is inverted. A latent that is off falls back
    to its prior. Where Markov latents and private memories meet, each time has the outputs' memories as states, too,
    after the latents'.
    """
    return _weights(stats, *_independent(stats, H * b, noise_variance))


def _weights(stats: Statistics, s: Any, gated: Mixing, noise_variance: PerOutput) -> PrecisionNormal | StatesNormal:
    """The weights, and the states of ``s``, given gated loadings and noise that is independent over times."""
    likelihood = weights_likelihood(stats, gated, noise_variance)
    precision = jnp.eye(len(likelihood.potential), dtype=gated.dtype) + likelihood.precision
    if s is None:
        return PrecisionNormal(likelihood.potential, precision)
    of_x = jnp.einsum("pt,pjk->tjk", s.counts, _precision_of_x(stats, gated, noise_variance))
    spread = jax.nn.one_hot(stats.owner[: len(precision)], gated.shape[1], dtype=gated.dtype)
    carried = s.transition.mT @ s.precision @ s.transition
    return StatesNormal(
        likelihood.potential,
        s.sums @ (gated / noise_variance[:, None]) @ s.observe,
        precision,
        diagonal=(s.precision + s.observe.T @ of_x @ s.observe).at[:-1].add(carried[1:]),
        below=-s.precision @ s.transition,
        side=(s.observe.T @ of_x @ spread.T) * s.phi[:, None, :],
    )


def _independent(stats: Statistics, gated: Mixing, noise_variance: PerOutput) -> tuple[Any, Mixing, PerOutput]:
    """The state space, loadings and noise variances of a likelihood in which noise is independent over times.

    Beside Markov latents, private memories are states of variance 1, with their own loadings after H's.
    """
    s: Any = stats.states
    if s is None or stats.private is None:
        return s, gated, noise_variance
    memory = stats.memory
    p = len(noise_variance)
    decay = jnp.exp(-s.steps[:, None] / memory.lengthscale)
    beside = jax.vmap(lambda shared, own: jax.scipy.linalg.block_diag(shared, jnp.diag(own)))
    wider = s._replace(
        transition=beside(s.transition, decay),
        precision=beside(s.precision, 1 / (1 - decay**2)),
        half_log_det=s.half_log_det - 0.5 * jnp.log1p(-(decay**2)).sum(),
        observe=jax.scipy.linalg.block_diag(s.observe, jnp.eye(p, dtype=gated.dtype)),
    )
    loadings = jnp.diag(jnp.sqrt(memory.share * noise_variance))
    return wider, jnp.concatenate([gated, loadings], 1), (1 - memory.share) * noise_variance


def log_evidence(stats: Statistics, H: Mixing, b: PerLatent, noise_variance: PerOutput) -> Float[Array, ""]:
    """Log p(Y | H, b, sigma^2), the latents integrated out: the linear mixing model's evidence."""
    s, gated, white = _independent(stats, H * b, noise_variance)
    half_log_det = jnp.zeros((), H.dtype) if s is None else s.half_log_det
    if stats.half_log_det is not None:
        half_log_det -= stats.half_log_det.sum()
    without = -0.5 * (stats.num_observed @ jnp.log(2 * jnp.pi * white) + stats.sum_squares @ (1 / white))
    return without + _weights(stats, s, gated, white).log_integral + half_log_det


def mixing_conditional(
    moments: Moments, b: PerLatent, noise_variance: PerOutput, mixing_variance: Mixing
) -> PrecisionNormal:
    """C.2: h_i | x, b, sigma^2, Y, a Gaussian over the latents for each output (s_ij where the paper prints s)."""
    gated = moments.xx * b[:, None] * b / noise_variance[:, None, None]
    prior = jax.vmap(jnp.diag)(1 / mixing_variance)
    return PrecisionNormal(moments.xy * b / noise_variance[:, None], prior + gated)


def gate_conditional(
    moments: Moments,
    H: Mixing,
    b: PerLatent,
    noise_variance: PerOutput,
    inclusion_logits: PerLatent,
    j: int | Int[Array, ""],
    gate_of: Int[np.ndarray, " latent"] | None = None,
) -> dist.Bernoulli:
    """C.3: b_j | x, H, b_-j, sigma^2, Y; its logit is logit theta_j + c_j, c_j over all latents that share j's gate.

    The paper prints theta e^c / (e^c + theta); the right one is theta e^c / (theta e^c + 1 - theta).
    """
    gate = jnp.arange(len(b)) if gate_of is None else jnp.asarray(gate_of)
    own = H * (gate == gate[j])
    residual = moments.xy - jnp.einsum("ijk,ik->ij", moments.xx, H * b * (gate != gate[j]))  # x_j^T r_i
    squares = jnp.einsum("ijk,ij,ik->i", moments.xx, own, own)
    c = (((own * residual).sum(-1) - 0.5 * squares) / noise_variance).sum()
    return dist.Bernoulli(logits=inclusion_logits[j] + c)


class GateAndBlock(dist.Distribution):
    """A gate and a Gaussian block that is integrated out of its odds: b_j ~ Bern, then the block given b_j.

    The value is [b_j, block], the block flattened; ``on`` and ``off`` are the block's distributions.
    """

    support = constraints.real_vector
    pytree_data_fields = ("logits", "on", "off")

    def __init__(self, logits: Float[Array, ""], on: dist.Distribution, off: dist.Distribution, *, validate_args=None):
        self.logits = logits
        self.on = on
        self.off = off
        super().__init__((), (1 + math.prod(on.event_shape),), validate_args=validate_args)

    @property
    def probs(self) -> Float[Array, ""]:
        return jax.nn.sigmoid(self.logits)

    def transform(self, uniform: Float[Array, ""], noise: Float[Array, " dim"]) -> Float[Array, " 1+dim"]:
        """A draw from a uniform and standard normals."""
        gate, noise = uniform <= self.probs, noise.reshape(self.on.event_shape)
        block = jnp.where(gate, standard_draw(self.on, noise), standard_draw(self.off, noise))
        return jnp.concatenate([gate[None].astype(block.dtype), block.reshape(-1)])

    def sample(self, key, sample_shape=()):
        gate_key, block_key = jax.random.split(key)
        uniform = jax.random.uniform(gate_key, sample_shape, self.logits.dtype)
        noise = jax.random.normal(block_key, (*sample_shape, self.event_shape[0] - 1), self.logits.dtype)
        return jnp.vectorize(self.transform, signature="(),(d)->(e)")(uniform, noise)

    def log_prob(self, value):
        gate, block = value[..., 0] == 1, value[..., 1:].reshape(*value.shape[:-1], *self.on.event_shape)
        log_gate = jax.nn.log_sigmoid(jnp.where(gate, self.logits, -self.logits))
        return log_gate + jnp.where(gate, self.on.log_prob(block), self.off.log_prob(block))


def standard_draw(block: dist.Distribution, noise: Float[Array, "*event"]) -> Float[Array, "*event"]:
    """A draw of a Gaussian block from standard normals."""
    base = getattr(block, "base_dist", block)
    return base.transform(noise) if isinstance(base, PrecisionNormal) else base.loc + base.scale * noise


def gate_and_column_conditional(
    moments: Moments,
    H: Mixing,
    b: PerLatent,
    noise_variance: PerOutput,
    mixing_variance: Mixing,
    inclusion_logits: PerLatent,
    members: int | Int[Array, "..."],
) -> GateAndBlock:
    """(b_g, H_:g) | x, b_-g, H_:-g, sigma^2, Y: the gate with its columns of H integrated out, then these given it.

    ``members`` are the gate's latents, one or several, padded with the number of latents. Of one latent j,
    log BF = sum_i -1/2 log(1 + s_ij x'x / sigma_i^2) + 1/2 (x'r_i / sigma_i^2)^2 / (1/s_ij + x'x / sigma_i^2).
    """
    members = jnp.atleast_1d(jnp.asarray(members))
    xx, xy = (jnp.take(part, members, axis=1, mode="fill", fill_value=0.0) for part in moments)
    others = (H * b).at[:, members].set(0.0, mode="drop")
    potential = (xy - jnp.einsum("iwk,ik->iw", xx, others)) / noise_variance[:, None]
    mine = jnp.take(xx, members, axis=2, mode="fill", fill_value=0.0) / noise_variance[:, None, None]
    s = jnp.take(mixing_variance, members, axis=1, mode="fill", fill_value=1.0)
    on = PrecisionNormal(potential, mine + jax.vmap(jnp.diag)(1 / s))
    log_bayes_factor = (on.log_integral - 0.5 * jnp.log(s).sum(1)).sum()
    off = dist.Normal(jnp.zeros_like(s), jnp.sqrt(s)).to_event(2)
    return GateAndBlock(inclusion_logits[members[0]] + log_bayes_factor, on.to_event(1), off)


def gate_and_latent_conditional(
    likelihood: WeightsLikelihood,
    gated_weights: Float[Array, " feature"],
    inclusion_logits: PerLatent,
    j: int | Int[Array, ""],
    own: Int[Array, " rank"],
) -> GateAndBlock:
    """(b_j, w_j) | H, b_-j, w_-j, sigma^2, Y: the gate with its latents integrated out, then their weights given it.

    j is one of the gate's latents, and ``own`` are their features, padded with the number of features where there are
    fewer; the padding is of no effect. log BF_j = -1/2 log|I + P_jj| + 1/2 u'(I + P_jj)^-1 u, with P_jj = sum_i h_ij^2
    G_i,jj / sigma_i^2 and u = sum_i h_ij Phi_j' r_i / sigma_i^2. ``gated_weights`` are w o b.
    """
    potential, precision = likelihood
    mine = precision.at[own].get(mode="fill", fill_value=0.0)
    others = gated_weights.at[own].set(0.0, mode="drop")
    u = potential.at[own].get(mode="fill", fill_value=0.0) - mine @ others
    identity = jnp.eye(len(own), dtype=potential.dtype)
    on = PrecisionNormal(u, identity + mine.at[:, own].get(mode="fill", fill_value=0.0))
    off = dist.Normal(jnp.zeros_like(u), 1.0).to_event(1)
    return GateAndBlock(inclusion_logits[j] + on.log_integral, on, off)


class SharedScale(NamedTuple):
    """log p(u) of the scale that H_:j and x_j share, c = e^u: (H_:j, w_j) -> (c H_:j, w_j / c), a u per latent.

    The likelihood doesn't change, so the density is that of the priors and of the map's volume, up to a constant:
    (p - r_j) u - (A e^2u + B e^-2u) / 2 with A = sum_i h_ij^2 / s_ij and B = w_j^T w_j. It is log-concave.
    """

    power: PerLatent  # p - r_j
    A: PerLatent
    B: PerLatent

    def log_density(self, u: PerLatent) -> PerLatent:
        """Of each latent's u, up to a constant; u = 0 is where the chain is."""
        return self.power * u - 0.5 * (self.A * jnp.exp(2 * u) + self.B * jnp.exp(-2 * u))

    def laplace(self) -> dist.Normal:
        """The normal of the same mode and curvature there."""
        z = (self.power + jnp.sqrt(self.power**2 + 4 * self.A * self.B)) / (2 * self.A)
        return dist.Normal(0.5 * jnp.log(z), 1 / jnp.sqrt(2 * (self.A * z + self.B / z)))


def scale_conditional(
    stats: Statistics, H: Mixing, weights: Float[Array, " feature"], mixing_variance: Mixing
) -> SharedScale:
    """The scale of (H_:j, 1 / x_j) given all else, for each latent by itself."""
    num_outputs, num_latents = H.shape
    rank = jnp.bincount(stats.owner, length=num_latents)
    B = weights_squares(stats, weights, num_latents)
    return SharedScale((num_outputs - rank).astype(H.dtype), (H**2 / mixing_variance).sum(0), B)


def residual_sum_squares(stats: Statistics, moments: Moments, H: Mixing, b: PerLatent) -> PerOutput:
    """sum_t (y_i(t) - f_i(t))^2 over each output's observed times."""
    loadings = H * b
    cross = (moments.xy * loadings).sum(-1)
    return jnp.clip(stats.sum_squares - 2 * cross + jnp.einsum("ij,ijk,ik->i", loadings, moments.xx, loadings), 0.0)


def memory_conditional(stats: Statistics, noise_variance: PerOutput | dist.InverseGamma) -> dist.Categorical:
    """g_i | the residuals that ``stats`` are of: the point of each output's private memory.

    s_i^2 is integrated out where it is learnt: p(g | e_i) is prior_g |C_g|^-1/2 (beta + e_i' C_g^-1 e_i / 2)^-(alpha +
    n_i / 2) up to a constant.
    """
    return dist.Categorical(logits=_log_points(stats, noise_variance).T)


def log_own_evidence(stats: Statistics, prior: dist.InverseGamma) -> PerOutput:
    """Log p(e_i) of the residuals that ``stats`` are of, if they are the output's own: g_i and s_i^2 integrated out."""
    return logsumexp(_log_points(stats, prior), axis=0)


def _log_points(stats: Statistics, noise_variance: PerOutput | dist.InverseGamma) -> Float[Array, "point output"]:
    private: Any = stats.private
    by_point = private.memory.log_prior, private.sum_squares, private.half_log_det
    return log_points(*by_point, stats.num_observed, noise_variance)


def log_points(
    log_prior: Float[Array, " point"],
    sum_squares: Float[Array, "point output"],
    half_log_det: Float[Array, "point output"],
    num_observed: PerOutput,
    noise_variance: PerOutput | dist.InverseGamma,
) -> Float[Array, "point output"]:
    """Log p(g) N(e_i; 0, s_i^2 C_g), s_i^2 integrated out where it has a prior; ``sum_squares`` are e_i' C_g^-1 e_i."""
    half = 0.5 * num_observed
    logs = log_prior[:, None] - half_log_det - half * jnp.log(2 * jnp.pi)
    if not isinstance(noise_variance, dist.Distribution):
        return logs - half * jnp.log(noise_variance) - 0.5 * sum_squares / noise_variance
    a, rate = noise_variance.concentration, noise_variance.rate
    logs += a * jnp.log(rate) - gammaln(a) + gammaln(a + half)
    return logs - (a + half) * jnp.log(rate + 0.5 * sum_squares)


def noise_conditional(stats: Statistics, residual_squares: PerOutput, prior: dist.InverseGamma) -> dist.InverseGamma:
    """sigma_i^2 | x, H, b, Y for an InverseGamma prior, from each output's residual sum of squares."""
    return dist.InverseGamma(prior.concentration + 0.5 * stats.num_observed, prior.rate + 0.5 * residual_squares)
