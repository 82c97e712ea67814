"""The sums of a large table's rows so far, added block by block; the rows that are kept of it.

All sums are of the columns [Phi 1], the latents' features and a constant. So the mean and sd of an output, known only
after the last row, are taken out of the sums afterwards. A private memory's filters carry their state from block to
block. The devices of a process share a block's rows, or where there are private memories the grid's points; processes
have rows of their own, and add their sums at the end.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from alps_ppl.gibbs.whitening import Sums, Whitened, add_rows, no_rows, no_sums, padded
from alps_ppl.model.alps import ALPS
from alps_ppl.model.memory import PrivateMemory

# Up to twice as many rows are kept, evenly spread, and the last ones, from which a private memory goes on.
NUM_KEPT, NUM_LAST = 2_000, 200
# A block has at most as many.
MOST_ROWS = 32_768


class RowSums:
    """The sums of the rows so far, y less ``shift``, and the rows that are kept."""

    def __init__(self, model: ALPS, basis):
        num_outputs, size = len(model.outputs), sum(len(pivots) for _, pivots, _ in basis) + 1
        self.private_memory, self.basis = model.private_memory, basis
        self.num_rows, self.last, self.left_over = 0, -np.inf, np.zeros(len(basis))
        self.shift = np.full(num_outputs, np.nan)
        self.pattern = np.zeros(num_outputs, int)
        self.white = no_sums(1, size, num_outputs)
        self.private: Any = None
        self.mesh = Mesh(np.array(jax.local_devices()), "shared")
        if model.private_memory is not None:
            # The points that the devices' number asks for besides are copies of the last one.
            points = len(model.private_memory.share)
            fill = np.minimum(np.arange(-(-points // self.mesh.size) * self.mesh.size), points - 1)
            self.grid = PrivateMemory(*(np.asarray(values, float)[fill] for values in model.private_memory))
            self.private = no_rows(len(fill), 1, size, num_outputs)
        self.stride, self.kept = 1, [np.zeros((0, num_outputs + 2))]
        self.tail = self.kept[0]

    def add(self, times: np.ndarray, cells: np.ndarray) -> None:
        """A chunk of rows."""
        if len(times) == 0:
            return
        self._keep(times, cells)
        new = np.isnan(self.shift) & ~np.isnan(cells).all(0)
        # Before an output's first cell it has added nothing, whatever the shift.
        self.shift[new] = np.nanmean(cells[:, new], 0) if new.any() else 0.0
        seen = ~np.isnan(cells)
        self._split(seen)
        y = np.where(seen, cells - np.nan_to_num(self.shift), 0.0)
        first = np.unique(self.pattern, return_index=True)[1]
        for start in range(0, len(times), MOST_ROWS):
            rows = slice(start, start + MOST_ROWS)
            self._block(times[rows], y[rows], seen[rows][:, first])
        self.num_rows, self.last = self.num_rows + len(times), times[-1]

    def _block(self, times, y, seen) -> None:
        times, y, seen = padded(times, (y, seen), self.mesh.size)
        self.white, left_over = _add_white(self.mesh, self.basis, self.white, times, y, seen)
        self.left_over = np.maximum(self.left_over, left_over)
        if self.private is not None:
            arguments = (self.grid, self.private, self.pattern, times, y, seen)
            self.private = _add_whitened(self.mesh, self.basis, *arguments)

    def _split(self, seen) -> None:
        """Outputs that have had the same missing cells until now, and no longer have, part."""
        of_output = [(old, here.tobytes()) for old, here in zip(self.pattern, np.packbits(seen, 0).T, strict=True)]
        found = list(dict.fromkeys(of_output))
        if len(found) == self.white.gram.shape[-3]:
            return
        old = np.array([old for old, _ in found])
        self.pattern = np.array([found.index(one) for one in of_output])
        self.white = self.white._replace(gram=self.white.gram[old])
        if (now := self.private) is not None:
            self.private = now._replace(
                sums=now.sums._replace(gram=now.sums.gram[:, old]),
                half_log_det=now.half_log_det[:, old],
                state=now.state._replace(variance=now.state.variance[:, old]),
                columns=now.columns[:, old],
            )

    def _keep(self, times, cells) -> None:
        def numbered(rows):
            return np.column_stack([self.num_rows + rows, times[rows], cells[rows]])

        last = np.arange(max(0, len(times) - NUM_LAST), len(times))
        self.tail = np.concatenate([self.tail, numbered(last)])[-NUM_LAST:]
        self.kept.append(numbered(np.arange(-self.num_rows % self.stride, len(times), self.stride)))
        while sum(map(len, self.kept)) > 2 * NUM_KEPT:
            self.stride *= 2
            self.kept = [part[part[:, 0] % self.stride == 0] for part in self.kept]

    def gather(self) -> None:
        """All sums in NumPy's arrays, the other processes' added in each of them, and their rows."""
        self.white, self.private = jax.tree.map(np.asarray, (self.white, self.private))
        if jax.process_count() == 1:
            return
        from jax.experimental.multihost_utils import process_allgather as everywhere  # a tenth of the import's time

        shifts = np.asarray(everywhere(self.shift))
        shift = shifts[np.isnan(shifts).argmin(0), np.arange(len(self.shift))]
        # Of each output's own pattern, since each process has split them by its own rows.
        own = np.arange(len(self.shift))
        here = moved(self.white, np.nan_to_num(self.shift - shift), self.pattern)
        here = here._replace(gram=here.gram[self.pattern])
        self.white = Sums(*(np.asarray(everywhere(part)).sum(0) for part in here))
        self.pattern, self.shift = own, shift
        rows = np.full((2 * NUM_KEPT, self.tail.shape[1]), np.nan)
        kept = np.concatenate(self.kept)
        rows[: len(kept)] = kept
        rows = np.concatenate(np.asarray(everywhere(rows)))
        self.kept, self.tail = [rows[~np.isnan(rows[:, 0])]], self.tail[:0]
        self.num_rows = int(np.sum(everywhere(np.array(self.num_rows))))
        self.left_over = np.asarray(everywhere(self.left_over)).max(0)

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Times and cells of the rows that are kept, each once."""
        rows = np.concatenate([*self.kept, self.tail])
        if jax.process_count() == 1:
            rows = rows[np.unique(rows[:, 0], return_index=True)[1]]
        return rows[:, 1], rows[:, 2:]

    def check_features(self, model: ALPS) -> None:
        """A ValueError if a row's latents aren't what their features make of them, to a part in a million."""
        if self.num_rows == 0:
            raise ValueError("chunks: expected rows, got none")
        for name, left in zip(model.latents, self.left_over, strict=True):
            if left > 1e-6:
                raise ValueError(
                    f"latent {name!r}: features chosen all over the span leave {left:.1g} of its variance out in "
                    "one of the rows; is its covariance one that jumps between the times? Leave it out"
                )


