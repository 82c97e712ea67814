"""ArviZ trees of a fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array
from numpyro import handlers
from numpyro.infer import Predictive, log_likelihood

from alps_ppl import checks
from alps_ppl.model.alps import ALPS
from alps_ppl.model.covariances import period_of
from alps_ppl.model.scales import kind_of
from alps_ppl.results.fits import Fit, check_finite, check_fit, time_coordinate

# What a function takes that reads one tree of each engine.
Trees = Fit | xr.DataTree | Mapping[str, Fit | xr.DataTree]
# Draws as large as all times, and what is made of the sites: a file needs neither.
PATHS, DERIVED = ("x", "own_memory"), ("memory_share", "memory_lengthscale")
DIMS = {
    "b": ["latent"],
    "x": ["latent", "time"],
    "H": ["output", "latent"],
    "noise_variance": ["output"],
    "inclusion_prob": [],
    "memory": ["output"],
    "memory_share": ["output"],
    "memory_lengthscale": ["output"],
    "own_memory": ["time", "output"],
    "noise_factor": ["time", "output"],
    "y": ["time", "output"],
    "gate_prob": ["latent"],
    "prior_inclusion_prob": ["latent"],
    "covariance_group": ["latent"],
    "prior_of_group": ["latent"],
    "gate": ["latent"],
    "process": ["latent"],
    "period": ["latent"],
    "scale_site": ["latent"],
    "scale_parameter": ["latent"],
}


def to_datatree(fit: Fit, *, num_draws: int | None = None) -> xr.DataTree:
    """The posterior as an ArviZ DataTree with named coordinates ``latent``, ``output`` and ``time``.

    Groups: posterior (b, H, x and what else is learnt), sample_stats (``gate_prob``: the probability with which each
    gate was drawn, or rho for SVI; of a sampler ``lp``, too), posterior_predictive, log_likelihood, observed_data,
    constant_data, where ``process`` names the gate of each latent. An SVI fit gives one chain of 1,000 independent
    draws; its x are drawn from the marginals, so a draw isn't a path. With a private memory the posterior has
    ``own_memory``, r_i(t), and each output's memory_share and memory_lengthscale, and a cell's log likelihood is given
    the earlier ones of its output. With Student's noise it has ``noise_factor``, the points of the cells' factors. With
    missing cells log_likelihood runs over ``cell``, the observed ones only; ``cell_tree`` has all of y so. The tree's
    ``engine`` attribute is the engine's name. ``num_draws``: at most so many of each chain, evenly spread; None: all.
    Paths, y and the log likelihood have a number per draw and time: of long series take few draws.

    Raises a TypeError for what isn't a fit, and a ValueError for draws that aren't finite.
    """
    check_fit(fit)
    if num_draws is not None:
        checks.whole_number("num_draws", num_draws)
    return tree_of(fit, x=True, y=True, num_draws=num_draws)


def tree_of(fit: Fit, *, x: bool = False, y: bool = False, num_draws: int | None = None) -> xr.DataTree:
    """``to_datatree``'s tree, with x in the posterior and posterior_predictive and log_likelihood of y if need be."""
    from arviz_base import from_dict

    model = fit.model
    total = fit.samples["b"].shape[1]
    keep = np.linspace(0, total - 1, min(num_draws or total, total)).round().astype(int)
    sites = {name: fit.samples[name][:, keep] for name in fit.samples if x or name not in PATHS}
    check_finite(**sites)
    stats = {name: values[:, keep] for name, values in fit.sample_stats.items()}
    if "gate_prob" in stats:
        stats["gate_prob"] = model.gates(stats["gate_prob"])
    derived = {"b": model.gates(sites["b"])}
    if model.private_memory is not None:
        here = model.private_memory.at(sites["memory"])
        derived |= {"memory_share": here.share, "memory_lengthscale": here.lengthscale}
    groups: dict[str, Any] = {"posterior": sites | derived, "sample_stats": stats}
    if y:
        groups |= _of_y(fit, sites)
    groups |= {"observed_data": {"y": fit.y}, "constant_data": _prior(model)}
    time = time_coordinate(fit.inputs)
    coords = {"latent": list(model.latents), "output": list(model.outputs), "time": time["time"]}
    tree = from_dict(jax.tree.map(np.asarray, groups), dims=DIMS, coords=coords)
    if len(set(model.copy_of)) < len(model.latents):
        of = {"copy_of": ("latent", list(model.copy_of))}
        tree["posterior"] = xr.DataTree(tree["posterior"].to_dataset().assign_coords(of))
    if "inputs" in time:
        tree["constant_data"]["inputs"] = xr.DataArray(time["inputs"][1], dims=time["inputs"][0])
    observed = ~np.isnan(np.asarray(fit.y))
    if y and not observed.all():
        tree["log_likelihood"] = xr.DataTree(_observed_cells(tree["log_likelihood"].to_dataset(), observed))
    tree.attrs["engine"] = fit.engine
    return tree


def as_trees(given: Any, *, needs: str = "b", groups: Sequence[str] = ("posterior",)) -> dict[str, xr.DataTree]:
    """Trees by engine, from a tree or a fit, or from several by name; each as ``as_tree`` has it."""
    if isinstance(given, xr.DataTree) or not isinstance(given, Mapping):  # a DataTree is a Mapping, too
        tree = as_tree(given, needs=needs, groups=groups)
        return {tree.attrs.get("engine", "posterior"): tree}
    if not given:
        raise ValueError("trees: expected at least one tree or fit, got none")
    return {engine: as_tree(one, f"trees[{engine!r}]", needs=needs, groups=groups) for engine, one in given.items()}


