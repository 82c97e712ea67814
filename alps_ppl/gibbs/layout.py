"""How all latents share the vector of weights that a chain holds, and which of them a sweep's matrices are of."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

# How many entries matrices may have that are factorised side by side. With more, XLA's program can wait for ever
# (jaxlib 0.10.2, two cores): of one latent, four chains of 116 features and 16 of 60 did, two of 116 didn't.
SIDE_BY_SIDE = 4 * 64**2
# With more states per time chains are quicker in turn: of 600 times and four chains, side by side in .6 ms against 1.6
# with one state, 5.9 against 6.4 with 12 and 18 against 12 with 19 (two cores, an elimination).
MOST_STATES = 12


class Layout(NamedTuple):
    """How the latents share the vector of weights: each one's features side by side, then the states time by time.

    Hashable, so that a compiled program depends on it and not on the data.
    """

    ranks: tuple[int, ...]  # (latent,), of its own weights
    state_owner: tuple[int, ...] = ()  # (dim,): whose each state of a time is
    num_state_times: int = 0
    # Of the processes with an unknown scale, their latents; and the features that hold all of its values, (latent,).
    scaled: tuple[tuple[int, ...], ...] = ()
    held: tuple[int, ...] = ()

    @property
    def features(self) -> "Layout":
        """The layout of the weights as those of the features, which no unknown scale changes."""
        return self._replace(ranks=self.held, scaled=()) if self.scaled else self

    def opened(self, k: int) -> tuple[Int[np.ndarray, " feature"], Int[np.ndarray, " weight"]]:
        """Where the features of an unknown scale's latents are, and all else, once theirs replace their own weights."""
        ranks = [self.held[j] if j in self.scaled[k] else rank for j, rank in enumerate(self.ranks)]
        owner = np.repeat(np.arange(len(ranks)), ranks)
        mine = np.isin(owner, self.scaled[k])
        return np.flatnonzero(mine), np.flatnonzero(~mine)

    @property
    def largest_matrix(self) -> int:
        """As many rows has the largest matrix that a sweep factorises, of features."""
        return max([sum(self.ranks), *(sum(map(len, self.opened(k))) for k in range(len(self.scaled)))])

    @property
    def owner(self) -> Int[np.ndarray, " weight"]:
        """Which latent each weight belongs to."""
        states = np.tile(np.array(self.state_owner, int), self.num_state_times)
        return np.concatenate([np.repeat(np.arange(len(self.ranks)), self.ranks), states])

    @property
    def own_features(self) -> Int[np.ndarray, "latent rank"]:
        """Each latent's features, padded to the largest rank with the number of features."""
        return self.features_of([[j] for j in range(len(self.ranks))])

    def features_of(self, groups: Sequence[Sequence[int]]) -> Int[np.ndarray, "group rank"]:
        """The features of all latents of each group, padded to the largest number with that of all features."""
        ends = np.cumsum(self.ranks)
        own = [np.concatenate([np.arange(ends[j] - self.ranks[j], ends[j]) for j in group]) for group in groups]
        padded = np.full((len(groups), max(map(len, own))), sum(self.ranks))
        for row, features in zip(padded, own, strict=True):
            row[: len(features)] = features
        return padded

    def swapped(self, pairs: Sequence[tuple[int, int]]) -> Int[np.ndarray, " weight"]:
        """The places of all weights after the latents of each pair, of one covariance, changed theirs."""
        owner = self.owner
        places = np.arange(len(owner))
        for j, k in pairs:
            places[owner == j], places[owner == k] = np.flatnonzero(owner == k), np.flatnonzero(owner == j)
        return places
