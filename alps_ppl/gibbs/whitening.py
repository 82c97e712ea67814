"""Sums over rows of what each point of a private memory's grid has whitened, from where its filters are."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs.pivots import rounded_up
from alps_ppl.model.memory import FilterState, PrivateMemory, kalman

# Rows that are whitened before they are summed: 61 points' of 20 columns then stay in a processor's cache, which halves
# the time against 2,048 rows.
ROWS_AT_A_TIME = 128


class Sums(NamedTuple):
    """Over the rows so far, of columns and of y; with a leading axis (point,) where they are whitened."""

    gram: Any  # (*point, pattern, column, column) arrays, NumPy's or JAX's
    projection: Any  # (*point, output, column)
    squares: Any  # (*point, output)


class Whitened(NamedTuple):
    """The sums at every point of the grid, and where each point's filters are."""

    sums: Sums
    half_log_det: Any  # (point, pattern)
    state: FilterState  # (point,) and (point, pattern)
    columns: Any  # (point, pattern, column), the filtered means of the columns
    y: Any  # (point, output)


def no_sums(num_patterns: int, num_columns: int, num_outputs: int, points: tuple[int, ...] = ()) -> Sums:
    """Of no rows."""
    shapes = (num_patterns, num_columns, num_columns), (num_outputs, num_columns), (num_outputs,)
    return Sums(*(np.zeros((*points, *shape)) for shape in shapes))


def no_rows(num_points: int, num_patterns: int, num_columns: int, num_outputs: int) -> Whitened:
    """Before the first row."""
    return Whitened(
        no_sums(num_patterns, num_columns, num_outputs, (num_points,)),
        half_log_det=np.zeros((num_points, num_patterns)),
        state=FilterState(np.full(num_points, -np.inf), np.zeros((num_points, num_patterns))),
        columns=np.zeros((num_points, num_patterns, num_columns)),
        y=np.zeros((num_points, num_outputs)),
    )


def add_rows(
    grid: PrivateMemory,
    so_far: Whitened,
    pattern: Int[Array, " output"],
    times: Float[Array, " row"],
    columns: Float[Array, "row column"],
    y: Float[Array, "row output"],
    seen: Float[Array, "row pattern"],
) -> Whitened:
    """With these rows, which are later: C^-1/2 of the columns and of y, over the cells that are ``seen``.

    Their number is a multiple of ROWS_AT_A_TIME.
    """

    def of_point(point: PrivateMemory, now: Whitened, times, columns, y, seen) -> Whitened:
        filter_ = kalman(point, times, seen, start=now.state)
        lanes = jnp.broadcast_to(columns[:, None], (*seen.shape, columns.shape[1]))
        mean_columns, white = jax.tree.map(lambda part: part[..., None], filter_).run(lanes, now.columns)
        mean_y, white_y = jax.tree.map(lambda part: part[:, pattern], filter_).run(y, now.y)
        found = Sums(
            jnp.einsum("tpr,tps->prs", white, white),
            jnp.einsum("tir,ti->ir", white[:, pattern], white_y),
            (white_y**2).sum(0),
        )
        return Whitened(
            jax.tree.map(jnp.add, now.sums, found),
            now.half_log_det + filter_.half_log_det,
            FilterState(jnp.maximum(now.state.time, times[-1]), filter_.left[-1]),
            mean_columns,
            mean_y,
        )

    def block(now, rows):
        return jax.vmap(partial(of_point, times=rows[0], columns=rows[1], y=rows[2], seen=rows[3]))(grid, now), None

    num_blocks = len(times) // ROWS_AT_A_TIME
    blocks = [part.reshape(num_blocks, ROWS_AT_A_TIME, *part.shape[1:]) for part in (times, columns, y, seen)]
    return jax.lax.scan(block, jax.tree.map(jnp.asarray, so_far), blocks)[0]


def padded(
    times: Float[np.ndarray, " row"], parts: tuple[np.ndarray, ...], shared_by: int = 1
) -> tuple[np.ndarray, ...]:
    """``add_rows``' rows, and so many that ``shared_by`` devices have equally many: rows without a cell add nothing.

    Tables of nearly as many rows share a compiled program.
    """
    step = math.lcm(ROWS_AT_A_TIME, shared_by)
    more = -(-rounded_up(len(times)) // step) * step - len(times)
    return np.append(times, np.full(more, times[-1])), *(
        np.pad(part.astype(float), ((0, more), (0, 0))) for part in parts
    )
