"""Fits in files: ``save`` and ``load``.

A file is an ArviZ tree with one more group, ``alps``: the model in JSON, the inputs and y, and what the engine knows
besides the draws (the guide's parameters, or the latents' weights and the features that they are of).
"""

import json
import warnings
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import xarray as xr

from alps_ppl import checks
from alps_ppl.checkpoints import replacing
from alps_ppl.gibbs.posterior import GibbsFit
from alps_ppl.model.alps import ALPS
from alps_ppl.model.as_json import decode, describe, encode, foreign, rebuild
from alps_ppl.results.fits import Fit, check_fit
from alps_ppl.results.trees import DERIVED, PATHS, tree_of
from alps_ppl.svi.posterior import SVIFit
from alps_ppl.tables.data import Conversion
from alps_ppl.vb.posterior import VBFit

# Raised whenever files of the version before can't be read any more.
FORMAT = 2
GROUP = "alps"
ENGINES: dict[str, type[SVIFit] | type[GibbsFit] | type[VBFit]] = {"svi": SVIFit, "gibbs": GibbsFit, "vb": VBFit}


def save(fit: Fit, path: str | Path, *, tree: xr.DataTree | None = None, conversion: Conversion | None = None) -> None:
    """Write a fit to a netCDF file that ``load`` and ArviZ read; one that is there is replaced.

    Parameters
    ----------
    fit
        Of ``fit_svi``, ``fit_gibbs`` or ``from_mcmc``.
    path
        The file's name, in a folder that there is.
    tree
        ``to_datatree(fit)``, whose groups the file then has. Without it the file has neither draws of x nor of y, which
        ``load`` doesn't need.
    conversion
        Of the ``Data`` that was fitted: how its times and units become those of predictions.

    Draws of x, y and the log likelihood are stored in single precision, everything that predictions come from in full.
    A covariance of a class that isn't tinygp's can't be described in a file: a warning says so, and such a file needs
    the model again, ``load(path, model=model)``. Raises a TypeError or ValueError for what is none of these.
    """
    check_fit(fit)
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"path: expected a file's name in a folder that there is, got {str(path)!r}")
    tree = tree_of(fit) if tree is None else tree.copy()
    if not np.array_equal(tree["posterior"]["H"], fit.samples["H"]):
        raise ValueError("tree: expected to_datatree's result for this fit, with all of its draws, got other draws")
    description = describe(fit.model)
    if lacking := _not_in_a_file(path, description):
        warnings.warn(lacking, UserWarning, stacklevel=2)
    group = xr.Dataset(fit.arrays())
    group["inputs"] = (("time", "column")[: fit.inputs.ndim], np.asarray(fit.inputs))
    group["y"] = (("time", "output"), np.asarray(fit.y))
    # Variables, not attributes: those are limited to 64 KiB.
    group["model"] = json.dumps(description)
    if conversion is not None:
        table = asdict(conversion) | {"loc": encode(conversion.loc), "scale": encode(conversion.scale)}
        group["conversion"] = json.dumps(table)
    group.attrs = {"format": FORMAT, "engine": fit.engine, "bits": 8 * fit.inputs.dtype.itemsize}
    group.attrs["alps_ppl"] = metadata.version("alps-ppl")
    tree[GROUP] = xr.DataTree(group)
    tree.attrs["engine"] = fit.engine
    with replacing(path) as temporary:
        tree.to_netcdf(temporary, encoding=_encoding(tree), engine="h5netcdf")


