"""Which of these processes are really behind my series? GP-ALPS in NumPyro.

Names that need pandas, xarray, ArviZ or matplotlib load when they are first used, so that importing this package costs
little more than importing NumPyro.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from alps_ppl.covariances import linear, linear_periodic, on_column
from alps_ppl.gibbs import ALPSGibbs
from alps_ppl.grammar import covariance
from alps_ppl.guide import StructuredMeanField
from alps_ppl.model import ALPS
from alps_ppl.processes import GaussianProcess, SparseGaussianProcess
from alps_ppl.svi import NonFiniteLossError, SVIFit, discrete_elbo, fit_svi, relaxed_program
from alps_ppl.temperature import annealed_temperature

if TYPE_CHECKING:
    from alps_ppl import plots
    from alps_ppl.contributions import variance_shares
    from alps_ppl.data import Data
    from alps_ppl.diagnostics import (
        align_signs,
        compare_engines,
        gate_diagnostics,
        gate_vectors,
        inclusion_table,
        num_active,
        to_datatree,
    )
    from alps_ppl.prediction import init_from_svi, log_predictive_density, predict
    from alps_ppl.selection import inclusion_sensitivity, prune
    from alps_ppl.storage import load, load_conversion, save
    from alps_ppl.tables import read_table, split_table

_LAZY = {
    "Data": "alps_ppl.data",
    "read_table": "alps_ppl.tables",
    "split_table": "alps_ppl.tables",
    "predict": "alps_ppl.prediction",
    "log_predictive_density": "alps_ppl.prediction",
    "to_datatree": "alps_ppl.diagnostics",
    "inclusion_table": "alps_ppl.diagnostics",
    "gate_diagnostics": "alps_ppl.diagnostics",
    "gate_vectors": "alps_ppl.diagnostics",
    "num_active": "alps_ppl.diagnostics",
    "init_from_svi": "alps_ppl.prediction",
    "align_signs": "alps_ppl.diagnostics",
    "compare_engines": "alps_ppl.diagnostics",
    "inclusion_sensitivity": "alps_ppl.selection",
    "prune": "alps_ppl.selection",
    "save": "alps_ppl.storage",
    "load": "alps_ppl.storage",
    "load_conversion": "alps_ppl.storage",
    "variance_shares": "alps_ppl.contributions",
}

__all__ = [
    "ALPS",
    "ALPSGibbs",
    "Data",
    "GaussianProcess",
    "NonFiniteLossError",
    "SVIFit",
    "SparseGaussianProcess",
    "StructuredMeanField",
    "align_signs",
    "annealed_temperature",
    "compare_engines",
    "covariance",
    "discrete_elbo",
    "fit_svi",
    "gate_diagnostics",
    "gate_vectors",
    "inclusion_sensitivity",
    "inclusion_table",
    "init_from_svi",
    "linear",
    "linear_periodic",
    "load",
    "load_conversion",
    "log_predictive_density",
    "num_active",
    "on_column",
    "plots",
    "predict",
    "prune",
    "read_table",
    "relaxed_program",
    "save",
    "split_table",
    "to_datatree",
    "variance_shares",
]


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module("alps_ppl.plots")
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'alps_ppl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
