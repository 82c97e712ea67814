"""ArviZ trees for ArviZ's functions of y, of the prior and of leave-one-out cross-validation."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool
from numpyro import handlers
from numpyro.infer import Predictive

from alps_ppl import checks
from alps_ppl.model.alps import ALPS
from alps_ppl.results.fits import Fit, check_fit
from alps_ppl.results.left_out import check_left_out, left_out
from alps_ppl.results.trees import DERIVED, DIMS, PATHS, tree_of


def cell_tree(
    fit: Fit, *, num_draws: int | None = None, integrate_latents: bool = False, num_prior: int = 0
) -> xr.DataTree:
    """``to_datatree``'s tree with y over the observed cells in every group: what ArviZ's functions of y can read.

    They can't do with NaN, or with a log likelihood of another shape than y's. Here posterior_predictive,
    log_likelihood and observed_data have one dimension ``cell``, row by row, with the coordinates ``time`` and
    ``output``. The posterior has ``f`` (chain, draw, cell) besides, the outputs without noise, and ``noise_scale``
    (chain, draw, output); constant_data has ``cell_time``. Which of ArviZ's functions that is for: docs/arviz.md.
    The functions of this package take the fit or ``to_datatree``'s tree.

    Parameters
    ----------
    fit
        Of ``fit_svi``, ``fit_vb``, ``fit_gibbs``, ``from_mcmc`` or ``load``.
    num_draws
        At most so many of each chain, evenly spread; None: all. Three variables have a number per draw and cell, and
        x one per draw, latent and time.
    integrate_latents
        Whether log_likelihood is each cell's log density given the other cells, H, the gates and the noise, with the
        latents integrated out, and posterior_predictive draws from that density. ``arviz_stats.loo`` then reweights
        draws of few parameters, not of whole paths (Vehtari et al. 2016, integrated importance sampling). For draws
        of ``fit_gibbs`` without Student's noise; each costs cells x features^2.
    num_prior
        With any, ``prior`` and ``prior_predictive`` have so many draws of the program, x left out, and ``log_prior``
        the log prior density of each site but x in the posterior's draws.

    Raises a TypeError for what isn't a fit, and a ValueError for draws that aren't finite, or where the latents can't
    be integrated out.
    """
    from arviz_base import from_dict

    check_fit(fit)
    if num_draws is not None:
        checks.whole_number("num_draws", num_draws)
    checks.whole_number("num_prior", num_prior, least=0)
    exact = check_left_out(fit) if integrate_latents else None
    tree = tree_of(fit, x=True, y=exact is None, num_draws=num_draws)
    posterior, observed = tree["posterior"].to_dataset(), ~np.isnan(np.asarray(fit.y))
    sites = _sites(fit.model, posterior)
    groups: dict[str, Any] = {}
    if exact is not None:
        density, draws = left_out(exact, sites, jax.random.key(0))
        groups = {"log_likelihood": {"y": density}, "posterior_predictive": {"y": draws}}
    if num_prior:
        groups |= _prior_draws(fit.model, fit.inputs, num_prior)
        densities = jax.tree.map(np.asarray, _log_prior(fit.model, fit.inputs, sites))
        tree["log_prior"] = from_dict({"log_prior": densities})["log_prior"]
    coords = {name: posterior[name].values for name in ("latent", "output", "time")}
    for name, group in from_dict(jax.tree.map(np.asarray, groups), dims=DIMS, coords=coords).children.items():
        tree[name] = group
    f = (posterior["H"] * posterior["b"]).dot(posterior["x"], dim="latent").transpose("chain", "draw", "time", "output")
    # Without its coordinates: here time and output are dimensions of other variables.
    f = over_cells(f, observed).drop_vars(["time", "output"])
    scale = ("chain", "draw", "output"), np.sqrt(np.asarray(fit.model.noise_variances(sites)))
    tree["posterior"] = xr.DataTree(posterior.assign(f=f, noise_scale=scale))
    for name in ("posterior_predictive", "log_likelihood", "prior_predictive", "observed_data"):
        if name in tree.children:
            tree[name] = xr.DataTree(over_cells(tree[name].to_dataset()["y"], observed).to_dataset(name="y"))
    times = tree["observed_data"].to_dataset()["time"].values
    tree["constant_data"]["cell_time"] = xr.DataArray(times, dims="cell", coords={"cell": np.arange(len(times))})
    return tree


def over_cells(values: xr.DataArray, observed: Bool[np.ndarray, "time output"]) -> xr.DataArray:
    """(time, output) as one dimension ``cell``, the observed ones row by row; as it is if that is done already."""
    row, column = np.nonzero(observed)
    if "cell" in values.dims:  # since some are missing
        values = values.rename(cell_time="time", cell_output="output")
    else:
        values = values.isel(time=xr.DataArray(row, dims="cell"), output=xr.DataArray(column, dims="cell"))
    return values.assign_coords(cell=np.arange(len(row)))


@partial(jax.jit, static_argnames="num_draws")
def _prior_draws(model: ALPS, inputs: Array, num_draws: int) -> dict[str, dict[str, Array]]:
    """One chain of draws of the program, all sites but x and y, and y by itself."""
    names = ["y", "b", "H", "noise_variance", "inclusion_prob", "memory", *model.scale_sites]
    draw = Predictive(model.program, num_samples=num_draws, return_sites=names, parallel=True)
    draws = {name: values[None] for name, values in draw(jax.random.key(1), inputs).items()}
    y = draws.pop("y")
    return {"prior": draws | {"b": model.gates(draws["b"])}, "prior_predictive": {"y": y}}


@jax.jit
def _log_prior(model: ALPS, inputs: Array, sites: dict[str, Array]) -> dict[str, Array]:
    """The log prior density of each site but x, whose covariance may be singular, in every draw (chain, draw)."""
    x = jnp.zeros((len(model.latents), len(inputs)), inputs.dtype)

    def of_draw(draw: dict[str, Array]) -> dict[str, Array]:
        program = handlers.seed(handlers.substitute(model.program, draw | {"x": x}), 0)
        trace = handlers.trace(program).get_trace(inputs)
        return {name: trace[name]["fn"].log_prob(draw[name]).sum() for name in draw}

    return jax.lax.map(lambda chain: jax.lax.map(of_draw, chain), sites)


def _sites(model: ALPS, posterior: xr.Dataset) -> dict[str, Array]:
    """The program's sites but paths, in a tree's draws, (chain, draw, ...); the gates by gate."""
    sites = {str(n): jnp.asarray(v.values) for n, v in posterior.items() if n not in (*PATHS, *DERIVED)}
    return sites | {"b": sites["b"][..., model.first]}
