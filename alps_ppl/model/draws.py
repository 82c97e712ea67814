"""What every engine's fit answers with: the program's sites by name, and what draws say of the latents at a time."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int


class Samples(Mapping):
    """Draws of the program's sites by name, (chain, draw, ...) each; paths are computed when asked for, and not kept.

    Paths are as large as all times, and few ask for them: x (chain, draw, latent, time), and with a private memory
    ``own_memory`` (chain, draw, time, output), each output's own r_i(t).
    """

    def __init__(self, sites: Mapping[str, Array], **paths: Callable[[], Array]):
        self._sites, self._paths = dict(sites), paths

    def __getitem__(self, name: str) -> Array:
        return self._paths[name]() if name in self._paths else self._sites[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._paths, *self._sites])

    def __len__(self) -> int:
        return len(self._paths) + len(self._sites)

    def __repr__(self):
        return f"Samples({', '.join(self)})"


class LatentDraws(NamedTuple):
    """Posterior draws, and what each says of the latents at new inputs.

    A latent's mean at a new input is the sum of ``basis`` times the weights at ``places`` (None: all of them, in their
    order) over the columns that it owns. ``latent_variance`` is what a draw leaves open. ``noise_variance`` is the
    white noise's; with a private memory, ``own_mean`` and ``own_variance`` are what a draw says of it.
    """

    gated_H: Float[Array, "draw output latent"]  # H_ij b_j
    noise_variance: Float[Array, "draw output"]
    weights: Float[Array, "draw weight"]
    basis: Float[Array, "new column"]
    owner: Int[np.ndarray, " column"]
    latent_variance: Float[Array, "latent new"]
    places: Int[np.ndarray, "new column"] | None = None
    own_mean: Float[Array, "new draw output"] | None = None
    own_variance: Float[Array, "new draw output"] | None = None
