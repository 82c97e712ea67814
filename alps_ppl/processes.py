"""Gaussian processes as NumPyro distributions, and their low-rank features.

- ``GaussianProcess``: the prior of the latents, p(X).
- ``SparseGaussianProcess``: the guide's q(X) = int p(X | X^z) q(X^z) dX^z (paper, App. B).
- ``Features``: x_j = Phi_j w_j with w_j ~ N(0, I), for the sampler.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int
from numpyro.distributions import constraints
from numpyro.distributions.kl import kl_divergence

from alps_ppl.covariances import Covariance, grams, variances


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

    ``inputs`` has shape (time,) or (time, column); ``jitter`` is relative to the mean variance
    (None: 1e-8 in float64, 1e-4 in float32).
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
    """The guide's q(X): q(X^z) carried to ``inputs`` by p(X | X^z); event shape (latent, time).

    q(X^z_j) is N(L_j loc_j, L_j S_j L_j^T) with L_j L_j^T = K_j(z, z) and S_j = scale_tril_j
    scale_tril_j^T: whitened, since K_zz is singular by construction for many covariances.
    Draws, ``mean``, ``variance`` and ``log_prob`` are those of the marginals
    N((A m)_t, K~_tt + (A S A^T)_tt), independently over t: all that the likelihood needs, because it
    factorises over t. A draw is not a path. Paper, App. B.1 and B.2.

    ``loc`` (latent, inducing) and ``scale_tril`` (latent, inducing, inducing) are whitened.
    """

    support = constraints.independent(constraints.real, 2)
    pytree_data_fields = ("covariances", "inputs", "inducing_inputs", "loc", "scale_tril", "jitter")

    def __init__(
        self,
        covariances: Sequence[Covariance],
        inputs: Float[Array, "time *column"],
        inducing_inputs: Float[Array, "inducing *column"],
        loc: Float[Array, "latent inducing"],
        scale_tril: Float[Array, "latent inducing inducing"],
        *,
        jitter: float | None = None,
        validate_args: bool | None = None,
    ):
        self.covariances = tuple(covariances)
        self.inputs = inputs
        self.inducing_inputs = inducing_inputs
        self.loc = loc
        self.scale_tril = scale_tril
        self.jitter = jitter
        super().__init__((), (len(self.covariances), len(inputs)), validate_args=validate_args)

    def marginals(self) -> tuple[Float[Array, "latent time"], Float[Array, "latent time"]]:
        """Mean and variance of every x_j(t)."""
        L = _cholesky(grams(self.covariances, self.inducing_inputs, self.inducing_inputs), self.jitter)
        K_zc = grams(self.covariances, self.inducing_inputs, self.inputs)
        # L^-1 and a product, not a solve against K_zc: the gradient is then ell x ell solves and products.
        identity = jnp.broadcast_to(jnp.eye(L.shape[-1], dtype=L.dtype), L.shape)
        A_T = solve_triangular(L, identity, lower=True) @ K_zc  # (latent, inducing, time)
        residual = variances(self.covariances, self.inputs) - (A_T**2).sum(-2)
        explained = ((self.scale_tril.mT @ A_T) ** 2).sum(-2)
        # Round-off can take the residual below zero; the floor keeps the square root's gradient finite.
        floor = jnp.finfo(residual.dtype).eps
        return (self.loc[:, None] @ A_T)[:, 0], jnp.clip(residual, floor) + explained

    def sample(self, key, sample_shape=()):
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
    """KL[q(X^z) || p(X^z)], in closed form; p(X | X^z) cancels. Paper, App. B.4.

    In whitened variables K_zz is the identity, so K_zz itself doesn't appear.
    """
    log_det = jnp.log(jnp.diagonal(q.scale_tril, axis1=-2, axis2=-1)).sum()
    return 0.5 * ((q.scale_tril**2).sum() + (q.loc**2).sum() - q.loc.size) - log_det


class Features(NamedTuple):
    """x_j = Phi_j w_j, w_j ~ N(0, I): a pivoted Cholesky factor of each latent's Gram matrix.

    The latents' features lie side by side: ``phi`` is [Phi_1 ... Phi_m] (time, feature), ``owner``
    says whose each feature is. ``pivots`` are the times that latent j's features interpolate and
    ``pivot_tril`` the Cholesky factor of its Gram matrix there.
    """

    phi: Float[np.ndarray, "time feature"]
    owner: Int[np.ndarray, " feature"]
    pivots: list[Int[np.ndarray, " rank"]]
    pivot_tril: list[Float[np.ndarray, "rank rank"]]

    def weights(self, x: Float[Array, "*draw latent time"]) -> Float[Array, "*draw feature"]:
        """The weights of latents that lie in the features' span: x_j at its pivots is L_j w_j."""
        num_draws = math.prod(x.shape[:-2])
        solves = [
            solve_triangular(jnp.asarray(tril, x.dtype), x[..., j, pivots].reshape(num_draws, -1).T, lower=True).T
            if len(pivots)
            else jnp.zeros((num_draws, 0), x.dtype)
            for j, (pivots, tril) in enumerate(zip(self.pivots, self.pivot_tril, strict=True))
        ]
        return jnp.concatenate(solves, -1).reshape(*x.shape[:-2], -1)

    def extend(
        self,
        covariances: Sequence[Covariance],
        inputs: Float[Array, "time *column"],
        new_inputs: Float[Array, "new *column"],
    ) -> tuple[Float[Array, "new feature"], Float[Array, "latent new"]]:
        """The features at new inputs and the prior variance that they leave: k** - Phi* Phi*^T."""
        columns, residuals = [], []
        for covariance, pivots, tril in zip(covariances, self.pivots, self.pivot_tril, strict=True):
            K = covariance(inputs[pivots], new_inputs)
            phi = solve_triangular(jnp.asarray(tril, K.dtype), K, lower=True).T if len(pivots) else K.T
            columns.append(phi)
            residuals.append(jnp.clip(covariance(new_inputs) - (phi**2).sum(-1), 0.0))
        return jnp.concatenate(columns, -1), jnp.stack(residuals)


