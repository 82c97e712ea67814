"""``sum_rows``: a table that is too long to hold, as the sums that its sweeps need, from one pass over its rows.

All sums are of the columns [Phi 1], the latents' features and a constant. So the mean and sd of an output, known only
after the last row, are taken out of the sums afterwards. A private memory's filters carry their state from block to
block. The devices of a process share a block's rows, or where there are private memories the grid's points; processes
have rows of their own, and add their sums at the end.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int
from tqdm.auto import tqdm

from alps_ppl import checks
from alps_ppl.gibbs.features import Features, assemble, by_latents, latent_features
from alps_ppl.gibbs.pivots import RankError, rounded_up
from alps_ppl.gibbs.statistics import PrivateStatistics, Statistics, scale_statistics
from alps_ppl.gibbs.whitening import ROWS_AT_A_TIME, Sums, Whitened, add_rows, no_rows, no_sums, padded
from alps_ppl.model.alps import ALPS
from alps_ppl.model.memory import PrivateMemory

# All latents together have at most as many features: they are held for a block of rows, and their Gram matrix for
# every point of a private memory's grid.
MOST_FEATURES = 1_000
# How many times in the span are looked at for the features' pivots.
NUM_CANDIDATES = 50_000
# Up to twice as many rows are kept, evenly spread, and the last ones, from which a private memory goes on.
NUM_KEPT, NUM_LAST = 2_000, 200
# A block has at most as many.
MOST_ROWS = 32_768


@dataclass(frozen=True, repr=False)
class SummedRows:
    """A long table as ``fit_gibbs`` and ``fit_vb`` take it in the place of inputs and y; what ``sum_rows`` returns.

    ``loc`` and ``scale`` (output,) are the observed mean and sd that were taken out of each output, or 0 and 1.
    ``num_rows`` and ``num_observed`` (output,) count rows and cells. ``inputs`` (time,) and ``y`` (time, output),
    standardised as the sums, are a few thousand of the rows: evenly spread ones, the last ones, and times without a
    cell at which the latents' features are pinned. A fit's draws of x and all that is made of them (shares, figures,
    log likelihoods) are of these; gates, loadings, noise and predictions are of all rows.
    """

    model: ALPS
    inputs: Float[Array, " time"]
    y: Float[Array, "time output"]
    features: Features
    stats: Statistics
    loc: Float[np.ndarray, " output"]
    scale: Float[np.ndarray, " output"]
    num_rows: int

    @property
    def num_observed(self) -> Int[np.ndarray, " output"]:
        """How many cells of each output are there."""
        return np.asarray(self.stats.num_observed).round().astype(int)

    def check_model(self, model: ALPS, y: Any = None) -> None:
        """A ValueError unless the sums are those that ``model`` needs: of its covariances, memories and outputs."""
        if y is not None:
            raise ValueError("y: sum_rows has seen all cells already; leave y out")
        parts = ("latents", "outputs", "covariances", "private_memory", "unknown_scales", "noise_df")
        (needed, shape), (summed, summed_shape) = (
            jax.tree.flatten([getattr(m, part) for part in parts]) for m in (model, self.model)
        )
        if str(shape) != str(summed_shape) or not all(map(np.array_equal, needed, summed)):
            raise ValueError(
                "inputs: these sums are of a model with other latents, outputs, covariances or private memories; call "
                "sum_rows for this one"
            )

    def __repr__(self):
        return f"SummedRows({self.num_rows:,} rows of {len(self.model.outputs)} outputs)"


def moved(sums: Sums, by: Float[np.ndarray, " output"], pattern: Int[np.ndarray, " output"]) -> Sums:
    """The sums of y + ``by``, from those of columns of which the last is 1."""
    one = sums.gram[..., pattern, -1, :]
    squares = sums.squares + 2 * by * sums.projection[..., -1] + by**2 * one[..., -1]
    return sums._replace(projection=sums.projection + by[:, None] * one, squares=squares)


def sum_rows(
    model: ALPS,
    chunks: Iterable[tuple[Any, Any]],
    *,
    span: tuple[float, float] | None = None,
    num_rows: int | None = None,
    standardise: bool = True,
    progress_bar: bool = True,
) -> SummedRows:
    """Pass once over a long table, and keep the sums that a fit needs of it.

    Memory doesn't grow with the rows, and neither does what a sweep costs: ``fit_gibbs(model, rows, rng_key=key)``.

    Parameters
    ----------
    model
        The ``ALPS``, of at most 1,000 features in all: cycles, trends and smooth covariances, but no rough ones.
    chunks
        (inputs, y) of consecutive rows: (row,) and (row, output), with NaN for a missing cell; ``alps.ParquetRows``
        gives them. With a private memory rows are in the order of time. Where ``jax.process_count()`` is above 1, those
        of this process.
    span
        The first and the last time of all rows. Left out, ``chunks.span``.
    num_rows
        How many there will be, for the progress bar. Left out, ``chunks.num_rows`` if it is there.
    standardise
        Whether to take each output's observed mean out, and to divide it by its sd.
    progress_bar
        Whether to show one.

    Raises a ValueError or TypeError that names the row where a chunk isn't what it should be, and for a model that
    needs every cell: one with rough latents or Student's noise, or, in several processes, with private memories.
    """
    _check_model(model)
    span = getattr(chunks, "span", None) if span is None else span
    num_rows = getattr(chunks, "num_rows", None) if num_rows is None else num_rows
    if span is None or np.shape(span) != (2,):
        raise ValueError(f"span: expected the first and the last time of all chunks, got {checks.short(span)}")
    low, high = (float(end) for end in checks.numbers("span", span))
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"span: expected the first time and a later last one, got {span}")
    with jax.enable_x64(True):
        basis = _basis(model, low, high)
        done = _Pass(model, basis)
        with tqdm(total=num_rows, desc="rows", disable=not progress_bar, unit="row", unit_scale=True) as bar:
            for inputs, y in chunks:
                done.add(*_checked(model, inputs, y, low, high, done))
                bar.update(len(inputs))
        done.gather()
    done.check_features(model)
    return _summed(model, done, standardise)


def _check_model(model: ALPS) -> None:
    checks.instance("model", model, ALPS, "an alps_ppl.ALPS")
    if model.tails is not None:
        raise ValueError("noise_df: Student's noise needs every cell, and sum_rows keeps sums; leave it out")
    if model.covariance_bounds:
        raise ValueError("covariance_bounds: only SVI learns them, which needs every row; pass covariance_ranges")
    if model.private_memory is not None and jax.process_count() > 1:
        raise ValueError(
            "private_memory: its filters run along all rows, in one process; its devices share the grid's points"
        )


def _basis(model: ALPS, low: float, high: float):
    """The features by (covariance, pivots' times, Cholesky factor there), chosen at times all over the span."""
    between = np.random.default_rng(0).uniform(low, high, NUM_CANDIDATES)
    candidates = jnp.asarray(np.sort(np.concatenate([[low, high], between])))
    try:
        features = latent_features(
            model.covariances,
            candidates,
            names=model.latents,
            max_rank=MOST_FEATURES,
            states=False,
            unknown=by_latents(model),
        )
    except RankError as error:
        what = str(error).partition(":")[0]
        raise ValueError(
            f"{what}: between the times {low:g} and {high:g} it needs more than {MOST_FEATURES:,} features, too many "
            "for sums; a rough latent's states need every row: leave it out, or fit a part of the table"
        ) from None
    if features.num_features > MOST_FEATURES:
        raise ValueError(
            f"model: its latents have {features.num_features:,} features between the times {low:g} and {high:g}, of "
            f"which sum_rows takes {MOST_FEATURES:,}; leave some out, or fit a part of the table"
        )
    parts = zip(features.rest, features.pivots, features.pivot_tril, strict=True)
    return tuple((rest, features.times[pivots], tril) for rest, pivots, tril in parts)


def _checked(model: ALPS, inputs: Any, y: Any, low: float, high: float, done: "_Pass"):
    """A chunk's times and cells in float64; an error names the row of the whole table."""
    times = np.asarray(checks.numbers("inputs", inputs))
    where = f"rows {done.num_rows:,} to {done.num_rows + len(times):,}"
    if times.ndim != 1:
        raise ValueError(f"inputs: expected one column of times in {where}, got shape {times.shape}")
    wrong = ~((times >= low) & (times <= high))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"inputs: expected times between {low:g} and {high:g}, the span, got {times[row]:g} in row "
            f"{done.num_rows + row:,}"
        )
    if model.private_memory is not None:
        back = np.diff(np.append(done.last, times)) < 0
        if back.any():
            row = done.num_rows + int(back.argmax())
            raise ValueError(f"inputs: a private memory needs rows in the order of time, but row {row:,} is earlier")
    cells = np.asarray(checks.numbers("y", y))
    if cells.shape != (len(times), len(model.outputs)):
        expected = (len(times), len(model.outputs))
        raise ValueError(f"y: expected shape {expected} in {where}, a column for each output, got {cells.shape}")
    infinite = np.isinf(cells)
    if infinite.any():
        row, column = np.argwhere(infinite)[0]
        raise ValueError(
            f"y: expected numbers, or NaN where a cell is missing, got {cells[row, column]} in row "
            f"{done.num_rows + int(row):,} of output {model.outputs[column]!r}"
        )
    return times, cells


