"""Gaussian processes as NumPyro distributions.

- ``GaussianProcess``: the prior of the latents, p(X).
- ``SparseGaussianProcess``: the guide's q(X), with its KL to the prior (paper, App. B.2 and B.4).
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence

from alps_ppl.model.covariances import Covariance, grams, variances


def default_jitter(dtype) -> float:
    """What is added to a Gram matrix's diagonal, relative to its mean, before a Cholesky factor.

    Gram matrices are singular by construction here (a linear-periodic latent has rank 2).
    """
    return 1e-8 if jnp.finfo(dtype).bits == 64 else 1e-4


def _cholesky(gram: Float[Array, "latent n n"], jitter: float | None) -> Float[Array, "latent n n"]:
    jitter = default_jitter(gram.dtype) if jitter is None else jitter
    mean_diagonal = jnp.trace(gram, axis1=-2, axis2=-1)[:, None, None] / gram.shape[-1]
    # A latent that is zero everywhere (a linear covariance of an all-zero column) gets the jitter alone.
    mean_diagonal = jnp.where(mean_diagonal > 0, mean_diagonal, 1.0)
    return jnp.linalg.cholesky(gram + jitter * mean_diagonal * jnp.eye(gram.shape[-1], dtype=gram.dtype))


class GaussianProcess(dist.Distribution):
    """Independent zero-mean Gaussian processes at ``inputs``; event shape (latent, time).

    No n x n matrix is built before someone asks for a sample or a log density.

    Parameters
    ----------
    covariances
        Of each latent. Latents have no unit; their variances k_j(t, t) are about 1.
    inputs
        (time,) or (time, column).
    jitter
        Added to a Gram matrix's diagonal, relative to its mean (None: 1e-8 in float64, 1e-4 in float32).
    """

    support = constraints.independent(constraints.real, 2)
    pytree_data_fields = ("covariances", "inputs", "jitter")

    def __init__(
        self,
        covariances: Sequence[Covariance],
        inputs: Float[Array, "time *column"],
        *,
        jitter: float | None = None,
        validate_args: bool | None = None,
    ):
        self.covariances = tuple(covariances)
        self.inputs = inputs
        self.jitter = jitter
        super().__init__((), (len(self.covariances), len(inputs)), validate_args=validate_args)

    def _scale_tril(self) -> Float[Array, "latent time time"]:
        return _cholesky(grams(self.covariances, self.inputs, self.inputs), self.jitter)

    def sample(self, key, sample_shape=()):
        noise = jax.random.normal(key, sample_shape + self.event_shape, self.inputs.dtype)
        return jnp.einsum("jst,...jt->...js", self._scale_tril(), noise)

    def log_prob(self, value: Float[Array, "*batch latent time"]) -> Float[Array, "*batch"]:
        scale_tril = self._scale_tril()
        whitened = jnp.vectorize(lambda tril, x: solve_triangular(tril, x, lower=True), signature="(t,t),(t)->(t)")(
            scale_tril, value
        )
        half_log_det = jnp.log(jnp.diagonal(scale_tril, axis1=-2, axis2=-1)).sum()
        size = self.event_shape[0] * self.event_shape[1]
        return -0.5 * (whitened**2).sum((-2, -1)) - half_log_det - 0.5 * size * jnp.log(2 * jnp.pi)

    @property
    def mean(self):
        return jnp.zeros(self.event_shape, self.inputs.dtype)

    @property
    def variance(self):
        return variances(self.covariances, self.inputs)


class SparseGaussianProcess(dist.Distribution):
    """App. B.2: q(X) = int p(X | X^z) q(X^z) dX^z at ``inputs``, the guide's latents; event shape (latent, time).

    q(X^z_j) is N(L_j loc_j, L_j S_j L_j^T) with L_j L_j^T = K_j(z, z) and S_j = scale_tril_j
    scale_tril_j^T: whitened, since K_zz is singular by construction for many covariances.
    Draws, ``mean``, ``variance`` and ``log_prob`` are those of the marginals
    N((A m)_t, K~_tt + (A S A^T)_tt), independently over t: all that the likelihood needs, because it
    factorises over t. A draw is not a path. With ``paths`` it is: A X^z with one X^z for all times, and
    independently over t what X^z leaves open.

    Parameters
    ----------
    covariances, inputs, jitter
        As those of ``GaussianProcess``.
    inducing_inputs
        t^z, (inducing,) or (inducing, column), in the inputs' unit.
    loc
        (latent, inducing), whitened: the paper's m^z_j is L_j loc_j.
    scale_tril
        (latent, inducing, inducing), whitened: a factor of the paper's S^z_j is L_j scale_tril_j.
    paths
        Whether draws are paths.
    """

    support = constraints.independent(constraints.real, 2)
    pytree_data_fields = ("covariances", "inputs", "inducing_inputs", "loc", "scale_tril", "jitter")
    pytree_aux_fields = ("paths",)

    def __init__(
        self,
        covariances: Sequence[Covariance],
        inputs: Float[Array, "time *column"],
        inducing_inputs: Float[Array, "inducing *column"],
        loc: Float[Array, "latent inducing"],
        scale_tril: Float[Array, "latent inducing inducing"],
        *,
        jitter: float | None = None,
        paths: bool = False,
        validate_args: bool | None = None,
    ):
        self.covariances = tuple(covariances)
        self.inputs = inputs
        self.paths = paths
        self.inducing_inputs = inducing_inputs
        self.loc = loc
        self.scale_tril = scale_tril
        self.jitter = jitter
        super().__init__((), (len(self.covariances), len(inputs)), validate_args=validate_args)

    def given_inducing(self) -> tuple[Float[Array, "latent inducing time"], Float[Array, "latent time"]]:
        """x_j(t) given the whitened X^z_j = v: A^T of its mean A v, and the variance K~_tt that v leaves open."""
        L = _cholesky(grams(self.covariances, self.inducing_inputs, self.inducing_inputs), self.jitter)
        K_zc = grams(self.covariances, self.inducing_inputs, self.inputs)
        # L^-1 and a product, not a solve against K_zc: the gradient is then ell x ell solves and products.
        identity = jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape)
        A_T = solve_triangular(L, identity, lower=True) @ K_zc  # (latent, inducing, time)
        residual = variances(self.covariances, self.inputs) - (A_T**2).sum(-2)
        # Round-off can take the residual below zero; the floor keeps the square root's gradient finite.
        return A_T, jnp.clip(residual, jnp.finfo(residual.dtype).eps)

    def marginals(self) -> tuple[Float[Array, "latent time"], Float[Array, "latent time"]]:
        """App. B.2: d_t and the diagonal of S^x_t, the mean and the variance of every x_j(t)."""
        A_T, residual = self.given_inducing()
        explained = ((self.scale_tril.mT @ A_T) ** 2).sum(-2)
        return (self.loc[:, None] @ A_T)[:, 0], residual + explained

    def sample_inducing(self, key, sample_shape=()) -> Float[Array, "*draw latent inducing"]:
        """Of the whitened X^z."""
        noise = jax.random.normal(key, sample_shape + self.loc.shape, self.loc.dtype)
        return self.loc + jnp.einsum("jkl,...jl->...jk", self.scale_tril, noise)

    def sample(self, key, sample_shape=()):
        if self.paths:
            (A_T, residual), keys = self.given_inducing(), jax.random.split(key)
            open_ = jax.random.normal(keys[1], sample_shape + self.event_shape, residual.dtype)
            path = jnp.einsum("jkt,...jk->...jt", A_T, self.sample_inducing(keys[0], sample_shape))
            return path + jnp.sqrt(residual) * open_
        mean, variance = self.marginals()
        return mean + jnp.sqrt(variance) * jax.random.normal(key, sample_shape + self.event_shape, mean.dtype)

    def log_prob(self, value):
        mean, variance = self.marginals()
        return dist.Normal(mean, jnp.sqrt(variance)).to_event(2).log_prob(value)

    @property
    def mean(self):
        return self.marginals()[0]

    @property
    def variance(self):
        return self.marginals()[1]


@kl_divergence.register(SparseGaussianProcess, GaussianProcess)
def _kl_sparse_to_prior(q: SparseGaussianProcess, p: GaussianProcess) -> Float[Array, ""]:
    """App. B.4: KL[q(X^z) || p(X^z)], in closed form; p(X | X^z) cancels.

    In whitened variables K_zz is the identity, so K_zz itself doesn't appear.
    """
    log_det = jnp.log(jnp.diagonal(q.scale_tril, axis1=-2, axis2=-1)).sum()
    return 0.5 * ((q.scale_tril**2).sum() + (q.loc**2).sum() - q.loc.size) - log_det
