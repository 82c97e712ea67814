"""Gaussians given by their precision, for the latents' weights and for H: nothing is inverted."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpyro.distributions import constraints


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


def eliminate(potential_s, diagonal, below, side) -> tuple[Array, Array, Array, Array]:
    """A block Cholesky factor of the states, ``tril`` and ``below``; ``side`` and ``potential_s`` whitened by it."""
    dim = diagonal.shape[-1]
    blocks = jnp.concatenate([diagonal, side, potential_s[..., None]], -1)
    no_time = jnp.zeros_like(below[:1])

    def step(before, here):
        block, below_after = here
        block = block - before[:, :dim].T @ before
        tril = jnp.linalg.cholesky(block[:, :dim])
        whitened = solve_triangular(tril, jnp.concatenate([below_after.T, block[:, dim:]], 1), lower=True)
        return whitened, (tril, whitened)

    steps = blocks, jnp.concatenate([below[1:], no_time])
    _, (tril, whitened) = jax.lax.scan(step, jnp.zeros_like(blocks[0]), steps)
    below = jnp.concatenate([no_time, whitened[:-1, :, :dim].mT])
    return tril, below, whitened[..., dim:-1], whitened[..., -1]


def states_integral(tril: Float[Array, "time dim dim"], whitened: Float[Array, "time dim"]) -> Float[Array, ""]:
    """Log of the integral over the states at w = 0, relative to that of a standard normal's kernel."""
    return 0.5 * (whitened**2).sum() - _half_log_det(tril).sum()


class StatesNormal(dist.Distribution):
    """The Gaussian of [w, s_1 ... s_n] whose precision is block tridiagonal in s and dense in w: one forward pass.

    Precision: ``corner`` among w, ``diagonal`` (time, dim, dim) and ``below`` (time, dim, dim: t with t-1) among s,
    ``side`` (time, dim, feature) between them. ``potential_w`` and ``potential_s`` are the precision times the mean.
    """

    support = constraints.real_vector
    pytree_data_fields = ("tril", "below", "side", "whitened", "corner")

    def __init__(self, potential_w, potential_s, corner, diagonal, below, side, *, validate_args=None):
        time, dim, r = side.shape
        self.tril, self.below, self.side, self.whitened = eliminate(potential_s, diagonal, below, side)
        schur = corner - jnp.einsum("tdr,tds->rs", self.side, self.side)
        self.corner = PrecisionNormal(potential_w - jnp.einsum("tdr,td->r", self.side, self.whitened), schur)
        super().__init__((), (r + time * dim,), validate_args=validate_args)

    def transform(self, noise: Float[Array, " dim"]) -> Float[Array, " dim"]:
        """A draw from standard normals."""
        r = self.side.shape[-1]
        w = self.corner.transform(noise[:r])
        rest = self.whitened - self.side @ w + noise[r:].reshape(self.whitened.shape)
        return jnp.concatenate([w, self._back_substitute(rest).reshape(-1)])

    def _back_substitute(self, rest):
        def step(after, blocks):
            tril, rest, below_after = blocks
            state = solve_triangular(tril, rest - below_after.T @ after, lower=True, trans=1)
            return state, state

        below_after = jnp.concatenate([self.below[1:], jnp.zeros_like(self.below[:1])])
        _, states = jax.lax.scan(step, jnp.zeros_like(rest[0]), (self.tril, rest, below_after), reverse=True)
        return states

    def sample(self, key, sample_shape=()):
        noise = jax.random.normal(key, sample_shape + self.event_shape, self.whitened.dtype)
        return jnp.vectorize(self.transform, signature="(d)->(d)")(noise)

    @property
    def mean(self) -> Float[Array, " dim"]:
        w = self.corner.mean
        return jnp.concatenate([w, self._back_substitute(self.whitened - self.side @ w).reshape(-1)])

    @property
    def _half_log_det(self) -> Float[Array, ""]:
        return _half_log_det(self.tril).sum() + self.corner._half_log_det

    @property
    def log_integral(self) -> Float[Array, ""]:
        """As PrecisionNormal's: relative to that of a standard normal's kernel."""
        return states_integral(self.tril, self.whitened) + self.corner.log_integral

    @property
    def border(self) -> tuple[Float[Array, ""], Float[Array, "feature feature"], Float[Array, " feature"]]:
        """What the integral over w needs of the states: their own integral, and S and u of w's I + S and potential."""
        tril = self.corner.precision_tril
        S = tril @ tril.T - jnp.eye(len(tril), dtype=tril.dtype)
        return states_integral(self.tril, self.whitened), S, self.corner.potential

    def log_prob(self, value):
        r = self.side.shape[-1]
        offset = value - self.mean
        w, states = offset[..., :r], offset[..., r:].reshape(*value.shape[:-1], *self.whitened.shape)
        whitened = jnp.einsum("tde,...td->...te", self.tril, states) + jnp.einsum("tdr,...r->...td", self.side, w)
        next_ = jnp.einsum("tde,...td->...te", self.below[1:], states[..., 1:, :])
        whitened = whitened.at[..., :-1, :].add(next_)
        corner = jnp.einsum("ij,...i->...j", self.corner.precision_tril, w)
        square = (whitened**2).sum((-2, -1)) + (corner**2).sum(-1)
        return self._half_log_det - 0.5 * square - 0.5 * value.shape[-1] * jnp.log(2 * jnp.pi)
