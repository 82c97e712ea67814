"""What is wrong with an argument, in one wording: what was expected, what was got, what to do.

Called at the public doors only (``ALPS``, the fits, ``predict`` and the like); what lies behind them trusts its input.
"""

import reprlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.util import is_prng_key

# An output's variance this many times its expected variance, or this part of it, is in another unit.
OFF_SCALE = 1e4
FEW_INPUTS = 500


def short(value: Any) -> str:
    """``repr``, on one line and cut, for messages."""
    return " ".join(reprlib.repr(value).split())


def numbers(name: str, value: Any):
    """``value`` as a float64 NumPy array whatever JAX's precision; NaN where pandas or a mask says missing.

    A TypeError for what isn't real numbers or isn't rectangular. A traced array stays as it is.
    """
    if isinstance(value, jax.core.Tracer):
        return value
    wrong = TypeError(f"{name}: expected a number or a rectangular array of numbers, got {short(value)}")
    try:
        value = np.ma.filled(value.astype(float), np.nan) if isinstance(value, np.ma.MaskedArray) else value
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise wrong from None
    kinds = {array.dtype.kind, getattr(getattr(value, "dtype", None), "kind", "")}
    if "c" in kinds:
        raise TypeError(f"{name}: expected real numbers, got complex ones; pass real and imaginary parts as outputs")
    if kinds & set("mM"):
        raise TypeError(
            f"{name}: expected numbers, got dates or durations; alps.Data turns dates into hours or days, "
            "or divide by a duration yourself, e.g. (t - t[0]) / numpy.timedelta64(1, 'h')"
        )
    if value is None or kinds & set("UST"):
        raise wrong
    try:
        if array.dtype.kind == "O":  # pandas.NA, without importing pandas
            cells = [np.nan if cell is None or type(cell).__name__ == "NAType" else cell for cell in array.flat]
            return np.array(cells, np.float64).reshape(array.shape)
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise wrong from None


def in_range(name: str, value: Any, low: float, high: float = np.inf, *, ends: bool = True) -> float:
    """One finite number in [low, high], or in (low, high) without the ``ends``."""
    number = numbers(name, value)
    if number.shape != () or not (np.isfinite(number) and low <= number <= high and (ends or low < number < high)):
        between = f"from {low:g} to {high:g}" if ends else f"strictly between {low:g} and {high:g}"
        raise ValueError(f"{name}: expected a number {between}, got {short(value)}")
    return float(number)


def positive(name: str, value: Any, shapes: Sequence[tuple[int, ...]], described: str) -> np.ndarray:
    """Positive, finite numbers of one of these ``shapes``, which ``described`` says in words."""
    array = numbers(name, value)
    if array.shape not in shapes:
        raise ValueError(f"{name}: expected {described}, got shape {array.shape}")
    if not (np.isfinite(array) & (array > 0)).all():
        raise ValueError(f"{name}: expected positive, finite numbers, got {short(array.tolist())}")
    return array


def whole_number(name: str, value: Any, least: int = 1) -> None:
    """A ValueError unless ``value`` is a whole number of at least ``least``."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        expected = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
        raise ValueError(f"{name}: expected {expected}, got {short(value)}")


def prng_key(rng_key: Any) -> None:
    """A TypeError unless it is one JAX key."""
    if not is_prng_key(rng_key):
        raise TypeError(f"rng_key: expected a JAX key, e.g. jax.random.key(0), got {short(rng_key)}")


def instance(name: str, value: Any, kind: type | UnionType, expected: str) -> None:
    """A TypeError unless ``value`` is a ``kind``; ``expected`` says which, and where it comes from."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")


def output_names(outputs: int | Iterable[str]) -> tuple[str, ...]:
    """The names themselves, or y1, y2, ... for a number of outputs; an error for anything else."""
    if isinstance(outputs, (int, np.integer)) and not isinstance(outputs, bool):
        outputs = [f"y{i + 1}" for i in range(outputs)] if outputs != 1 else ["y"]
    if isinstance(outputs, str) or not isinstance(outputs, Iterable):
        raise TypeError(f"outputs: expected their number or a list of names, got {short(outputs)}")
    names = tuple(str(name) for name in outputs)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"outputs: expected at least one name and no name twice, got {list(names)}")
    return names


def times(inputs: Any, name: str = "inputs") -> Array:
    """Inputs (time,) or (time, column) as a float array in JAX's precision; one column alone becomes (time,)."""
    values = numbers(name, inputs)
    time_shape(name, values.shape)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if isinstance(values, jax.core.Tracer):
        return values
    every_time(name, values, values)
    array = jnp.asarray(values)
    if array.dtype == jnp.float32:
        _warn_if_rounded(values, name)
    return array


def time_shape(name: str, shape: tuple[int, ...]) -> None:
    """A ValueError unless it is that of inputs."""
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"{name}: expected shape (time,) or (time, column) and at least one time, got shape {shape}")


def every_time(name: str, values: np.ndarray, given: Any) -> None:
    """A ValueError that names the first row without a finite time, and what was ``given`` there."""
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise ValueError(f"{name}: expected a finite time in every row, got {given[row]} in row {row}; drop that row")


