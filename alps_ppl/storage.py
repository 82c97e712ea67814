"""Posteriors in files: ``save`` and ``load``, so that predictions need neither the data nor another fit.

A file is an ArviZ tree with one more group, ``alps``: the model in JSON, the inputs fitted (not y), and what the engine
knows besides the draws: the guide's parameters, or the latents' weights and the features that they are of.
"""

import json
import warnings
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import jax.numpy as jnp
import numpy as np
import xarray as xr
from numpyro.infer import MCMC

from alps_ppl.chains import GibbsFit
from alps_ppl.checkpoints import replacing
from alps_ppl.data import Conversion
from alps_ppl.description import decode, describe, encode, foreign, rebuild
from alps_ppl.diagnostics import DIMS
from alps_ppl.features import assemble
from alps_ppl.gibbs import ALPSGibbs
from alps_ppl.guide import StructuredMeanField
from alps_ppl.model import ALPS, short
from alps_ppl.prediction import fitted, samples_of, svi_sites, time_coordinate
from alps_ppl.svi import SVIFit

# Raised whenever files of the version before can't be read any more.
FORMAT = 1
GROUP = "alps"


def save(
    posterior: SVIFit | GibbsFit | MCMC,
    path: str | Path,
    *,
    tree: xr.DataTree | None = None,
    conversion: Conversion | None = None,
) -> None:
    """Write a posterior to ``path``, a netCDF file that ``load`` and ArviZ read; one that is there is replaced.

    ``posterior``: of ``fit_svi``, or an ``MCMC`` after its run with an ``ALPSGibbs``. ``tree``: what ``to_datatree``
    made of it, whose groups the file then has; the draws alone if left out. ``conversion``: a ``Data``'s. Draws of x,
    y and the log likelihood are stored in single precision, everything that predictions come from in full.

    A covariance of a class that isn't tinygp's can't be described in a file: a warning says so, and such a file needs
    the model again, ``load(path, model=model)``. Raises a TypeError for another sampler's draws.
    """
    sampler = getattr(posterior, "sampler", None)
    if isinstance(posterior, MCMC) and not isinstance(sampler, ALPSGibbs):
        raise TypeError(
            f"posterior: expected fit_svi's or ALPSGibbs's, got draws of {type(sampler).__name__}; "
            "write their tree: alps.to_datatree(...).to_netcdf(path)"
        )
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"path: expected a file's name in a folder that there is, got {str(path)!r}")
    model, inputs = fitted(posterior)
    description = describe(model)
    if strangers := foreign(description):
        warnings.warn(
            f"{path}: the file can't hold {', '.join(dict.fromkeys(strangers))}; to read it, make the model again and "
            "pass it: alps.load(path, model=model)",
            UserWarning,
            stacklevel=2,
        )
    svi = isinstance(posterior, SVIFit)
    group = _svi_group(posterior) if isinstance(posterior, SVIFit) else _gibbs_group(posterior)
    group["inputs"] = (("time", "column")[: inputs.ndim], np.asarray(inputs))
    # Variables, not attributes: those are limited to 64 KiB.
    group["model"] = json.dumps(description)
    if conversion is not None:
        table = asdict(conversion) | {"loc": encode(conversion.loc), "scale": encode(conversion.scale)}
        group["conversion"] = json.dumps(table)
    group.attrs |= {"format": FORMAT, "engine": "svi" if svi else "gibbs", "bits": 8 * inputs.dtype.itemsize}
    group.attrs["alps_ppl"] = metadata.version("alps-ppl")
    tree = _draws_tree(posterior, model, inputs) if tree is None else tree.copy()
    if tree.attrs.get("engine", group.attrs["engine"]) != group.attrs["engine"]:
        raise ValueError(f"tree: expected to_datatree's result for this posterior, got one of {tree.attrs['engine']}")
    if not svi and not np.array_equal(tree["posterior"]["H"], samples_of(posterior, group_by_chain=True)["H"]):
        raise ValueError("tree: expected to_datatree's result for this posterior, got other draws")
    tree[GROUP] = xr.DataTree(group)
    tree.attrs["engine"] = group.attrs["engine"]
    with replacing(path) as temporary:
        tree.to_netcdf(temporary, encoding=_encoding(tree), engine="h5netcdf")


