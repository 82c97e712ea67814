"""A Cholesky factor of a block tridiagonal precision, a block for each time: in turn, or in segments side by side.

In turn each time waits for the one before, and with few states per time the waiting is all that it costs. In segments
the times of each but its last are eliminated given the last ones of this segment and of the one before, in all segments
at once; the last ones are a block tridiagonal matrix again, of as many times as there are segments.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

# Segments cost more arithmetic and twice the compilation. With 1, 2, 4, 6 and 8 states of 2,000 times they take .09,
# .17, .32, .53 and .80 of the time in turn, but of four chains side by side .19, .32, .61, 1.6 and 1.9 (`python -m
# benchmarks states`).
NUM_SEGMENTS, FEWEST_TIMES, FEW_STATES = 16, 128, 4


class BlockFactor(NamedTuple):
    """L of a precision L L^T, and ``rest``, L^-1 of some columns, in the order in which times are eliminated.

    ``inner`` has a row of L^T for each state of a segment's times but the last. Its columns are the entries with the
    states of the same time, with those at the end of the segment before, with the columns, and with those of the next
    time. ``tril``, ``below`` (a time with the one before) and ``rest`` are of the segments' last times, or of all
    where ``inner`` is None.
    """

    inner: Float[Array, "step state column segment"] | None
    tril: Float[Array, "time state state"]
    below: Float[Array, "time state state"]
    rest: Float[Array, "time state rest"]

    @property
    def half_log_det(self) -> Float[Array, ""]:
        """Log |L L^T| / 2."""
        found = jnp.log(jnp.diagonal(self.tril, axis1=-2, axis2=-1)).sum()
        if self.inner is None:
            return found
        return found + jnp.log(jnp.diagonal(self.inner, axis1=1, axis2=2)).sum()

    @property
    def products(self) -> Float[Array, "rest rest"]:
        """The columns' products under the inverse of the precision."""
        found = jnp.einsum("tdr,tds->rs", self.rest, self.rest)
        if self.inner is None:
            return found
        dim = self.tril.shape[-1]
        rest = self.inner[:, :, 2 * dim : -dim]
        return found + jnp.einsum("tdrp,tdsp->rs", rest, rest)

    def states(self, weights: Float[Array, " rest"], noise: Float[Array, "time state"]) -> Float[Array, "time state"]:
        """L^-T (``rest`` times ``weights`` + ``noise``): a Gaussian's mean where there is no noise, or a draw."""
        if self.inner is None:
            return _substitute(self.tril, self.below, self.rest @ weights + noise)
        dim = self.tril.shape[-1]
        time, noise = len(noise), _by_segment(noise[..., None])[:, :, 0]
        ends = _substitute(self.tril, self.below, self.rest @ weights + noise[-1].T)
        own, left, rest, later = jnp.split(self.inner, [dim, 2 * dim, self.inner.shape[2] - dim], 2)
        before = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
        right = jnp.einsum("tdrp,r->tdp", rest, weights) + noise[:-1] - jnp.einsum("tdep,pe->tdp", left, before)

        def step(after, here):
            own, later, right = here
            right = right - sum(later[:, k] * after[k] for k in range(dim))
            found = []  # of the last state first
            for i in reversed(range(dim)):
                known = sum(own[i, dim - 1 - k] * value for k, value in enumerate(found))
                found.append((right[i] - known) / own[i, i])
            state = jnp.stack(found[::-1])
            return state, state

        _, inside = jax.lax.scan(step, ends.T, (own, later, right), reverse=True)
        in_order = jnp.moveaxis(jnp.concatenate([inside, ends.T[None]]), -1, 0)  # (segment, step, state)
        return in_order.reshape(-1, dim)[-time:]


