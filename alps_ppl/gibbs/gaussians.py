"""Gaussians given by their precision, for the latents' weights and for H: nothing is inverted."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from alps_ppl.gibbs.block_tridiagonal import factorise


def _half_log_det(tril: Float[Array, "*batch dim dim"]) -> Float[Array, "*batch"]:
    return jnp.log(jnp.diagonal(tril, axis1=-2, axis2=-1)).sum(-1)


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
        return _half_log_det(self.precision_tril)

    def log_prob(self, value):
        whitened = jnp.einsum("...ji,...j->...i", self.precision_tril, value - self.mean)
        return self._half_log_det - 0.5 * (whitened**2).sum(-1) - 0.5 * value.shape[-1] * jnp.log(2 * jnp.pi)


class StatesNormal(dist.Distribution):
    """The Gaussian of [w, s_1 ... s_n] whose precision is block tridiagonal in s and dense in w: one forward pass.

    Precision: ``corner`` among w, ``diagonal`` (time, dim, dim) and ``below`` (time, dim, dim: t with t-1) among s,
    ``side`` (time, dim, feature) between them. ``potential_w`` and ``potential_s`` are the precision times the mean.
    """

    support = constraints.real_vector
    pytree_data_fields = ("factor", "states", "corner", "blocks")

    def __init__(self, potential_w, potential_s, corner, diagonal, below, side, *, validate_args=None):
        time, dim, r = side.shape
        self.factor = factorise(diagonal, below, jnp.concatenate([side, potential_s[..., None]], -1))
        products = self.factor.products
        self.states = 0.5 * products[-1, -1] - self.factor.half_log_det
        self.corner = PrecisionNormal(potential_w - products[:-1, -1], corner - products[:-1, :-1])
        self.blocks = corner, diagonal, below, side
        super().__init__((), (r + time * dim,), validate_args=validate_args)

    def transform(self, noise: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """A draw from standard normals."""
        r, (time, dim, _) = self._num_features, self.blocks[1].shape
        return self._given(self.corner.transform(noise[:r]), noise[r:].reshape(time, dim))

    def _given(self, w, noise):
        """[w, states]: their mean given w, or with standard normals a draw."""
        states = self.factor.states(jnp.append(-w, jnp.ones((), w.dtype)), noise)
        return jnp.concatenate([w, states.reshape(-1)])

    def sample(self, key, sample_shape=()):
        noise = jax.random.normal(key, sample_shape + self.event_shape, self.states.dtype)
        return jnp.vectorize(self.transform, signature="(d)->(d)")(noise)

    @property
    def mean(self) -> Float[Array, " dim"]:
        return self._given(self.corner.mean, jnp.zeros(self.blocks[1].shape[:2], self.states.dtype))

    @property
    def _num_features(self) -> int:
        return self.blocks[0].shape[-1]

    @property
    def log_integral(self) -> Float[Array, ""]:
        """As PrecisionNormal's: relative to that of a standard normal's kernel."""
        return self.states + self.corner.log_integral

    @property
    def border(self) -> tuple[Float[Array, ""], Float[Array, "feature feature"], Float[Array, " feature"]]:
        """What the integral over w needs of the states: their own integral, and S and u of w's I + S and potential.

        The states' integral is at w = 0, relative to that of a standard normal's kernel.
        """
        tril = self.corner.precision_tril
        S = tril @ tril.T - jnp.eye(len(tril), dtype=tril.dtype)
        return self.states, S, self.corner.potential

    def log_prob(self, value):
        corner, diagonal, below, side = self.blocks
        offset = value - self.mean
        w, states = offset[..., : self._num_features], offset[..., self._num_features :]
        states = states.reshape(*value.shape[:-1], *diagonal.shape[:2])
        square = jnp.einsum("...i,ij,...j->...", w, corner, w)
        square += jnp.einsum("...td,tde,...te->...", states, diagonal, states)
        square += 2 * jnp.einsum("...td,tde,...te->...", states[..., 1:, :], below[1:], states[..., :-1, :])
        square += 2 * jnp.einsum("...td,tdr,...r->...", states, side, w)
        half_log_det = self.factor.half_log_det + self.corner._half_log_det
        return half_log_det - 0.5 * square - 0.5 * value.shape[-1] * jnp.log(2 * jnp.pi)