def load(path: str | Path, *, model: ALPS | None = None) -> SVIFit | GibbsFit:
    """The posterior that was saved: ``predict``, ``to_datatree`` and the like take it as they take the one saved.

    ``predict(load(path), new_inputs=...)`` needs nothing else, and gives the same predictions to the bit. The inputs
    are those of the model; of a file that ``alps-ppl run`` wrote, ``load_conversion`` has the table's times and units.

    ``model``: needed where a covariance isn't tinygp's, and checked otherwise. Raises a ValueError for a file that
    isn't one of ``save``'s, is broken, of another version, or of another floating-point precision than JAX's now.
    """
    with _opened(path) as tree:
        group = tree[GROUP].to_dataset().load()
        bits = jnp.asarray(0.0).dtype.itemsize * 8
        if group.attrs["bits"] != bits:
            raise ValueError(
                f"{path}: a {group.attrs['bits']}-bit fit, but JAX is in {bits}-bit now; call "
                f"numpyro.enable_x64({'' if bits == 32 else 'False'}) first"
            )
        model = _model(path, json.loads(group["model"].item()), model)
        return _svi_fit(group, model) if group.attrs["engine"] == "svi" else _gibbs_fit(tree, group, model)


def load_conversion(path: str | Path) -> Conversion | None:
    """The table's times, units and scales that a file of ``alps-ppl run`` keeps; None where there was no table."""
    with _opened(path) as tree:
        group = tree[GROUP].to_dataset()
        if "conversion" not in group:
            return None
        table = json.loads(group["conversion"].item())
    return Conversion(**table | {"loc": decode(table["loc"]), "scale": decode(table["scale"])})


def precision(path: str | Path) -> int:
    """32 or 64: the precision that the fit was made in, and is read in."""
    with _opened(path) as tree:
        return int(tree[GROUP].attrs["bits"])


