"""Whether what a model leaves of the outputs is the noise that it says: independent over times and over outputs.

An innovation is what a cell differs by from what is expected of it given a draw of f and the output's earlier cells, in
sds: (y - f) / sigma, and with a private memory what its Kalman filter leaves. At the truth innovations are independent
standard normals. So they are at a draw of the posterior, over tables from the model: a draw and its table have the same
joint distribution as the truth and its table (pivotal quantities; V. E. Johnson, Bayesian Analysis 2, 2007). A test of
one draw's innovations is therefore exact where the engine is. The median of many draws' p-values is at most p with a
probability of at most 2 p, whatever their dependence, and twice it is what is said.
"""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float
from numpyro import handlers
from scipy import stats

from alps_ppl import checks
from alps_ppl.gibbs.posterior import GibbsFit
from alps_ppl.model.alps import ALPS
from alps_ppl.model.memory import OutputNoise

NUM_DRAWS, FEWEST_DRAWS = 50, 5
# That paths and innovations may have, all draws together.
NUMBERS = 20_000_000
# Fewer pairs of cells have no correlation to speak of.
FEWEST_PAIRS = 12
# Ljung and Box's statistic has a heavier tail than its chi-square where cells aren't many: of 60, .023 of white noise's
# are beyond a hundredth. So small p-values are those of simulated white noise; more cells, and p-values far beyond
# doubt, are left as they are.
NUM_SIMULATED, MOST_CELLS, SMALL, BEYOND_DOUBT = 10_000, 2_000, 0.05, 1e-12
# Of all rows together, where nothing is wrong; and a smaller correlation is no matter, however many cells tell it.
LEVEL, LEAST_CORRELATION = 0.01, 0.1
COLUMNS = ["check", "output", "other", "lag", "correlation", "p_value"]


