"""Which of these processes are really behind my series? GP-ALPS in NumPyro.

``model``: the program. ``svi`` and ``gibbs``: the two engines that fit it. ``results``: what one does with a fit.
``tables``: series from files. ``app``: the command line. Names that need pandas, xarray, ArviZ or matplotlib load when
they are first used, so that importing this package costs little more than importing NumPyro.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.gibbs.kernel import ALPSGibbs
from alps_ppl.gibbs.posterior import GibbsFit, from_mcmc
from alps_ppl.gibbs.streaming import SummedRows, sum_rows
from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import linear, linear_periodic, on_column, white
from alps_ppl.model.memory import PrivateMemory, private_memory
from alps_ppl.model.processes import GaussianProcess, SparseGaussianProcess
from alps_ppl.model.walks import integrated_walk, random_walk, step
from alps_ppl.svi.fit import NonFiniteLossError, fit_svi
from alps_ppl.svi.guide import StructuredMeanField
from alps_ppl.svi.optimisation import relaxed_program
from alps_ppl.svi.posterior import SVIFit, discrete_elbo, init_from_svi
from alps_ppl.svi.temperature import annealed_temperature
from alps_ppl.vb.fit import fit_vb
from alps_ppl.vb.posterior import VBFit, init_from_vb

if TYPE_CHECKING:
    from alps_ppl.app.backtest import backtest
    from alps_ppl.app.calibrate import calibrate
    from alps_ppl.app.many import fit_many
    from alps_ppl.results import plots
    from alps_ppl.results.cell_trees import cell_tree
    from alps_ppl.results.cycles import cycles
    from alps_ppl.results.engines import align_signs, compare_engines
    from alps_ppl.results.files import load, load_conversion, save
    from alps_ppl.results.inclusion import gate_diagnostics, gate_vectors, inclusion_table, num_active
    from alps_ppl.results.innovations import innovation_checks
    from alps_ppl.results.outliers import outliers
    from alps_ppl.results.prediction import log_predictive_density, predict
    from alps_ppl.results.refits import ArvizWrapper
    from alps_ppl.results.scales import interchangeable, scales
    from alps_ppl.results.selection import inclusion_sensitivity, prune
    from alps_ppl.results.shares import variance_shares
    from alps_ppl.results.trees import to_datatree
    from alps_ppl.tables.data import Data
    from alps_ppl.tables.grammar import covariance
    from alps_ppl.tables.parquet_rows import ParquetRows
    from alps_ppl.tables.reading import read_table
    from alps_ppl.tables.splitting import split_table

_LAZY = {
    "app.backtest": "backtest",
    "app.calibrate": "calibrate",
    "app.many": "fit_many",
    "results": "plots",
    "results.cell_trees": "cell_tree",
    "results.cycles": "cycles",
    "results.engines": "align_signs compare_engines",
    "results.files": "load load_conversion save",
    "results.inclusion": "gate_diagnostics gate_vectors inclusion_table num_active",
    "results.innovations": "innovation_checks",
    "results.outliers": "outliers",
    "results.prediction": "log_predictive_density predict",
    "results.refits": "ArvizWrapper",
    "results.scales": "interchangeable scales",
    "results.selection": "inclusion_sensitivity prune",
    "results.shares": "variance_shares",
    "results.trees": "to_datatree",
    "tables.data": "Data",
    "tables.grammar": "covariance",
    "tables.parquet_rows": "ParquetRows",
    "tables.reading": "read_table",
    "tables.splitting": "split_table",
}
_MODULE = {name: module for module, names in _LAZY.items() for name in names.split()}

# fmt: off
__all__ = [
    "ALPS", "ALPSGibbs", "ArvizWrapper", "Data", "GaussianProcess", "GibbsFit", "NonFiniteLossError", "ParquetRows",
    "PrivateMemory", "SVIFit", "SparseGaussianProcess", "StructuredMeanField", "SummedRows", "VBFit", "align_signs",
    "annealed_temperature", "backtest", "calibrate", "cell_tree", "compare_engines", "covariance", "cycles",
    "discrete_elbo", "fit_gibbs", "fit_many", "fit_svi", "fit_vb", "from_mcmc", "gate_diagnostics", "gate_vectors",
    "inclusion_sensitivity", "inclusion_table", "init_from_svi", "init_from_vb", "innovation_checks", "integrated_walk",
    "interchangeable", "linear", "linear_periodic", "load", "load_conversion", "log_predictive_density", "num_active",
    "on_column", "outliers", "plots", "predict", "private_memory", "prune", "random_walk", "read_table",
    "relaxed_program", "save", "scales", "split_table", "step", "sum_rows", "to_datatree", "variance_shares", "white",
]
# fmt: on


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("alps-ppl")
    if name not in _MODULE:
        raise AttributeError(f"module 'alps_ppl' has no attribute {name!r}")
    module = import_module(f"alps_ppl.{_MODULE[name]}")
    return import_module("alps_ppl.results.plots") if name == "plots" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
