"""ArviZ's cross-validation by refitting: ``reloo``, ``loo_kfold`` and ``lfo_cv``."""

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from arviz_stats import SamplingWrapper
from jaxtyping import Array, Float, Int

from alps_ppl import checks
from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.results.cell_trees import cell_tree, over_cells
from alps_ppl.results.fits import Fit, check_fit, time_coordinate
from alps_ppl.results.left_out import check_all_rows
from alps_ppl.results.prediction import log_densities, predictive
from alps_ppl.results.trees import tree_of
from alps_ppl.svi.fit import fit_svi
from alps_ppl.vb.fit import fit_vb

ENGINES: dict[str, Callable[..., Fit]] = {"svi": fit_svi, "vb": fit_vb, "gibbs": fit_gibbs}


class ArvizWrapper(SamplingWrapper):
    """Fits again without some cells, as ``arviz_stats``' ``reloo``, ``loo_kfold`` and ``lfo_cv`` ask for it.

    Cells are those of ``cell_tree``, by number, and a cell's log density is given a draw of the refit: of the latents
    and all else, its own noise factor drawn, an output's own memory integrated out. ``lfo_cv`` wants
    ``time_dim="cell"``, rows in the order of time, and a horizon of one cell: those ahead are taken as independent
    given a draw, which a memory makes wrong.

    Parameters
    ----------
    fit
        What was fitted to all cells. It is fitted again by the same engine.
    rng_key
        A JAX key, of every refit.
    tree
        ``cell_tree(fit)``, perhaps with latents integrated out; None makes it.
    settings
        Of ``fit_svi``, ``fit_vb`` or ``fit_gibbs``, which the fit itself doesn't know: as for the first fit, or the
        comparison is with other settings.

    Raises a TypeError for what isn't a fit and for unknown settings, and a ValueError for a fit of ``sum_rows``.
    """

    def __init__(self, fit: Fit, *, rng_key: Array, tree: xr.DataTree | None = None, **settings: Any):
        check_fit(fit)
        check_all_rows(fit)
        checks.prng_key(rng_key)
        known = set(inspect.signature(ENGINES[fit.engine]).parameters) - {"model", "inputs", "y", "rng_key"}
        if unknown := sorted(set(settings) - known):
            raise TypeError(f"settings: expected some of fit_{fit.engine}'s, {sorted(known)}, got {unknown}")
        if tree is not None and "cell" not in tree["observed_data"].dims:
            raise ValueError("tree: expected cell_tree(fit), whose y runs over cells, got another tree")
        self.fit, self.settings = fit, {"rng_key": rng_key, "progress_bar": False} | settings
        super().__init__(fit.model, idata_orig=cell_tree(fit) if tree is None else tree)

    def sel_observations(self, idx: Any) -> tuple[Float[np.ndarray, "time output"], Int[np.ndarray, " cell"]]:
        """The data without these cells, NaN in their place, and the cells' numbers."""
        y = np.array(self.fit.y)
        row, column = np.nonzero(~np.isnan(y))
        y[row[idx], column[idx]] = np.nan
        return y, np.asarray(idx)

    def sample(self, modified_observed_data: Float[np.ndarray, "time output"]) -> Fit:
        """The fit to what is left of y."""
        return ENGINES[self.fit.engine](self.fit.model, self.fit.inputs, modified_observed_data, **self.settings)

    def get_inference_data(self, fitted_model: Fit) -> xr.DataTree:
        """The refit's posterior without paths, and the log density of the cells that it hasn't seen."""
        fit, observed = fitted_model, ~np.isnan(np.asarray(self.fit.y))
        num_chains, num_draws = np.shape(fit.samples["b"])[:2]
        unseen = jnp.where(jnp.isnan(fit.y), self.fit.y, jnp.nan)
        density = log_densities(predictive(fit, fit.inputs, num_chains * num_draws), unseen)
        coords = {"output": list(fit.model.outputs), "time": time_coordinate(fit.inputs)["time"]}
        values = density.reshape(num_chains, num_draws, *fit.y.shape)
        y = over_cells(xr.DataArray(values, coords, ("chain", "draw", "time", "output")), observed)
        tree = tree_of(fit)
        tree["log_likelihood"] = xr.DataTree(y.isel(cell=~np.isnan(y[0, 0].values)).to_dataset(name="y"))
        return tree

    def log_likelihood__i(self, excluded_obs: Int[np.ndarray, " cell"], idata__i: xr.DataTree) -> xr.DataArray:
        """The log density of the cells that were left out in each draw, (chain, draw, cell)."""
        return idata__i["log_likelihood"].to_dataset()["y"].sel(cell=excluded_obs)