def factorise(
    diagonal: Float[Array, "time state state"],
    below: Float[Array, "time state state"],
    rest: Float[Array, "time state rest"],
) -> BlockFactor:
    """The factor of a precision with these blocks; ``below`` are a time's with the time before, the first is unused."""
    time, dim, _ = rest.shape
    if dim > FEW_STATES or time < FEWEST_TIMES:
        return BlockFactor(None, *_in_turn(diagonal, below, rest))
    padding = jnp.broadcast_to(jnp.eye(dim, dtype=diagonal.dtype), (-time % NUM_SEGMENTS, dim, dim))
    own = _by_segment(jnp.concatenate([padding, diagonal]))
    before, rest = _by_segment(below.at[0].set(0.0)), _by_segment(rest)
    left = jnp.concatenate([before[:1], jnp.zeros_like(before[1:])])
    later = jnp.swapaxes(jnp.concatenate([before[1:], jnp.zeros_like(before[:1])]), 1, 2)
    blocks = jnp.concatenate([own, left, rest, later], 2)

    def step(above, block):
        rows = _rows_of_factor(jnp.concatenate([_less(block[:, :-dim], above, dim), block[:, -dim:]], 1))
        return rows, rows

    last, inner = jax.lax.scan(step, jnp.zeros_like(blocks[0]), blocks[:-1])
    ends = jnp.moveaxis(_less(blocks[-1, :, :-dim], last, dim), -1, 0)  # (segment, state, column)
    own, left, rest = jnp.split(ends, [dim, 2 * dim], 2)
    # What a segment takes from the end of the one before.
    taken = jnp.einsum("tdep,tdcp->pec", inner[:, :, dim : 2 * dim], inner[:, :, dim:-dim])
    taken = jnp.concatenate([taken[1:], jnp.zeros_like(taken[:1])])
    return BlockFactor(inner, *_in_turn(own - taken[..., :dim], left, rest - taken[..., dim:]))


def _in_turn(diagonal, below, rest) -> tuple[Array, Array, Array]:
    """``tril``, ``below`` and ``rest`` of the factor, time by time."""
    dim = diagonal.shape[-1]
    blocks = jnp.concatenate([diagonal, rest], -1)
    no_time = jnp.zeros_like(below[:1])

    def step(before, here):
        block, below_after = here
        block = block - before[:, :dim].T @ before
        tril = jnp.linalg.cholesky(block[:, :dim])
        whitened = solve_triangular(tril, jnp.concatenate([below_after.T, block[:, dim:]], 1), lower=True)
        return whitened, (tril, whitened)

    steps = blocks, jnp.concatenate([below[1:], no_time])
    _, (tril, whitened) = jax.lax.scan(step, jnp.zeros_like(blocks[0]), steps)
    return tril, jnp.concatenate([no_time, whitened[:-1, :, :dim].mT]), whitened[..., dim:]


def _substitute(tril, below, right: Float[Array, "time state"]) -> Float[Array, "time state"]:
    """L^-T ``right`` where L was made in turn."""

    def step(after, blocks):
        tril, right, below_after = blocks
        state = solve_triangular(tril, right - below_after.T @ after, lower=True, trans=1)
        return state, state

    below_after = jnp.concatenate([below[1:], jnp.zeros_like(below[:1])])
    return jax.lax.scan(step, jnp.zeros_like(right[0]), (tril, right, below_after), reverse=True)[1]


def _by_segment(values: Float[Array, "time state column"]) -> Float[Array, "step state column segment"]:
    """The times in segments of one length, side by side in the last axis; zeros come first where it doesn't divide."""
    values = jnp.pad(values, ((-len(values) % NUM_SEGMENTS, 0), (0, 0), (0, 0)))
    return jnp.moveaxis(values.reshape(NUM_SEGMENTS, -1, *values.shape[1:]), 0, -1)


def _less(columns: Array, above: Array, dim: int) -> Float[Array, "state column segment"]:
    """Own, left and other columns of a time, less what the time before says of them."""
    later = above[:, -dim:]
    same = jnp.concatenate([later, above[:, dim:-dim]], 1)
    return columns - sum(later[k][:, None] * same[k] for k in range(dim))


def _rows_of_factor(block: Float[Array, "state column segment"]) -> Float[Array, "state column segment"]:
    """[L^T, L^-1 R] from [L L^T, R], row by row: a Cholesky factor's elimination goes on over the columns of R."""
    rows: list[Array] = []
    for i, row in enumerate(block):
        row = row - sum(above[i] * above for above in rows)
        rows.append(row / jnp.sqrt(row[i]))
    return jnp.stack(rows)
