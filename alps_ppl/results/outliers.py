"""Cells that weigh little where noise is Student's."""

import numpy as np
import pandas as pd
from jaxtyping import Float

from alps_ppl import checks
from alps_ppl.gibbs.posterior import GibbsFit
from alps_ppl.results.fits import Fit, time_coordinate

# A cell of less weight, at four degrees of freedom one of about seven sds, stands out.
LIGHT = 0.1


def outliers(fit: Fit, *, weight: float = LIGHT) -> pd.DataFrame:
    """The observed cells whose weight is below this, the lightest first: time, output, value and ``weight``.

    A cell's weight is the posterior mean of 1 / v, v the factor of its noise variance (``ALPS(noise_df=...)``); at four
    degrees of freedom a cell z sds off has about 5 / (4 + z^2). ``time`` and ``value`` are as fitted; of inputs of
    several columns, ``time`` is the row.

    Raises a TypeError or ValueError for what isn't a Gibbs fit with Student's noise.
    """
    checks.in_range("weight", weight, 0.0, 1.0)
    weights, y = cell_weights(fit), np.asarray(fit.y)
    row, column = np.nonzero(weights < weight)
    time = np.asarray(time_coordinate(fit.inputs)["time"])
    cells = {"time": time[row], "output": np.array(fit.model.outputs)[column], "value": y[row, column]}
    found = pd.DataFrame(cells | {"weight": weights[row, column]})
    return found.sort_values("weight", kind="stable", ignore_index=True)


def cell_weights(fit: Fit) -> Float[np.ndarray, "time output"]:
    """Each cell's weight, see ``outliers``; NaN where it is missing."""
    checks.instance("fit", fit, GibbsFit, "what fit_gibbs or from_mcmc returned; no other engine draws the factors")
    if fit.model.tails is None:
        raise ValueError("fit: expected one of a model with Student's noise, ALPS(noise_df=4.0)")
    points = np.asarray(fit.samples["noise_factor"])
    precision = 1 / fit.model.tails.variance
    mean = sum(value * (points == point).mean((0, 1)) for point, value in enumerate(precision))
    return np.where(np.isnan(np.asarray(fit.y)), np.nan, mean)
