"""The Gibbs blocks: one function per conditional, each returning a distribution (paper, App. C).

They work in weight space, x_j = Phi_j w_j with w_j ~ N(0, I), on sufficient statistics of the data,
so none of them touches the n times. Throughout i is an output, j and k are latents, s the prior variance
of H, and h_ij, b_j, x_j, sigma_i^2 as in the paper; sums over times run over the observed cells only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints

from alps_ppl.processes import Features


class Statistics(NamedTuple):
    """All that a sweep needs of the data; a *pattern* is a set of outputs with the same missing cells."""

    gram: Float[Array, "pattern feature feature"]  # Phi^T Phi over the pattern's observed times
    pattern: Int[Array, " output"]
    projection: Float[Array, "output feature"]  # Phi^T y_i
    sum_squares: Float[Array, " output"]  # y_i^T y_i
    num_observed: Float[Array, " output"]
    owner: Int[Array, " feature"]  # which latent a feature belongs to


class Moments(NamedTuple):
    """The statistics at given weights: inner products of latents and outputs over each output's observed times."""

    xx: Float[Array, "output latent latent"]  # x_j^T x_k
    xy: Float[Array, "output latent"]  # x_j^T y_i


def statistics(features: Features, y: Float[Array, "time output"]) -> Statistics:
    """The sufficient statistics, summed in float64 and returned in ``y``'s precision."""
    values = np.asarray(y, np.float64)
    observed = ~np.isnan(values)
    filled = np.where(observed, values, 0.0)
    patterns, pattern = np.unique(observed, axis=1, return_inverse=True)
    gram = np.stack([features.phi[rows].T @ features.phi[rows] for rows in patterns.T])
    return Statistics(
        gram=jnp.asarray(gram, y.dtype),
        pattern=jnp.asarray(pattern.reshape(-1)),
        projection=jnp.asarray(filled.T @ features.phi, y.dtype),
        sum_squares=jnp.asarray((filled**2).sum(0), y.dtype),
        num_observed=jnp.asarray(observed.sum(0), y.dtype),
        owner=jnp.asarray(features.owner),
    )


def moments(stats: Statistics, weights: Float[Array, " feature"], num_latents: int) -> Moments:
    """x_j^T x_k and x_j^T y_i at these weights."""
    W = jax.nn.one_hot(stats.owner, num_latents, dtype=weights.dtype) * weights[:, None]  # X = Phi W
    return Moments((W.T @ (stats.gram @ W))[stats.pattern], stats.projection @ W)


