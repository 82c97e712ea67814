"""A prior's numbers in an order that is the same in every process."""

from typing import Any

import numpyro.distributions as dist


def by_name(prior: Any) -> tuple[Any, Any]:
    """The leaves of a distribution by name, and what ``from_names`` needs besides.

    NumPyro orders them by a set of names, so otherwise in every process, and a program compiled for them isn't found
    again in a cache on disk.
    """
    if not isinstance(prior, dist.Distribution):
        return prior, None
    family, (data, aux) = type(prior), prior.tree_flatten()
    parts = {name: by_name(value) for name, value in zip(family.gather_pytree_data_fields(), data, strict=True)}
    fixed = tuple(sorted(zip(family.gather_pytree_aux_fields(), aux, strict=True)))
    shape = family, fixed, tuple(sorted((name, inner) for name, (_, inner) in parts.items() if inner is not None))
    return {name: numbers for name, (numbers, _) in parts.items()}, shape


def from_names(numbers: Any, shape: Any) -> Any:
    """The distribution again, its leaves perhaps traced."""
    if shape is None:
        return numbers
    family, fixed, inner = shape
    parts = numbers | {name: from_names(numbers[name], of_part) for name, of_part in inner}
    aux = tuple(dict(fixed)[name] for name in family.gather_pytree_aux_fields())
    return family.tree_unflatten(aux, tuple(parts[name] for name in family.gather_pytree_data_fields()))