def innovation_checks(fit: GibbsFit, *, num_draws: int = NUM_DRAWS) -> pd.DataFrame:
    """Tests of the innovations, the least probable first: a row per output and per pair of outputs.

    ``check`` is "over time", Ljung and Box's test of an output's autocorrelations, or "between outputs", of two
    outputs' correlation within a row. ``correlation`` is the mean over draws, over time that of the ``lag`` (rows,
    missing cells among them) where it is largest in size. ``p_value`` is for the one row: multiply it by the number of
    rows. Small ones say that an output swings, jumps or follows another in a way that no process and no memory here can
    say; then a gate may say it. Inputs of several columns have no order, and no row "over time".

    Parameters
    ----------
    fit
        Of ``fit_gibbs`` or ``from_mcmc``: the draws of other engines aren't the posterior's, nor paths.
    num_draws
        At most so many draws, evenly spread over the chains; fewer of long tables, five at least.

    Raises a TypeError for what is none of these, and a ValueError for a fit of sums, which has no rows.
    """
    checks.instance("fit", fit, GibbsFit, "what fit_gibbs or from_mcmc returned; no other engine draws paths of f")
    checks.whole_number("num_draws", num_draws)
    if fit.features.num_rows:
        raise ValueError("fit: expected one of rows, got one of their sums; what each row leaves isn't kept")
    size = fit.y.shape[0] * max(len(fit.model.latents), fit.y.shape[1])
    z = innovations(fit, min(num_draws, max(FEWEST_DRAWS, NUMBERS // size)))
    inputs, outputs = np.asarray(fit.inputs), fit.model.outputs
    rows: list[dict[str, Any]] = []
    if inputs.ndim == 1:
        z = z[:, np.argsort(inputs, kind="stable")]
        rows += [
            {"check": "over time", "output": name, "other": "", **over_time(z[..., i])}
            for i, name in enumerate(outputs)
        ]
    rows += [
        {"check": "between outputs", "output": outputs[i], "other": outputs[j], **between(z[..., i], z[..., j])}
        for i in range(len(outputs))
        for j in range(i)
    ]
    table = pd.DataFrame([row for row in rows if "p_value" in row], columns=COLUMNS)
    return table.sort_values("p_value", kind="stable", ignore_index=True)


def suspicious(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``innovation_checks`` that chance makes in at most one table of a hundred, all rows together."""
    return table[(table.p_value * len(table) <= LEVEL) & (table.correlation.abs() >= LEAST_CORRELATION)]


def innovations(fit: GibbsFit, num_draws: int = NUM_DRAWS) -> Float[np.ndarray, "draw time output"]:
    """Each cell's innovation at some draws, in the order of the rows; NaN where a cell is missing."""
    sites = fit.thin_paths(num_draws)
    return np.where(np.isnan(np.asarray(fit.y)), np.nan, np.asarray(_innovations(fit.model, sites, fit.inputs, fit.y)))


@jax.jit
def _innovations(model: ALPS, sites: dict[str, Array], inputs: Array, y: Array) -> Float[Array, "draw time output"]:
    def of_draw(draw):
        fn = handlers.trace(handlers.substitute(model.program, draw)).get_trace(inputs, y)["y"]["fn"]
        values = jnp.nan_to_num(y)
        if isinstance(fn, OutputNoise):
            return fn.innovations(values)
        while not hasattr(fn, "loc"):
            fn = fn.base_dist  # of a mask and plates
        return (values - fn.loc) / fn.scale

    return jax.lax.map(of_draw, {name: value for name, value in sites.items() if name != "weights"})


def over_time(z: Float[np.ndarray, "draw time"]) -> dict[str, Any]:
    """Ljung and Box's test of one output's innovations, with its lag of the largest correlation."""
    found = autocorrelations(z)
    if not found:
        return {}
    lag, r = max(found.items(), key=lambda row: abs(row[1].mean()))
    return {"lag": lag, "correlation": r.mean(), "p_value": _of_draws(white_p_values(z))}


def autocorrelations(z: Float[np.ndarray, "draw time"]) -> dict[int, Float[np.ndarray, " draw"]]:
    """Each draw's, by lag; of lags with enough pairs of cells, as many lags as a test of so many cells has."""
    number = int(np.isfinite(z[0]).sum())
    lags = range(1, min(int(10 * np.log10(max(number, 1))), number // 4) + 1)
    found = {lag: _correlation(z[:, :-lag], z[:, lag:]) for lag in lags}
    return {lag: r for lag, (r, pairs) in found.items() if pairs >= FEWEST_PAIRS}


def white_p_values(z: Float[np.ndarray, "draw time"]) -> Float[np.ndarray, " draw"]:
    """Of Ljung and Box's statistic for each draw."""
    seen = np.isfinite(z[0])
    statistic, num_lags = _ljung_box(z)
    p_values = stats.chi2.sf(statistic, num_lags)
    if seen.sum() > MOST_CELLS or not BEYOND_DOUBT < np.median(p_values) < SMALL:
        return p_values
    simulated = _simulated(seen.tobytes())
    # The last hundredth is as good as exponential, and goes on beyond what was simulated.
    last = simulated[-NUM_SIMULATED // 100 :]
    beyond = 0.01 * np.exp(-(statistic - last[0]) / (last - last[0]).mean())
    above = 1 - np.searchsorted(simulated, statistic) / NUM_SIMULATED
    return np.where(statistic > last[0], beyond, above)


def _ljung_box(z: Float[np.ndarray, "draw time"]) -> tuple[Float[np.ndarray, " draw"], int]:
    """The statistic and how many lags it sums."""
    seen, found = np.isfinite(z[0]), autocorrelations(z)
    number = seen.sum()
    pairs = {lag: (seen[:-lag] & seen[lag:]).sum() for lag in found}
    return sum(r**2 * pairs[lag] * (number + 2) / number for lag, r in found.items()), len(found)


@lru_cache(maxsize=64)
def _simulated(seen: bytes) -> Float[np.ndarray, " table"]:
    """The statistics of white noise in these cells, sorted."""
    cells, rng = np.frombuffer(seen, bool), np.random.default_rng(0)
    parts = [
        _ljung_box(np.where(cells, rng.normal(size=(NUM_SIMULATED // 20, len(cells))), np.nan))[0] for _ in range(20)
    ]
    return np.sort(np.concatenate(parts))


def between(z: Float[np.ndarray, "draw time"], other: Float[np.ndarray, "draw time"]) -> dict[str, Any]:
    """A test of two outputs' correlation within a row, by Fisher's z."""
    r, pairs = _correlation(z, other)
    if pairs < FEWEST_PAIRS:
        return {}
    p_values = 2 * stats.norm.sf(np.abs(np.arctanh(np.clip(r, -1 + 1e-12, 1 - 1e-12))) * np.sqrt(pairs - 3))
    return {"lag": 0, "correlation": r.mean(), "p_value": _of_draws(p_values)}


def _correlation(a: np.ndarray, b: np.ndarray) -> tuple[Float[np.ndarray, " draw"], int]:
    """Each draw's correlation of what is observed in both, around zero; and how many pairs these are."""
    seen = np.isfinite(a[0]) & np.isfinite(b[0])
    a, b, pairs = a[:, seen], b[:, seen], int(seen.sum())
    if pairs < FEWEST_PAIRS:
        return np.full(len(a), np.nan), pairs
    return (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1)), pairs


def _of_draws(p_values: Float[np.ndarray, " draw"]) -> float:
    return min(1.0, 2 * float(np.median(p_values)))