def load(path: str | Path, *, model: ALPS | None = None) -> Fit:
    """The fit that was saved: its predictions are the same to the bit.

    Of a file that ``alps-ppl run`` wrote, the inputs are the model's; ``load_conversion`` has the table's times and
    units. ``model``: needed where a covariance isn't tinygp's, and checked otherwise. Raises a ValueError for a file
    that isn't one of ``save``'s, is broken, of another version, or of another floating-point precision than JAX's now.
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
        arrays = {str(name): group[name].values for name in group}
        samples, stats = (_draws(tree[part].to_dataset(), model) for part in ("posterior", "sample_stats"))
    inputs, y = jnp.asarray(arrays["inputs"]), jnp.asarray(arrays["y"])
    return ENGINES[group.attrs["engine"]].from_arrays(model, inputs, y, arrays, samples, stats)


def load_conversion(path: str | Path) -> Conversion | None:
    """The table's times, units and scales that a file of ``alps-ppl run`` keeps; None where there was no table."""
    with _opened(path) as tree:
        return conversion_of(tree)


def conversion_of(tree: xr.DataTree) -> Conversion | None:
    """``load_conversion`` of a file that is open."""
    if GROUP not in tree.children or "conversion" not in tree[GROUP].data_vars:
        return None
    table = json.loads(tree[GROUP].to_dataset()["conversion"].item())
    return Conversion(**table | {"loc": decode(table["loc"]), "scale": decode(table["scale"])})


def precision(path: str | Path) -> int:
    """32 or 64: the precision that the fit was made in, and is read in."""
    with _opened(path) as tree:
        return int(tree[GROUP].attrs["bits"])


def _opened(path: str | Path) -> xr.DataTree:
    """The file, lazily; a ValueError in plain words if it isn't one of ours."""
    expected = "expected a file that alps.save or alps-ppl run wrote"
    if not Path(path).is_file():
        raise ValueError(f"{path}: {expected}, but there is none")
    try:
        tree = xr.open_datatree(path, engine="h5netcdf")
    except Exception as error:  # whatever netCDF and HDF5 find wrong with it
        reason = checks.short(error)
        raise ValueError(f"{path}: {expected}, but it can't be read as netCDF; is it whole? ({reason})") from None
    version = tree[GROUP].attrs.get("format") if GROUP in tree.children else None
    if version != FORMAT:
        tree.close()
        found = "other netCDF without what predictions need" if version is None else f"one of format {version}"
        hint = "fit again and save" if version is None or version < FORMAT else "a newer alps_ppl wrote it: upgrade"
        raise ValueError(f"{path}: {expected}, in its format {FORMAT}, got {found}; {hint}")
    return tree


def _model(path: str | Path, description: dict, model: ALPS | None) -> ALPS:
    if model is not None:
        checks.instance("model", model, ALPS, "the alps_ppl.ALPS that was fitted")
        if json.loads(json.dumps(describe(model))) != description:
            raise ValueError(f"model: expected the one that was fitted and saved in {path}, got another, {model}")
        return model
    if lacking := _not_in_a_file(path, description):
        raise ValueError(lacking)
    return rebuild(description)


def _not_in_a_file(path: str | Path, description: dict) -> str:
    """What to say of covariances that aren't tinygp's, empty where all are."""
    names = ", ".join(dict.fromkeys(foreign(description)))
    return f"{path}: a file can't hold {names}; make the model again: alps.load(path, model=model)" if names else ""


def _draws(group: xr.Dataset, model: ALPS) -> dict[str, np.ndarray]:
    """A group's draws of sites but paths; the gates' are the program's again, where the tree's are the latents'."""
    draws = {str(n): values.values for n, values in group.data_vars.items() if n not in (*PATHS, *DERIVED)}
    return draws | {name: draws[name][..., model.first] for name in {"b", "gate_prob"} & set(draws)}


def _encoding(tree: xr.DataTree) -> dict[str, dict]:
    """Compressed; draws at every time in single precision, which is far below their Monte Carlo error."""

    def of(values: xr.DataArray) -> dict:
        if values.ndim == 0 or values.dtype.kind not in "fiub":
            return {}
        single = "draw" in values.dims and {"time", "cell"} & set(values.dims) and values.dtype.kind == "f"
        return {"zlib": True, "complevel": 1} | ({"dtype": "float32"} if single else {})

    return {
        f"/{name}": {v: of(values) for v, values in group.data_vars.items()} for name, group in tree.children.items()
    }