def _opened(path: str | Path) -> xr.DataTree:
    """The file, lazily; a ValueError in plain words if it isn't one of ours."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: expected a file that alps.save or alps-ppl run wrote, but there is none")
    expected = "expected a file that alps.save or alps-ppl run wrote"
    try:
        tree = xr.open_datatree(path, engine="h5netcdf")
    except Exception as error:  # whatever netCDF and HDF5 find wrong with it
        raise ValueError(f"{path}: {expected}, but it can't be read as netCDF; is it whole? ({short(error)})") from None
    version = tree[GROUP].attrs.get("format") if GROUP in tree.children else None
    if version != FORMAT:
        tree.close()
        found = "other netCDF without what predictions need" if version is None else f"one of format {version}"
        hint = "fit again and save" if version is None or version < FORMAT else "a newer alps_ppl wrote it: upgrade"
        raise ValueError(f"{path}: {expected}, in its format {FORMAT}, got {found}; {hint}")
    return tree


def _model(path, description: dict, model: ALPS | None) -> ALPS:
    if model is not None:
        if not isinstance(model, ALPS):
            raise TypeError(f"model: expected the alps_ppl.ALPS that was fitted, got {type(model).__name__}")
        if json.loads(json.dumps(describe(model))) != description:
            raise ValueError(f"model: expected the one that was fitted and saved in {path}, got another, {model}")
        return model
    if strangers := foreign(description):
        raise ValueError(
            f"{path}: its model has {', '.join(dict.fromkeys(strangers))}, which a file can't hold; make the model "
            "again and pass it: alps.load(path, model=model)"
        )
    return rebuild(description)


def _svi_group(fit: SVIFit) -> xr.Dataset:
    # A latent's name, as in "day/night.scale", may have a slash, which divides groups.
    named = {f"param_{quote(name, safe='')}": np.asarray(value) for name, value in fit.params.items()}
    group = xr.Dataset(
        {name: ([f"{name}_{k}" for k in range(value.ndim)], value) for name, value in named.items()}
        | {"losses": ("step", fit.losses), "temperatures": ("step_planned", fit.temperatures)}
        | {"restart_elbos": ("restart", np.asarray(fit.restart_elbos, float))}
    )
    return group.assign(elbo=fit.elbo, elbo_mcse=fit.elbo_mcse)


def _svi_fit(group: xr.Dataset, model: ALPS) -> SVIFit:
    params = {
        unquote(str(name)[6:]): jnp.asarray(group[name].values) for name in group if str(name).startswith("param_")
    }
    return SVIFit(
        model,
        StructuredMeanField(model, params["inducing_inputs"]),
        params,
        group["losses"].values,
        group["temperatures"].values,
        elbo=float(group["elbo"]),
        elbo_mcse=float(group["elbo_mcse"]),
        restart_elbos=group["restart_elbos"].values.tolist(),
        inputs=group["inputs"].values,
    )


def _gibbs_group(posterior: GibbsFit | MCMC) -> xr.Dataset:
    """The weights, and the features that they are of: computed anew elsewhere, pivots might be others."""
    features: Any = posterior.sampler._features
    return xr.Dataset(
        {
            "weights": (
                ("chain", "draw", "weight"),
                np.asarray(posterior.get_extra_fields(group_by_chain=True)["weights"]),
            ),
            "rank": ("latent", np.array([len(pivots) for pivots in features.pivots])),
            "pivots": ("feature", np.concatenate(features.pivots)),
            "pivot_tril": ("cell", np.concatenate([tril.ravel() for tril in features.pivot_tril])),
            "markovian": ("markov", np.array(sorted(features.terms), np.int64)),
        },
        attrs={"keep_latents": int(posterior.sampler.keep_latents)},
    )


def _gibbs_fit(tree: xr.DataTree, group: xr.Dataset, model: ALPS) -> GibbsFit:
    rank = group["rank"].values
    pivots = np.split(group["pivots"].values, np.cumsum(rank)[:-1])
    trils = np.split(group["pivot_tril"].values, np.cumsum(rank**2)[:-1])
    factors = [(p, tril.reshape(len(p), len(p))) for p, tril in zip(pivots, trils, strict=True)]
    kernel = ALPSGibbs(model, keep_latents=bool(group.attrs["keep_latents"]))
    kernel.inputs = group["inputs"].values
    kernel._features = assemble(
        model.covariances, jnp.asarray(kernel.inputs), factors, group["markovian"].values.tolist()
    )
    draws = {
        name: tree["posterior"][name].values
        for name in ("b", "H", "x", "noise_variance", "inclusion_prob")
        if name in tree["posterior"]
    }
    # The tree's are the latents', the program's the gates'.
    draws["b"] = np.asarray(draws["b"])[..., model.first]
    extra = {"weights": group["weights"].values}
    stats = tree["sample_stats"].to_dataset()
    extra |= {"gate_prob": stats["gate_prob"].to_numpy()[..., model.first], "potential_energy": -stats["lp"].values}
    return GibbsFit(kernel, *({name: jnp.asarray(value) for name, value in part.items()} for part in (draws, extra)))


def _draws_tree(posterior: SVIFit | GibbsFit | MCMC, model: ALPS, inputs) -> xr.DataTree:
    """Posterior and sample_stats of ``to_datatree``, which has more but needs y."""
    from arviz_base import from_dict

    if isinstance(posterior, SVIFit):
        sites = svi_sites(posterior, inputs, 1000, names=("x", "b", "H", "noise_variance", "inclusion_prob"))
        sites, stats = {name: value[None] for name, value in sites.items()}, {}
    else:
        sites = samples_of(posterior, group_by_chain=True)
        extra = posterior.get_extra_fields(group_by_chain=True)
        stats = {"gate_prob": model.gates(extra["gate_prob"]), "lp": -extra["potential_energy"]}
    time = time_coordinate(inputs)["time"]
    sites |= {"b": model.gates(sites["b"])}
    groups: dict[str, Any] = {
        "posterior": {name: np.asarray(value) for name, value in sites.items()},
        "sample_stats": {name: np.asarray(value) for name, value in stats.items()},
    }
    coords = {"latent": list(model.latents), "output": list(model.outputs), "time": time}
    return from_dict({name: group for name, group in groups.items() if group}, dims=DIMS, coords=coords)


def _encoding(tree: xr.DataTree) -> dict:
    """Compressed; draws at every time in single precision, which is far below their Monte Carlo error."""

    def of(values: xr.DataArray) -> dict:
        if values.ndim == 0 or values.dtype.kind not in "fiub":
            return {}
        single = "draw" in values.dims and {"time", "cell"} & set(values.dims) and values.dtype.kind == "f"
        return {"zlib": True, "complevel": 1} | ({"dtype": "float32"} if single else {})

    return {
        f"/{name}": {v: of(values) for v, values in group.data_vars.items()} for name, group in tree.children.items()
    }