class PrecisionNormal(dist.Distribution):
    """N(P^-1 a, P^-1) from its precision P and ``potential`` a; one Cholesky factor, nothing inverted."""

    support = constraints.real_vector
    pytree_data_fields = ("potential", "precision_tril")

    def __init__(
        self, potential: Float[Array, "*batch dim"], precision: Float[Array, "*batch dim dim"], *, validate_args=None
    ):
        self.potential = potential
        self.precision_tril = jnp.linalg.cholesky(precision)
        super().__init__(potential.shape[:-1], potential.shape[-1:], validate_args=validate_args)

    def _solve(self, b: Float[Array, "*batch dim"], *, transpose: bool) -> Float[Array, "*batch dim"]:
        return solve_triangular(self.precision_tril, b[..., None], lower=True, trans=int(transpose))[..., 0]

    @property
    def mean(self) -> Float[Array, "*batch dim"]:
        return self._solve(self._solve(self.potential, transpose=False), transpose=True)

    def transform(self, noise: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
        """A draw from standard normals."""
        draw = jnp.vectorize(
            lambda tril, a, z: solve_triangular(tril, solve_triangular(tril, a, lower=True) + z, lower=True, trans=1),
            signature="(d,d),(d),(d)->(d)",
        )
        return draw(self.precision_tril, self.potential, noise)

    def sample(self, key, sample_shape=()):
        return self.transform(jax.random.normal(key, sample_shape + self.potential.shape, self.potential.dtype))

    @property
    def log_integral(self) -> Float[Array, "*batch"]:
        """Log of the integral of exp(a^T w - w^T P w / 2) over w, relative to that of exp(-w^T w / 2)."""
        whitened = self._solve(self.potential, transpose=False)
        return 0.5 * (whitened**2).sum(-1) - self._half_log_det

    @property
    def _half_log_det(self) -> Float[Array, "*batch"]:
        return jnp.log(jnp.diagonal(self.precision_tril, axis1=-2, axis2=-1)).sum(-1)

    def log_prob(self, value):
        whitened = jnp.einsum("...ji,...j->...i", self.precision_tril, value - self.mean)
        return self._half_log_det - 0.5 * (whitened**2).sum(-1) - 0.5 * value.shape[-1] * jnp.log(2 * jnp.pi)


class WeightsLikelihood(NamedTuple):
    """The likelihood of all latents' weights w with every gate open, up to a constant: exp(a^T w - w^T P w / 2)."""

    potential: Float[Array, " feature"]
    precision: Float[Array, "feature feature"]


def weights_likelihood(
    stats: Statistics, H: Float[Array, "output latent"], noise_variance: Float[Array, " output"]
) -> WeightsLikelihood:
    """P = sum_i h_i h_i^T o G_i / sigma_i^2, the outer product spread over the features by ``owner`` (App. C.1)."""
    precision_of_x = jax.ops.segment_sum(
        (H[:, :, None] * H[:, None, :]) / noise_variance[:, None, None],
        stats.pattern,
        num_segments=len(stats.gram),
    )
    # Spread from latents to features as matrix products: a gather per element would cost more than the sum.
    spread = jax.nn.one_hot(stats.owner, H.shape[1], dtype=H.dtype)
    size = len(stats.owner)

    def add_pattern(precision, pattern):
        of_x, gram = pattern
        return precision + (spread @ of_x @ spread.T) * gram, None

    precision, _ = jax.lax.scan(add_pattern, jnp.zeros((size, size), H.dtype), (precision_of_x, stats.gram))
    potential = ((H / noise_variance[:, None]).T @ stats.projection)[stats.owner, jnp.arange(size)]
    return WeightsLikelihood(potential, precision)


def weights_conditional(
    stats: Statistics,
    H: Float[Array, "output latent"],
    b: Float[Array, " latent"],
    noise_variance: Float[Array, " output"],
) -> PrecisionNormal:
    """W | H, b, sigma^2, Y: one Gaussian over all latents' weights (App. C.1).

    A latent that is off falls back to its prior.
    """
    likelihood = weights_likelihood(stats, H * b, noise_variance)
    identity = jnp.eye(len(stats.owner), dtype=H.dtype)
    return PrecisionNormal(likelihood.potential, identity + likelihood.precision)


def log_evidence(
    stats: Statistics,
    H: Float[Array, "output latent"],
    b: Float[Array, " latent"],
    noise_variance: Float[Array, " output"],
) -> Float[Array, ""]:
    """Log p(Y | H, b, sigma^2), the latents integrated out: the linear mixing model's evidence."""
    log_normaliser = stats.num_observed @ jnp.log(2 * jnp.pi * noise_variance)
    without = -0.5 * (log_normaliser + stats.sum_squares @ (1 / noise_variance))
    return without + weights_conditional(stats, H, b, noise_variance).log_integral


def mixing_conditional(
    moments: Moments,
    b: Float[Array, " latent"],
    noise_variance: Float[Array, " output"],
    mixing_variance: Float[Array, "output latent"],
) -> PrecisionNormal:
    """h_i | x, b, sigma^2, Y: a Gaussian over the latents for each output (App. C.2, with s_ij for its s)."""
    gated = moments.xx * b[:, None] * b / noise_variance[:, None, None]
    prior = jax.vmap(jnp.diag)(1 / mixing_variance)
    return PrecisionNormal(moments.xy * b / noise_variance[:, None], prior + gated)


def _residual_products(moments: Moments, H, b, j) -> tuple[Float[Array, " output"], Float[Array, " output"]]:
    """x_j^T r_i, with r_i the residual of output i without latent j, and x_j^T x_j over its observed times."""
    others = (H * b).at[:, j].set(0.0)
    return moments.xy[:, j] - (moments.xx[:, j] * others).sum(-1), moments.xx[:, j, j]


def gate_conditional(
    moments: Moments,
    H: Float[Array, "output latent"],
    b: Float[Array, " latent"],
    noise_variance: Float[Array, " output"],
    inclusion_logits: Float[Array, " latent"],
    j: int | Int[Array, ""],
) -> dist.Bernoulli:
    """b_j | x, H, b_-j, sigma^2, Y (App. C.3): logit theta_j + c_j.

    The paper prints theta e^c / (e^c + theta); the right one is theta e^c / (theta e^c + 1 - theta).
    """
    xr, xx = _residual_products(moments, H, b, j)
    c = ((H[:, j] * xr - 0.5 * H[:, j] ** 2 * xx) / noise_variance).sum()
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
    H: Float[Array, "output latent"],
    b: Float[Array, " latent"],
    noise_variance: Float[Array, " output"],
    mixing_variance: Float[Array, "output latent"],
    inclusion_logits: Float[Array, " latent"],
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
    inclusion_logits: Float[Array, " latent"],
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

    power: Float[Array, " latent"]  # p - r_j
    A: Float[Array, " latent"]
    B: Float[Array, " latent"]

    def log_density(self, u: Float[Array, " latent"]) -> Float[Array, " latent"]:
        """Of each latent's u, up to a constant; u = 0 is where the chain is."""
        return self.power * u - 0.5 * (self.A * jnp.exp(2 * u) + self.B * jnp.exp(-2 * u))

    def laplace(self) -> dist.Normal:
        """The normal of the same mode and curvature there."""
        z = (self.power + jnp.sqrt(self.power**2 + 4 * self.A * self.B)) / (2 * self.A)
        return dist.Normal(0.5 * jnp.log(z), 1 / jnp.sqrt(2 * (self.A * z + self.B / z)))


def scale_conditional(
    stats: Statistics,
    H: Float[Array, "output latent"],
    weights: Float[Array, " feature"],
    mixing_variance: Float[Array, "output latent"],
) -> SharedScale:
    """The scale of (H_:j, 1 / x_j) given all else, for each latent by itself."""
    num_outputs, num_latents = H.shape
    rank = jnp.bincount(stats.owner, length=num_latents)
    B = jax.ops.segment_sum(weights**2, stats.owner, num_segments=num_latents)
    return SharedScale((num_outputs - rank).astype(H.dtype), (H**2 / mixing_variance).sum(0), B)


def residual_sum_squares(
    stats: Statistics, moments: Moments, H: Float[Array, "output latent"], b: Float[Array, " latent"]
) -> Float[Array, " output"]:
    """sum_t (y_i(t) - f_i(t))^2 over each output's observed times."""
    loadings = H * b
    cross = (moments.xy * loadings).sum(-1)
    return jnp.clip(stats.sum_squares - 2 * cross + jnp.einsum("ij,ijk,ik->i", loadings, moments.xx, loadings), 0.0)


def noise_conditional(
    stats: Statistics,
    moments: Moments,
    H: Float[Array, "output latent"],
    b: Float[Array, " latent"],
    prior: dist.InverseGamma,
) -> dist.InverseGamma:
    """sigma_i^2 | x, H, b, Y for an InverseGamma prior."""
    rss = residual_sum_squares(stats, moments, H, b)
    return dist.InverseGamma(prior.concentration + 0.5 * stats.num_observed, prior.rate + 0.5 * rss)
