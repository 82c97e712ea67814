"""The Gibbs conditionals: a function each, which returns a distribution (paper, App. C).

They work in weight space on sufficient statistics of the data. Throughout i is an output, j and k are latents, s the
prior variance of H, and h_ij, b_j, x_j, sigma_i^2 as in the paper.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints

from alps_ppl.gibbs.gaussians import PrecisionNormal, StatesNormal
from alps_ppl.gibbs.statistics import Moments, Statistics, weights_squares

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
    to its prior.
    """
    likelihood = weights_likelihood(stats, H * b, noise_variance)
    precision = jnp.eye(len(likelihood.potential), dtype=H.dtype) + likelihood.precision
    if stats.states is None:
        return PrecisionNormal(likelihood.potential, precision)
    s = stats.states
    of_x = jnp.einsum("pt,pjk->tjk", s.counts, _precision_of_x(stats, H * b, noise_variance))
    spread = jax.nn.one_hot(stats.owner[: len(precision)], H.shape[1], dtype=H.dtype)
    carried = s.transition.mT @ s.precision @ s.transition
    return StatesNormal(
        likelihood.potential,
        s.sums @ (H * b / noise_variance[:, None]) @ s.observe,
        precision,
        diagonal=(s.precision + s.observe.T @ of_x @ s.observe).at[:-1].add(carried[1:]),
        below=-s.precision @ s.transition,
        side=(s.observe.T @ of_x @ spread.T) * s.phi[:, None, :],
    )


def log_evidence(stats: Statistics, H: Mixing, b: PerLatent, noise_variance: PerOutput) -> Float[Array, ""]:
    """Log p(Y | H, b, sigma^2), the latents integrated out: the linear mixing model's evidence."""
    log_normaliser = stats.num_observed @ jnp.log(2 * jnp.pi * noise_variance)
    without = -0.5 * (log_normaliser + stats.sum_squares @ (1 / noise_variance))
    prior_half_log_det = 0.0 if stats.states is None else stats.states.half_log_det
    return without + weights_conditional(stats, H, b, noise_variance).log_integral + prior_half_log_det


def mixing_conditional(
    moments: Moments, b: PerLatent, noise_variance: PerOutput, mixing_variance: Mixing
) -> PrecisionNormal:
    """C.2: h_i | x, b, sigma^2, Y, a Gaussian over the latents for each output (s_ij where the paper prints s)."""
    gated = moments.xx * b[:, None] * b / noise_variance[:, None, None]
    prior = jax.vmap(jnp.diag)(1 / mixing_variance)
    return PrecisionNormal(moments.xy * b / noise_variance[:, None], prior + gated)


def _residual_products(moments: Moments, H, b, j) -> tuple[PerOutput, PerOutput]:
    """x_j^T r_i, with r_i the residual of output i without latent j, and x_j^T x_j over its observed times."""
    others = (H * b).at[:, j].set(0.0)
    return moments.xy[:, j] - (moments.xx[:, j] * others).sum(-1), moments.xx[:, j, j]


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

    The value is [b_j, block]; ``on`` and ``off`` are the block's distributions.
    """

    support = constraints.real_vector
    pytree_data_fields = ("logits", "on", "off")

    def __init__(self, logits: Float[Array, ""], on: dist.Distribution, off: dist.Distribution, *, validate_args=None):
        self.logits = logits
        self.on = on
        self.off = off
        super().__init__((), (1 + on.event_shape[0],), validate_args=validate_args)

    @property
    def probs(self) -> Float[Array, ""]:
        return jax.nn.sigmoid(self.logits)

    def transform(self, uniform: Float[Array, ""], noise: Float[Array, " dim"]) -> Float[Array, " 1+dim"]:
        """A draw from a uniform and standard normals."""
        gate = uniform <= self.probs
        block = jnp.where(gate, standard_draw(self.on, noise), standard_draw(self.off, noise))
        return jnp.concatenate([gate[None].astype(block.dtype), block])

    def sample(self, key, sample_shape=()):
        gate_key, block_key = jax.random.split(key)
        uniform = jax.random.uniform(gate_key, sample_shape, self.logits.dtype)
        noise = jax.random.normal(block_key, sample_shape + self.on.event_shape, self.logits.dtype)
        return jnp.vectorize(self.transform, signature="(),(d)->(e)")(uniform, noise)

    def log_prob(self, value):
        gate, block = value[..., 0] == 1, value[..., 1:]
        log_gate = jax.nn.log_sigmoid(jnp.where(gate, self.logits, -self.logits))
        return log_gate + jnp.where(gate, self.on.log_prob(block), self.off.log_prob(block))


def standard_draw(block: PrecisionNormal | dist.Independent, noise: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """A draw of a Gaussian block from standard normals."""
    if isinstance(block, PrecisionNormal):
        return block.transform(noise)
    return block.base_dist.loc + block.base_dist.scale * noise


def gate_and_column_conditional(
    moments: Moments,
    H: Mixing,
    b: PerLatent,
    noise_variance: PerOutput,
    mixing_variance: Mixing,
    inclusion_logits: PerLatent,
    j: int | Int[Array, ""],
) -> GateAndBlock:
    """(b_j, h_:j) | x, b_-j, H_:-j, sigma^2, Y: the gate with h_:j integrated out, then h_:j given it.

    log BF_j = sum_i -1/2 log(1 + s_ij x'x / sigma_i^2) + 1/2 (x'r_i / sigma_i^2)^2 / (1/s_ij + x'x / sigma_i^2).
    """
    xr, xx = _residual_products(moments, H, b, j)
    s = mixing_variance[:, j]
    precision = 1 / s + xx / noise_variance
    log_bayes_factor = 0.5 * ((xr / noise_variance) ** 2 / precision - jnp.log1p(s * xx / noise_variance)).sum()
    return GateAndBlock(
        inclusion_logits[j] + log_bayes_factor,
        on=dist.Normal(xr / noise_variance / precision, 1 / jnp.sqrt(precision)).to_event(1),
        off=dist.Normal(jnp.zeros_like(s), jnp.sqrt(s)).to_event(1),
    )


def gate_and_latent_conditional(
    likelihood: WeightsLikelihood,
    gated_weights: Float[Array, " feature"],
    inclusion_logits: PerLatent,
    j: int | Int[Array, ""],
    own: Int[Array, " rank"],
) -> GateAndBlock:
    """(b_j, w_j) | H, b_-j, w_-j, sigma^2, Y: the gate with its latent integrated out, then w_j given it.

    ``own`` are the latent's features, padded with the number of features where there are fewer; the padding
    is of no effect. log BF_j = -1/2 log|I + P_jj| + 1/2 u'(I + P_jj)^-1 u, with P_jj = sum_i h_ij^2 G_i,jj / sigma_i^2
    and u = sum_i h_ij Phi_j' r_i / sigma_i^2. ``gated_weights`` are w o b.
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


def noise_conditional(stats: Statistics, residual_squares: PerOutput, prior: dist.InverseGamma) -> dist.InverseGamma:
    """sigma_i^2 | x, H, b, Y for an InverseGamma prior, from each output's residual sum of squares."""
    return dist.InverseGamma(prior.concentration + 0.5 * stats.num_observed, prior.rate + 0.5 * residual_squares)