def _columns(basis, times):
    """[Phi 1] at the times, and the largest share of each latent's variance that Phi leaves out."""
    parts, left_over = [], []
    for covariance, pivots, tril in basis:
        if len(tril) == 0:
            left_over.append(0.0)
            continue
        phi = jax.scipy.linalg.solve_triangular(tril, covariance(jnp.asarray(pivots), times), lower=True).T
        variance = covariance(times)
        parts.append(phi)
        left_over.append(((variance - (phi**2).sum(1)) / variance.max()).max())
    return jnp.concatenate([*parts, jnp.ones((len(times), 1))], 1), jnp.stack([jnp.asarray(x) for x in left_over])


@partial(jax.jit, static_argnums=0)
def _add_white(mesh, basis, sums: Sums, times, y, seen) -> tuple[Sums, Array]:
    """The devices share the rows."""
    rows, everywhere = PartitionSpec("shared"), PartitionSpec()

    def of_rows(times, y, seen):
        columns, left_over = _columns(basis, times)
        gram = jax.lax.map(lambda here: (columns * here[:, None]).T @ columns, seen.T)
        found = Sums(gram, y.T @ columns, (y**2).sum(0))
        return jax.lax.psum(found, "shared"), jax.lax.pmax(left_over, "shared")

    split = jax.shard_map(of_rows, mesh=mesh, in_specs=(rows, rows, rows), out_specs=(everywhere, everywhere))
    found, left_over = split(times, y, seen)
    return jax.tree.map(jnp.add, sums, found), left_over


@partial(jax.jit, static_argnums=0)
def _add_whitened(mesh, basis, grid: PrivateMemory, so_far: Whitened, pattern, times, y, seen) -> Whitened:
    """The devices share the points."""
    points, columns = PartitionSpec("shared"), _columns(basis, times)[0]

    def of_points(grid, so_far):
        return add_rows(grid, so_far, pattern, times, columns, y, seen)

    return jax.shard_map(of_points, mesh=mesh, in_specs=(points, points), out_specs=points)(grid, so_far)


def moved(sums: Sums, by: Float[np.ndarray, " output"], pattern: Int[np.ndarray, " output"]) -> Sums:
    """The sums of y + ``by``, from those of columns of which the last is 1."""
    one = sums.gram[..., pattern, -1, :]
    squares = sums.squares + 2 * by * sums.projection[..., -1] + by**2 * one[..., -1]
    return sums._replace(projection=sums.projection + by[:, None] * one, squares=squares)
