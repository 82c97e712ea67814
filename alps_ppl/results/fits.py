"""What all results ask of a fit: that it is one, finite draws, and the coordinate of its times."""

from typing import Any

import numpy as np
from jaxtyping import Array, Float
from numpyro.infer import MCMC

from alps_ppl import checks
from alps_ppl.gibbs.posterior import WeightsFit
from alps_ppl.svi.posterior import SVIFit

Fit = SVIFit | WeightsFit
# Their draws are independent, and their gates' probabilities have no Monte Carlo error.
OF_A_FAMILY = ("svi", "vb")


def check_fit(fit: Any, name: str = "fit", expected: str = "what fit_svi, fit_vb, fit_gibbs or load returned") -> None:
    """A TypeError unless it is a fit of one of the engines."""
    if isinstance(fit, MCMC):
        raise TypeError(f"{name}: expected {expected}, got NumPyro's MCMC; alps.from_mcmc(mcmc) makes a fit of it")
    checks.instance(name, fit, Fit, expected)


def check_finite(**draws: Any) -> None:
    """A ValueError that names the draws among which some aren't finite numbers."""
    for name, values in draws.items():
        if not np.isfinite(np.asarray(values)).all():
            raise ValueError(
                f"fit: its draws of {name} hold values that aren't finite; fit again in 64-bit (numpyro.enable_x64()), "
                "or with y and mixing_variance on the same scale"
            )


def time_coordinate(inputs: Float[Array, "time *column"]) -> dict[str, Any]:
    """The ``time`` coordinate: the inputs themselves, or the rows' numbers beside ``inputs`` (time, column)."""
    values = np.asarray(inputs)
    if values.ndim == 1:
        return {"time": values}
    return {"time": np.arange(len(values)), "inputs": (("time", "column"), values)}