def as_tree(given: Any, name: str = "tree", *, needs: str = "b", groups: Sequence[str] = ("posterior",)) -> xr.DataTree:
    """One tree, from a tree or a fit, with draws of the site that is needed and with these ``groups``.

    A fit's tree has draws of x if they are needed, and none of y. Raises a TypeError or ValueError for what is neither.
    """
    if not isinstance(given, xr.DataTree):
        check_fit(given, name, "a fit or its to_datatree")
        return tree_of(given, x=needs == "x")
    lacking = sorted(set(groups) - set(given.children))
    if lacking:
        raise ValueError(f"{name}: expected to_datatree's result, got a tree without {', '.join(lacking)}")
    if "observed_data" in groups and "cell" in given["observed_data"].dims:
        raise ValueError(f"{name}: expected to_datatree's result, got cell_tree's, whose y has no (time, output)")
    if needs not in given["posterior"]:
        found = sorted(map(str, given["posterior"].data_vars))
        raise ValueError(f"{name}: expected draws of {needs}, got {found}; to_datatree(fit) has them")
    return given


def processes(tree: xr.DataTree) -> dict[str, list[int]]:
    """The places of each process' latents: one, or those that share a gate, under its name. By the tree's order."""
    latents = tree["posterior"].to_dataset()["latent"].values
    constant: Any = tree["constant_data"] if "constant_data" in tree.children else {}
    gates = constant["gate"].values if "process" in constant else np.arange(len(latents))
    found: dict[str, list[int]] = {}
    for gate in dict.fromkeys(gates.tolist()):
        places = np.flatnonzero(gates == gate).tolist()
        shared = len(places) > 1
        found[str(constant["process"].values[places[0]] if shared else latents[places[0]])] = places
    return found


def prior_any(model: ALPS, latents: Sequence[int] | np.ndarray) -> float:
    """The prior probability that at least one of these latents, given by their places, is on."""
    gates = np.unique(model.gate_of[list(latents)])
    prob = model.inclusion_prob[model.first[gates]]
    free = int(((prob > 0) & (prob < 1)).sum())
    if model.inclusion_prior is None or (prob == 1).any() or not free:
        return float(1 - (1 - prob).prod())
    a, b = float(model.inclusion_prior.concentration1), float(model.inclusion_prior.concentration0)
    return float(1 - np.prod([(b + k) / (a + b + k) for k in range(free)]))


def _prior(model: ALPS) -> dict[str, np.ndarray]:
    # Processes whose latents have equal covariances, one by one, are alike.
    of_latent = model.covariance_groups
    alike = [tuple(of_latent[k] for k in np.flatnonzero(model.gate_of == g)) for g in model.gate_of]
    group = np.array([list(dict.fromkeys(alike)).index(key) for key in alike])
    prior = {
        "prior_inclusion_prob": model.inclusion_prob,
        "covariance_group": group,
        "prior_of_group": np.array([prior_any(model, np.flatnonzero(group == g)) for g in group]),
        "gate": model.gate_of,
        "process": np.array([model.gate_names[g] for g in model.gate_of]),
        "period": np.array([np.nan if (T := period_of(c)) is None else T for c in model.covariances]),
    }
    of_scale = [model.unknown_scales.get(name) for name in model.copy_of]
    pairs = list(zip(model.copy_of, of_scale, strict=True))
    prior["scale_site"] = np.array([f"{name}.{one.path}" if one else "" for name, one in pairs])
    kinds = ["" if u is None else kind_of(c, u.path) for c, u in zip(model.covariances, of_scale, strict=True)]
    prior["scale_parameter"] = np.array(kinds)
    for site, one in zip(model.scale_sites, model.unknown_scales.values(), strict=True):
        prior[f"{site}.grid"] = np.asarray(one.grid.values)
    if (beta := model.inclusion_prior) is not None:
        prior["inclusion_concentration"] = np.array([beta.concentration1, beta.concentration0])
    return prior


def _of_y(fit: Fit, sites: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in sites.items() if name != "own_memory"}
    factors = flat.pop("noise_factor", None)
    draws, likelihood = _draws_of_y(fit.model, flat, factors, fit.inputs, fit.y)
    shape = (*sites["b"].shape[:2], *fit.y.shape)
    return {"posterior_predictive": {"y": draws.reshape(shape)}, "log_likelihood": {"y": likelihood.reshape(shape)}}


@jax.jit
def _draws_of_y(model: ALPS, flat: dict[str, Array], factors: Array | None, inputs: Array, y: Array):
    """Draws of y anew, and each cell's log likelihood, its own noise factor summed out."""
    draws = Predictive(model.program, flat, return_sites=["y"])(jax.random.key(0), inputs)["y"]
    if model.private_memory is None:
        return draws, log_likelihood(model.program, flat, inputs, y, sum_out=True)["y"]

    def by_cell(sites):
        trace = handlers.trace(handlers.substitute(model.program, sites)).get_trace(inputs, y)
        return trace["y"]["fn"].by_cell(trace["y"]["value"], model.tails)

    return draws, jax.lax.map(by_cell, flat if factors is None else flat | {"noise_factor": factors})


def _observed_cells(dataset: xr.Dataset, observed: np.ndarray) -> xr.Dataset:
    """(time, output) as one dimension ``cell`` that leaves the missing cells out: no likelihood, no zero either."""
    row, column = np.nonzero(observed)
    cells = dataset.isel(time=xr.DataArray(row, dims="cell"), output=xr.DataArray(column, dims="cell"))
    return cells.rename({"time": "cell_time", "output": "cell_output"})
