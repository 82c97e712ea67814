"""A pivoted Cholesky factor of a covariance's Gram matrix, without the matrix: which times its features interpolate."""

from typing import Any

import jax
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

from alps_ppl.model.covariances import Covariance

# How many rows of features are held at a time.
ROWS_AT_A_TIME = 16_384


class RankError(ValueError):
    """A covariance needs more features than it may have."""


_column = jax.jit(lambda covariance, inputs, pivot: covariance(inputs, pivot[None])[:, 0])
_diagonal = jax.jit(lambda covariance, inputs: covariance(inputs))


def rounded_up(number: int) -> int:
    """The next multiple of an eighth of the power of two below: nearly equal numbers of rows share a program."""
    step = 2 ** max(0, number.bit_length() - 4)
    return -(-number // step) * step


def column_of(covariance: Covariance | None, inputs: Any, pivot: Any) -> Float[np.ndarray, " row"]:
    """The covariances with one input."""
    return np.asarray(_column(covariance, _padded(inputs), np.asarray(pivot)), np.float64)[: len(inputs)]


def diagonal(covariance: Covariance, inputs: Any) -> Float[np.ndarray, " row"]:
    """The variances at the inputs."""
    return np.array(_diagonal(covariance, _padded(inputs)), np.float64)[: len(inputs)]


def _padded(inputs: Any) -> np.ndarray:
    rows = np.asarray(inputs)
    if len(rows) == 0:
        return rows
    return np.concatenate([rows, np.repeat(rows[-1:], rounded_up(len(rows)) - len(rows), 0)])


def pivoted_cholesky(
    covariance: Covariance, inputs: Float[Array, "time *column"], *, max_rank: int, tolerance: float, name: str = ""
) -> tuple[Float[np.ndarray, "time rank"], Int[np.ndarray, " rank"]]:
    """A factor Phi of the Gram matrix with K = Phi Phi^T up to ``tolerance``, and its pivots.

    Stops when the largest residual variance is below ``tolerance`` times the largest variance. One
    column of K at a time: the n x n matrix is never built. A covariance that needs more than
    ``max_rank`` columns raises a RankError, a ValueError.
    """
    rows = np.asarray(inputs)
    residual = diagonal(covariance, rows)
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
            raise RankError(
                f"latent {name!r}: its covariance needs more than max_rank = {max_rank} features on "
                f"{len(residual)} inputs (largest variance left over {residual.max():.2g}, allowed {threshold:.2g}). "
                "Use a smoother covariance, a Matern one of one-dimensional inputs in 64-bit (numpyro.enable_x64()), "
                "or fewer inputs, or raise max_rank (a sweep costs the ranks' sum cubed)"
            )
        if rank == phi.shape[1]:
            phi = np.concatenate([phi, np.zeros_like(phi)], 1)
        pivot = int(residual.argmax())
        column = column_of(covariance, rows, rows[pivot])
        phi[:, rank] = (column - phi[:, :rank] @ phi[pivot, :rank]) / np.sqrt(residual[pivot])
        phi[pivots, rank] = 0.0  # exactly so without round-off: earlier pivots are interpolated already
        residual -= phi[:, rank] ** 2
        pivots.append(pivot)
        residual[pivots] = 0.0
    return phi[:, : len(pivots)], np.array(pivots, int)


def interpolation(covariance: Covariance | None, inputs, pivot_inputs, tril) -> Float[np.ndarray, "row rank"]:
    """Phi at ``inputs``: K_row,pivots L^-T, column by column as in the factor, in float64."""
    if len(tril) == 0:
        return np.zeros((len(inputs), 0))
    K = np.stack([column_of(covariance, inputs, pivot) for pivot in np.asarray(pivot_inputs)])
    return scipy.linalg.solve_triangular(tril, K, lower=True).T


def choose_pivots(
    covariance: Covariance, inputs: Float[Array, "time *column"], *, max_rank: int, tolerance: float, name: str = ""
) -> tuple[Int[np.ndarray, " rank"], Float[np.ndarray, "rank rank"]]:
    """The pivots among all inputs, and the Cholesky factor there, from ROWS_AT_A_TIME rows of Phi at most at a time.

    Of more inputs than that, evenly spread ones are candidates at first; what they leave over joins them.
    """
    n = len(inputs)
    candidates = np.unique(np.linspace(0, n - 1, min(n, ROWS_AT_A_TIME)).round().astype(int))
    seen = np.zeros(0, int)
    while True:
        factor = pivoted_cholesky(covariance, inputs[candidates], max_rank=max_rank, tolerance=tolerance, name=name)
        pivots, tril = candidates[factor[1]], factor[0][factor[1]]
        if len(candidates) == n:
            return pivots, tril
        prior = diagonal(covariance, inputs)
        phi = (interpolation(covariance, inputs[rows], inputs[pivots], tril) for rows in row_slices(n))
        left = prior - np.concatenate([(part**2).sum(1) for part in phi])
        over = np.setdiff1d(np.flatnonzero(left > tolerance * prior.max()), candidates)  # those are round-off
        if len(over) == 0:
            return pivots, tril
        seen = np.union1d(seen, pivots)
        candidates = np.union1d(seen, over[np.argsort(-left[over])[: max(1, ROWS_AT_A_TIME - len(seen))]])


def row_slices(num_rows: int) -> list[slice]:
    """Slices of at most ROWS_AT_A_TIME rows."""
    return [slice(start, start + ROWS_AT_A_TIME) for start in range(0, num_rows, ROWS_AT_A_TIME)]
