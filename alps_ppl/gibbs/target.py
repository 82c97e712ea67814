"""What a move works on: the chain, the posterior that is to stay as it is, and what a move takes of random numbers."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from alps_ppl.gibbs.layout import Layout
from alps_ppl.gibbs.products import Moments, moments
from alps_ppl.gibbs.randomness import RandomNumbers
from alps_ppl.gibbs.statistics import Statistics, at_scales
from alps_ppl.model.alps import ALPS


class Plan(NamedTuple):
    """What a compiled sweep depends on besides shapes; hashable.

    ``equal_pairs``: gates that can change places. ``private_states``: how many states of private memories each time has
    besides the latents'. ``memories``: the gates whose latents could do a private memory's work.
    ``sheared``: see ``shears.sheared``.
    """

    moves: tuple[str, ...]
    layout: Layout
    equal_pairs: tuple[tuple[int, int], ...] = ()
    private_states: int = 0
    memories: tuple[int, ...] = ()
    sheared: tuple[tuple[int, int], ...] = ()
    factors: tuple[int, int] = (0, 0)  # (time, output), of how many cells there are noise factors

    @property
    def num_normals(self) -> int:
        """That a draw of all latents takes."""
        return len(self.layout.owner) + self.private_states * self.layout.num_state_times


class Chain(NamedTuple):
    """Where a chain is within a sweep.

    ``residual_squares`` is each output's residual sum of squares once the noise has been drawn, by the inverse of its
    own covariance, of which ``half_log_det`` is half of the log determinant, None if it is I. ``gate_probs`` holds,
    for each move of the gates, the probabilities (gate) with which it drew them on.
    """

    H: Float[Array, "output latent"]
    b: Float[Array, " latent"]
    weights: Float[Array, " weight"]
    noise_variance: Float[Array, " output"]
    inclusion_prob: Any = None
    memory: Any = None  # (output,), the point of the private memory's grid
    scales: Any = None  # (scaled,), the points of unknown scales' grids
    noise_factor: Any = None  # (time, output), the points of the cells' noise factors
    residual_squares: Any = None
    half_log_det: Any = None
    gate_probs: tuple[Float[Array, " gate"], ...] = ()

    def with_gates(self, gate_prob: Float[Array, " gate"], **changed: Array) -> "Chain":
        """The chain after a move of the gates."""
        return self._replace(gate_probs=(*self.gate_probs, gate_prob), **changed)


class Target(NamedTuple):
    """What moves leave as it is: the posterior of ``model`` under the data that ``stats`` are of.

    ``logits`` are logit theta of each latent's gate, infinite while the gate is held open. ``own_variance`` is what
    each output's own variance is held at, as white noise, NaN where it isn't held.
    """

    plan: Plan
    model: ALPS
    stats: Statistics
    logits: Float[Array, " latent"]
    own_variance: Float[Array, " output"]

    @property
    def mixing_variance(self) -> Float[Array, "output latent"]:
        """s, in the precision of the data."""
        return jnp.asarray(self.model.mixing_variance, self.logits.dtype)

    @property
    def members(self) -> list[list[int]]:
        """The latents of each gate."""
        return members(self.model)

    @property
    def of_gate(self) -> Bool[np.ndarray, "gate latent"]:
        """Which latents each gate has."""
        return self.model.gate_of == np.arange(len(self.model.gate_names))[:, None]

    @property
    def swappable(self) -> list[Int[np.ndarray, "gate member"]]:
        """The latents of gates that may swap, by their number; where there are Markov states, of gates with some.

        A process without states is seldom taken for another, and each swap costs a factorisation of all states.
        """
        owners = set(self.plan.layout.state_owner)
        return alike([gate for gate in self.members if not owners or set(gate) & owners])

    @property
    def num_swaps(self) -> list[int]:
        """How many swaps a sweep has of each group of ``swappable``: one a gate, of gates with states one for two."""
        each = 2 if self.plan.layout.state_owner else 1
        return [-(-len(group) // each) for group in self.swappable]

    def moments(self, chain: Chain) -> Moments:
        """Inner products of latents and outputs at the chain's weights."""
        return moments(self.given(chain), chain.weights, len(chain.b))

    def given(self, chain: Chain) -> Statistics:
        """The statistics with the outputs' own covariances and unknown scales where the chain has them."""
        return self.at_scales(chain).given(chain.memory)

    def at_scales(self, chain: Chain, opened: int | None = None) -> Statistics:
        """The statistics with unknown scales where the chain has them; see ``statistics.at_scales``."""
        return self.stats if chain.scales is None else at_scales(self.stats, self.plan.layout, chain.scales, opened)


def members(model: ALPS) -> list[list[int]]:
    """The latents of each gate."""
    return [np.flatnonzero(model.gate_of == g).tolist() for g in range(len(model.gate_names))]


def alike(gates: Sequence[Sequence[int]]) -> list[Int[np.ndarray, "gate member"]]:
    """The latents of gates that have as many, for each number that several gates have."""
    sizes = sorted({len(gate) for gate in gates})
    groups = [np.array([gate for gate in gates if len(gate) == size]) for size in sizes]
    return [group for group in groups if len(group) > 1]


def log_prior(model: ALPS, H, b, logits) -> Float[Array, ""]:
    """Of b and H, up to a constant; a shared gate counts once."""
    gates = jax.nn.log_sigmoid(jnp.where(b == 1, logits, -logits))[model.first].sum()
    return gates - 0.5 * (H**2 / model.mixing_variance).sum()


class Sizes(NamedTuple):
    """What the shapes of random numbers are made of."""

    outputs: int
    latents: int
    gates: int
    swaps: int
    memory: bool
    scales: int
    plan: Plan


Shape = Callable[[Sizes], tuple[int, ...]]


class Move(NamedTuple):
    """A move, the shapes of the random numbers that it takes, and whether all sweeps have it."""

    step: Callable[[Target, Chain, RandomNumbers], Chain]
    normal: Shape | None = None
    uniform: Shape | None = None
    acceptance: Callable[[Sizes], int] | None = None
    always: bool = False
