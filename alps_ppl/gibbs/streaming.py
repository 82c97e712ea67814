"""``sum_rows``: a table that is too long to hold, as the sums that its sweeps need, from one pass over its rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from tqdm.auto import tqdm

from alps_ppl import checks
from alps_ppl.gibbs.features import Features, assemble, by_latents, latent_features
from alps_ppl.gibbs.pivots import RankError
from alps_ppl.gibbs.row_sums import RowSums, moved
from alps_ppl.gibbs.statistics import PrivateStatistics, Statistics, scale_statistics
from alps_ppl.gibbs.whitening import Sums
from alps_ppl.model.alps import ALPS
from alps_ppl.model.memory import PrivateMemory

# All latents together have at most as many features: they are held for a block of rows, and their Gram matrix for
# every point of a private memory's grid.
MOST_FEATURES = 1_000
# How many times in the span are looked at for the features' pivots.
NUM_CANDIDATES = 50_000


@dataclass(frozen=True, repr=False)
class SummedRows:
    """A large table as ``fit_gibbs`` and ``fit_vb`` take it in the place of inputs and y; what ``sum_rows`` returns.

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


def sum_rows(
    model: ALPS,
    chunks: Iterable[tuple[Any, Any]],
    *,
    span: tuple[float, float] | None = None,
    num_rows: int | None = None,
    standardise: bool = True,
    progress_bar: bool = True,
) -> SummedRows:
    """Pass once over a large table, and keep the sums that a fit needs of it.

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
    if not isinstance(chunks, Iterable) or isinstance(chunks, str) or hasattr(chunks, "shape"):
        raise TypeError(f"chunks: expected an iterable of (inputs, y), got {checks.short(chunks)}")
    span = getattr(chunks, "span", None) if span is None else span
    num_rows = getattr(chunks, "num_rows", None) if num_rows is None else num_rows
    if span is None or np.shape(span) != (2,):
        raise ValueError(f"span: expected the first and the last time of all chunks, got {checks.short(span)}")
    low, high = (float(end) for end in checks.numbers("span", span))
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"span: expected the first time and a later last one, got {span}")
    with jax.enable_x64(True):
        basis = _basis(model, low, high)
        done = RowSums(model, basis)
        with tqdm(total=num_rows, desc="rows", disable=not progress_bar, unit="row", unit_scale=True) as bar:
            for chunk in chunks:
                times, cells = _checked(model, chunk, low, high, done)
                done.add(times, cells)
                bar.update(len(times))
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


def _checked(model: ALPS, chunk: Any, low: float, high: float, done: RowSums):
    """A chunk's times and cells in float64; an error names the row of the whole table."""
    if not isinstance(chunk, (tuple, list)) or len(chunk) != 2:
        raise TypeError(f"chunks: expected pairs (inputs, y) of consecutive rows, got {checks.short(chunk)}")
    inputs, y = chunk
    columns = getattr(y, "columns", None)
    if columns is not None and list(map(str, columns)) != list(model.outputs):
        raise ValueError(
            f"y: expected the model's outputs as columns, {list(model.outputs)}, got {list(columns)}; pass "
            f"y[{list(model.outputs)}]"
        )
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
    if cells.ndim == 1 and len(model.outputs) == 1:
        cells = cells[:, None]
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


def _summed(model: ALPS, done: RowSums, standardise: bool) -> SummedRows:
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
    if not count.any():
        raise ValueError(f"y: every cell of its {done.num_rows:,} rows is missing (NaN); nothing to fit")
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
    features = assemble(model.covariances, inputs, factors, [], by_latents(model))._replace(num_rows=done.num_rows)
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
    if not standardise:
        model.check_data(inputs, y)  # which warns of outputs on another scale than the model's
    return SummedRows(model, inputs, y, features, stats, loc, scale, done.num_rows)