_column = jax.jit(lambda covariance, inputs, pivot: covariance(inputs, inputs[pivot][None])[:, 0])
_diagonal = jax.jit(lambda covariance, inputs: covariance(inputs))


def pivoted_cholesky(
    covariance: Covariance,
    inputs: Float[Array, "time *column"],
    *,
    max_rank: int,
    tolerance: float,
    name: str = "",
) -> tuple[Float[np.ndarray, "time rank"], Int[np.ndarray, " rank"]]:
    """A factor Phi of the Gram matrix with K = Phi Phi^T up to ``tolerance``, and its pivots.

    Stops when the largest residual variance is below ``tolerance`` times the largest variance. One
    column of K at a time: the n x n matrix is never built. A covariance that needs more than
    ``max_rank`` columns raises a ValueError.
    """
    residual = np.array(_diagonal(covariance, inputs), np.float64)
    if not (np.isfinite(residual) & (residual >= 0)).all():
        raise ValueError(
            f"latent {name!r}: expected its covariance to have finite variances of at least 0 at the inputs, got "
            f"{residual[~(residual >= 0) | ~np.isfinite(residual)][0]:g}; check its parameters"
        )
    phi = np.zeros((len(residual), min(len(residual), max_rank, 32)))
    pivots: list[int] = []
    threshold = tolerance * residual.max()
    while residual.max() > threshold and len(pivots) < len(residual):
        rank = len(pivots)
        if rank == max_rank:
            raise ValueError(
                f"latent {name!r}: its covariance needs more than max_rank = {max_rank} features on "
                f"{len(residual)} inputs (largest variance left over {residual.max():.2g}, allowed {threshold:.2g}). "
                "Use a smoother covariance or fewer inputs, or raise max_rank (a sweep costs the ranks' sum cubed)"
            )
        if rank == phi.shape[1]:
            phi = np.concatenate([phi, np.zeros_like(phi)], 1)
        pivot = int(residual.argmax())
        column = np.asarray(_column(covariance, inputs, pivot), np.float64)
        phi[:, rank] = (column - phi[:, :rank] @ phi[pivot, :rank]) / np.sqrt(residual[pivot])
        phi[pivots, rank] = 0.0  # exactly so without round-off: earlier pivots are interpolated already
        residual -= phi[:, rank] ** 2
        pivots.append(pivot)
        residual[pivots] = 0.0
    return phi[:, : len(pivots)], np.array(pivots, int)


def features(
    covariances: Sequence[Covariance],
    inputs: Float[Array, "time *column"],
    *,
    names: Sequence[str],
    max_rank: int = 2000,
    tolerance: float | None = None,
) -> Features:
    """The features of all latents at ``inputs``, in float64 NumPy arrays.

    ``tolerance`` is relative (None: 1e-10 in float64, 1e-5 in float32).
    """
    if tolerance is None:
        tolerance = 1e-10 if jnp.finfo(inputs.dtype).bits == 64 else 1e-5
    factors = [
        pivoted_cholesky(covariance, inputs, max_rank=max_rank, tolerance=tolerance, name=name)
        for covariance, name in zip(covariances, names, strict=True)
    ]
    return Features(
        phi=np.concatenate([phi for phi, _ in factors], 1),
        owner=np.repeat(np.arange(len(factors)), [len(pivots) for _, pivots in factors]),
        pivots=[pivots for _, pivots in factors],
        pivot_tril=[phi[pivots] for phi, pivots in factors],
    )