class _Pass:
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
        step = np.lcm(ROWS_AT_A_TIME, self.mesh.size)
        times, y, seen = padded(times, (y, seen), -(-rounded_up(len(times)) // step) * step)
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


def _summed(model: ALPS, done: _Pass, standardise: bool) -> SummedRows:
    """The statistics of the standardised outputs, the rows that are kept, and the features at both."""
    basis = done.basis
    pattern, white = done.pattern, done.white
    shift = np.nan_to_num(done.shift)
    count = white.gram[pattern, -1, -1]
    mean = white.projection[:, -1] / np.maximum(count, 1)
    loc, scale = np.zeros(len(mean)), np.ones(len(mean))
    if standardise:
        sd = np.sqrt(np.maximum(moved(white, -mean, pattern).squares, 0) / np.maximum(count, 1))
        loc, scale = shift + mean, np.where(sd > 1e-12 * np.abs(shift + mean), sd, 1.0)
    white = moved(white, shift - loc, pattern)
    array = partial(jnp.asarray, dtype=jnp.zeros(0).dtype)

    def scaled(sums: Sums) -> tuple:
        return sums.gram[..., :-1, :-1], sums.projection[..., :-1] / scale[:, None], sums.squares / scale**2

    times, cells = done.rows()
    pivot_times = [pivots for _, pivots, _ in basis]
    pins = np.concatenate(pivot_times)
    ends = np.cumsum([len(times), *map(len, pivot_times)])
    factors = [(np.arange(a, b), tril) for a, b, (_, _, tril) in zip(ends[:-1], ends[1:], basis, strict=True)]
    inputs = array(np.concatenate([times, pins]))
    y = array(np.concatenate([(cells - loc) / scale, np.full((len(pins), len(loc)), np.nan)]))
    features = assemble(model.covariances, inputs, factors, [], by_latents(model))
    gram, projection, squares = map(array, scaled(white))
    stats = Statistics(
        gram=gram,
        pattern=jnp.asarray(pattern),
        projection=projection,
        sum_squares=squares,
        num_observed=array(count),
        owner=jnp.asarray(features.owner),
        scales=tuple(
            scale_statistics(one, unknown.grid.log_prior, features, array)
            for one, unknown in zip(features.families, model.unknown_scales.values(), strict=True)
        ),
    )
    if done.private_memory is not None:
        num_points = len(done.private_memory.share)
        sums, half_log_det = jax.tree.map(lambda part: part[:num_points], done.private[:2])
        private = map(array, scaled(moved(sums, shift - loc, pattern)))
        stats = stats._replace(
            private=PrivateStatistics(
                PrivateMemory(*(array(values[:num_points]) for values in done.grid)),
                *private,
                half_log_det=array(half_log_det[:, pattern]),
            )
        )
    return SummedRows(model, inputs, y, features, stats, loc, scale, done.num_rows)
