"""A model in plain data, for files: JSON that gives the same model back, to the bit."""

import importlib
import math
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from tinygp import kernels, transforms
from tinygp.kernels import quasisep

from alps_ppl.model import covariances, walks
from alps_ppl.model.alps import ALPS
from alps_ppl.model.memory import PrivateMemory
from alps_ppl.model.scales import ScaleGrid, UnknownScale

# What ``ALPS`` is made of besides what its latents have; the names are both its arguments and its attributes.
ARGUMENTS = ("outputs", "noise_variance", "covariance_bounds", "jitter")
# Only these modules' classes are made again from a file: reading one runs nobody else's code.
MODULES = (covariances, walks, kernels, quasisep, kernels.base, kernels.stationary, kernels.distance, transforms)


def describe(model: ALPS) -> dict:
    """The model as JSON-able data. ``foreign`` names the classes that can't be made again from it."""
    first = [model.copy_of.index(name) for name in dict.fromkeys(model.copy_of)]
    described = {
        "covariances": [[model.copy_of[j], encode(model.covariances[j])] for j in first],
        "copies": [model.copy_of.count(model.copy_of[j]) for j in first],
        "inclusion_prob": encode(model.inclusion_prob[first]),
        "inclusion_prior": encode(model.inclusion_prior),
        "gate": [model.gate_names[model.gate_of[j]] for j in first],
        "mixing_variance": encode(model.mixing_variance[:, first]),
        "private_memory": None if model.private_memory is None else encode(list(map(np.asarray, model.private_memory))),
    }
    if model.unknown_scales:  # files without are as before
        described["unknown_scales"] = [
            [name, path, encode(list(map(np.asarray, grid)))] for name, (path, grid) in model.unknown_scales.items()
        ]
    if model.noise_df is not None:
        described["noise_df"] = model.noise_df
    return described | {name: encode(getattr(model, name)) for name in ARGUMENTS}


def foreign(description: Any) -> list[str]:
    """The classes in a description that aren't tinygp's or NumPyro's own, or hold functions."""
    if isinstance(description, dict) and "foreign" in description:
        return [description["foreign"]]
    parts = description.values() if isinstance(description, dict) else description
    return [name for part in parts for name in foreign(part)] if isinstance(description, (dict, list)) else []


def rebuild(description: dict) -> ALPS:
    """The model that was described."""
    named = [(name, decode(k)) for name, k in description["covariances"]]
    prob, prior = decode(description["inclusion_prob"]), decode(description["inclusion_prior"])
    memory = decode(description["private_memory"])
    members: dict[str, list[str]] = {}
    for (latent, _), gate in zip(named, description["gate"], strict=True):
        members.setdefault(gate, []).append(latent)
    model = ALPS(
        named,
        inclusion_prob=prob if prior is None else prior,
        always_on=[] if prior is None else [name for (name, _), p in zip(named, prob, strict=True) if p == 1],
        shared_gates={gate: latents for gate, latents in members.items() if latents != [gate]},
        copies={name: count for (name, _), count in zip(named, description["copies"], strict=True)},
        mixing_variance=decode(description["mixing_variance"]),
        private_memory=None if memory is None else PrivateMemory(*memory),
        noise_df=description.get("noise_df"),
        **{name: decode(description[name]) for name in ARGUMENTS},
    )
    # Their grids are numbers, which their arguments give to rounding only.
    model.unknown_scales = {
        name: UnknownScale(path, ScaleGrid(*decode(grid))) for name, path, grid in description.get("unknown_scales", [])
    }
    return model


def encode(value: Any) -> Any:
    """``value`` as JSON-able data: numbers, arrays, tuples, tinygp's covariances, NumPyro's distributions."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.generic)) and np.ndim(value) == 0 and not isinstance(value, np.complexfloating):
        number = np.asarray(value).item()
        return number if not isinstance(number, float) or math.isfinite(number) else {"float": str(number)}
    if isinstance(value, (np.ndarray, jax.Array)):
        return _encode_array(np.asarray(value), kind="numpy" if isinstance(value, np.ndarray) else "jax")
    if isinstance(value, (tuple, list)):
        return {type(value).__name__: [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[key, encode(item)] for key, item in value.items()]}
    if isinstance(value, dist.ExpandedDistribution):
        return {"expand": list(value.batch_shape), "of": encode(value.base_dist)}
    kind: Any = value if hasattr(value, "__qualname__") else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _class(name) is type(value):
        names = _field_names(value)
        described = {"class": name, "fields": {n: encode(getattr(value, n)) for n in names}}
        if foreign(described) or _gives_back(described, value):
            return described
    leaves = [encode(np.asarray(leaf)) for leaf in jax.tree.leaves(value) if leaf is not value]
    return {"foreign": name, "leaves": leaves}


def decode(data: Any) -> Any:
    """What ``encode`` was given. Raises a ValueError for a class of none of ``MODULES``."""
    if not isinstance(data, dict):
        return data
    if "float" in data:
        return float(data["float"])
    if "dtype" in data:
        return _decode_array(data)
    if "tuple" in data or "list" in data:
        return tuple(map(decode, data["tuple"])) if "tuple" in data else list(map(decode, data["list"]))
    if "dict" in data:
        return {key: decode(item) for key, item in data["dict"]}
    if "expand" in data:
        return decode(data["of"]).expand(tuple(data["expand"]))
    kind = _class(data.get("class", ""))
    if kind is None:
        raise ValueError(f"expected a class of tinygp's or NumPyro's, got {data.get('class') or data.get('foreign')}")
    values = {name: decode(value) for name, value in data["fields"].items()}
    if issubclass(kind, dist.Distribution):
        return kind(**values)
    # Field by field, as JAX does it: a constructor's arguments needn't be the fields.
    instance: Any = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def _field_names(value: Any) -> list[str]:
    if isinstance(value, dist.Distribution):
        return list(value.arg_constraints)
    return [field.name for field in fields(value)]


def _class(name: str) -> type | None:
    """The class of that name, if it is one of tinygp's covariances and distances or NumPyro's distributions."""
    module, _, kind = name.rpartition(".")
    if module in [m.__name__ for m in MODULES]:
        found = getattr(importlib.import_module(module), kind, None)
        return found if isinstance(found, type) and issubclass(found, (kernels.Kernel, kernels.Distance)) else None
    found = getattr(dist, kind, None) if module.startswith("numpyro.distributions.") else None
    return found if isinstance(found, type) and issubclass(found, dist.Distribution) else None


def _gives_back(described: dict, value: Any) -> bool:
    """Whether this makes ``value`` again; a distribution's parameters needn't be its constructor's arguments."""
    try:
        again = decode(described)
    except (TypeError, ValueError):
        return False
    same_tree = str(jax.tree.structure(again)) == str(jax.tree.structure(value))
    return same_tree and all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(value)))


def _encode_array(array: np.ndarray, kind: str) -> dict:
    """Each float by its shortest decimal, which gives the same bits back; complex numbers as pairs."""
    plain = np.ascontiguousarray(array).reshape(-1)
    if array.dtype.kind == "c":
        plain = plain.view(plain.real.dtype)
    values = [encode(value) for value in plain.tolist()]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": values, "kind": kind}


def _decode_array(data: dict) -> Any:
    dtype = np.dtype(data["dtype"])
    plain = np.array([decode(value) for value in data["values"]], np.zeros(0, dtype).real.dtype)
    array = plain.view(dtype).reshape(data["shape"])
    return jnp.asarray(array) if data["kind"] == "jax" else array