def by_time(name: str, y: Any, inputs: Any, num_outputs: int | None = None):
    """``y`` as ``numbers`` (time, output) at ``inputs``, of one output also from (time,); of any number if None."""
    values = numbers(name, y)
    if values.ndim == 1 and num_outputs in (1, None):
        values = values[:, None]
    found = values.shape[1] if values.ndim == 2 else 1
    expected = (len(inputs), found if num_outputs is None else num_outputs)
    if values.shape != expected:
        transposed = values.shape[1:] == (len(inputs),) and num_outputs in (None, len(values))
        hint = f"; this looks like its transpose: pass {name}.T" if transposed else ""
        raise ValueError(
            f"{name}: expected shape (time, output) = {expected} for inputs of shape {inputs.shape}, got "
            f"{values.shape}; rows are times, columns are outputs{hint}"
        )
    return values


def finite_or_missing(y: np.ndarray, outputs: Sequence[str]) -> None:
    """A ValueError that names the first infinite cell of y (time, output)."""
    if np.isinf(y).any():
        row, column = np.argwhere(np.isinf(y))[0]
        raise ValueError(
            f"y: expected finite numbers or NaN (a missing cell), got {y[row, column]} in row {row}, output "
            f"{outputs[column]!r}"
        )


def cells(y: Any, inputs: Array, outputs: Sequence[str]) -> Array:
    """``y`` (time, output) as a float array in JAX's precision, NaN where a cell is missing."""
    values = by_time("y", y, inputs, len(outputs))
    columns = getattr(y, "columns", None)
    if columns is not None and set(columns) == set(outputs) and list(columns) != list(outputs):
        raise ValueError(
            f"y: its columns are the model's outputs in another order, {list(columns)}; pass y[{list(outputs)}]"
        )
    if isinstance(values, jax.core.Tracer):
        return values
    finite_or_missing(values, outputs)
    if np.isnan(values).all():
        raise ValueError(f"y: every one of its {values.size} cells is missing (NaN); nothing to fit")
    if np.nanmax(np.abs(values)) > jnp.finfo(jnp.asarray(0.0).dtype).max:
        raise ValueError("y: some values overflow float32; rescale y or switch on 64-bit with numpyro.enable_x64()")
    return jnp.asarray(values)


def warn_if_off_centre(y: Array, outputs: Sequence[str]) -> None:
    """In float32 the sums of squares that a learnt noise comes from lose all their digits under a large mean."""
    if y.dtype != jnp.float32 or isinstance(y, jax.core.Tracer):
        return
    for output, column in zip(outputs, np.asarray(y, np.float64).T, strict=True):
        present = column[~np.isnan(column)]
        if present.size and abs(present.mean()) > 1e3 * present.std() > 0:
            warn_caller(
                f"y: output {output!r} has mean {present.mean():.3g} and sd {present.std():.2g}, too far from 0 for "
                "float32; subtract the mean (alps.Data does), or switch on 64-bit with numpyro.enable_x64()"
            )
            return


def some_of(inputs: Array) -> np.ndarray:
    """500 inputs, evenly spread, of fewer some repeatedly: enough to judge a covariance's size by, and of one shape."""
    return np.asarray(inputs)[np.linspace(0, len(inputs) - 1, FEW_INPUTS).round().astype(int)]


def warn_if_off_scale(y: Array, expected: np.ndarray, outputs: Sequence[str]) -> None:
    """Of an output whose size or mean is far from that which its priors say, every gate comes on, or none."""
    if isinstance(y, jax.core.Tracer):
        return
    for output, column, variance in zip(outputs, np.asarray(y, np.float64).T, expected, strict=True):
        present = column[~np.isnan(column)]
        own = present.var() if present.size else 0.0
        if own > OFF_SCALE * variance or 0 < own < variance / OFF_SCALE:
            warn_caller(
                f"y: output {output!r} has a variance of {own:.2g}, but mixing_variance and noise_variance "
                f"expect {variance:.2g}, and so the gates say little; standardise y (alps.Data does), or give both "
                "variances in its squared unit"
            )
            return
        # In 32-bit ``warn_if_off_centre`` has said it.
        off_centre = present.size and present.mean() ** 2 > OFF_SCALE * max(own, variance)
        if off_centre and y.dtype != jnp.float32:
            warn_caller(
                f"y: output {output!r} has mean {present.mean():.3g} and sd {own**0.5:.2g}, but no process has a mean; "
                "subtract it (alps.Data does)"
            )
            return


def _warn_if_rounded(values: np.ndarray, name: str) -> None:
    for column in values.reshape(len(values), -1).T:
        gaps = np.diff(np.unique(column))
        error = np.abs(column.astype(np.float32) - column).max()
        if gaps.size and error > 1e-2 * gaps.min():
            warn_caller(
                f"{name}: float32 moves them by up to {error:.2g} where neighbours are {gaps.min():.2g} apart; "
                "subtract the first time, or switch on 64-bit with numpyro.enable_x64()"
            )
            return


def warn_caller(message: str) -> None:
    """A UserWarning at the line that called this package, directly or through NumPyro and JAX."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("alps_ppl", "numpyro", "jax"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
