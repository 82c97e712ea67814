"""What of a model's covariances isn't known: parameters within bounds, which SVI learns, and scales that are drawn."""

from collections.abc import Mapping
from copy import copy
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array
from numpyro.distributions import constraints

from alps_ppl.model.covariances import Covariance, equal_covariance_groups, parameters, with_parameters
from alps_ppl.model.scales import UnknownScale


class UnknownParameters:
    """The part of ``ALPS`` that makes covariances of parameters: of ``numpyro.param`` sites, and of drawn ones."""

    copy_of: tuple[str, ...]
    covariances: tuple[Covariance, ...]
    covariance_bounds: dict[str, dict[str, tuple[float, float]]]
    unknown_scales: dict[str, UnknownScale]

    def covariance_params(self, dtype) -> dict[str, Array]:
        """A ``numpyro.param`` site for each covariance parameter with bounds, "latent.parameter".

        It is the parameter's logarithm: a scale or a period is learnt by its ratio.
        """
        start = {name: parameters(c) for name, c in zip(self.copy_of, self.covariances, strict=True)}
        return {
            f"{latent}.{path}": numpyro.param(
                f"{latent}.{path}",
                jnp.log(jnp.asarray(start[latent][path], dtype)),
                constraint=constraints.interval(*np.log(pair)),
            )
            for latent, bounds in self.covariance_bounds.items()
            for path, pair in bounds.items()
        }

    def learnt_covariances(self, params: Mapping[str, Array]) -> tuple[Covariance, ...]:
        """The covariances with the parameters that have bounds from ``params``."""
        return tuple(
            with_parameters(
                c, {path: jnp.exp(params[f"{name}.{path}"]) for path in self.covariance_bounds.get(name, ())}
            )
            for name, c in zip(self.copy_of, self.covariances, strict=True)
        )

    @property
    def scale_sites(self) -> tuple[str, ...]:
        """The sites of unknown scales, "latent.parameter"."""
        return tuple(f"{latent}.{unknown.path}" for latent, unknown in self.unknown_scales.items())

    def at_scales(self, sites: Mapping[str, Any]) -> tuple[Covariance, ...]:
        """The covariances with unknown scales from ``sites``."""
        paths = {latent: unknown.path for latent, unknown in self.unknown_scales.items()}
        return tuple(
            with_parameters(c, {paths[name]: sites[f"{name}.{paths[name]}"]}) if name in paths else c
            for name, c in zip(self.copy_of, self.covariances, strict=True)
        )

    @property
    def covariance_groups(self) -> list[int]:
        """A group number for each latent, the same for latents of equal covariance and equal range."""
        of_range = [
            None if (unknown := self.unknown_scales.get(name)) is None else np.asarray(unknown.grid.values).tobytes()
            for name in self.copy_of
        ]
        keys = list(zip(equal_covariance_groups(self.covariances), of_range, strict=True))
        return [list(dict.fromkeys(keys)).index(key) for key in keys]

    def with_bounds(self) -> Self:
        """The model whose unknown scales are covariance_bounds, from the middle of their range, as SVI learns them."""
        if not self.unknown_scales:
            return self
        learning = copy(self)
        grids = {name: np.asarray(unknown.grid.values, float) for name, unknown in self.unknown_scales.items()}
        middle = {
            f"{name}.{unknown.path}": float(np.sqrt(grids[name][0] * grids[name][-1]))
            for name, unknown in self.unknown_scales.items()
        }
        learning.covariances = self.at_scales(middle)
        bounds = {n: {u.path: (float(grids[n][0]), float(grids[n][-1]))} for n, u in self.unknown_scales.items()}
        learning.covariance_bounds, learning.unknown_scales = self.covariance_bounds | bounds, {}
        return learning

    def with_learnt(self, params: Mapping[str, Array]) -> Self:
        """The model whose covariances have the parameters learnt in ``params``, with none left to learn."""
        if not self.covariance_bounds:
            return self
        learnt = copy(self)
        learnt.covariances = self.learnt_covariances(jax.tree.map(np.asarray, dict(params)))
        learnt.covariance_bounds = {}
        return learnt
