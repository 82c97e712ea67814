"""Many starts, and moves from mode to mode: coordinate ascent ends in the mode that it begins in."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Bool, Float

from alps_ppl.model.alps import ALPS
from alps_ppl.vb.family import Group, Likelihood, WhenOn, in_order
from alps_ppl.vb.updates import sweep

# Sweeps at a start in which all gates are held on, and the noise at a part of an output's variance.
START_SWEEPS = 20
# Of a move, those in which what it opens is held on and what it shuts off; and in how many it has to show its worth.
MOVE_SWEEPS, MOVE_FREE = 8, 12
# How many moves a round tries at most, and by how many nats one has to raise the bound.
MOST_MOVES, RISE = 400, 1e-3
# The log odds of a gate that a move opens.
OPENED = 20.0


class Ascent(NamedTuple):
    """Where an ascent has come to: q, and the bound before each sweep, NaN beyond the last one, which is q's.

    ``squares`` are q's ``expected_squares``.
    """

    q: tuple[WhenOn, ...]
    bounds: Float[Array, " sweep"]
    num_sweeps: Any
    squares: Float[Array, "point output"]

    @property
    def bound(self) -> float:
        """Of q; minus infinity where it isn't finite."""
        found = float(self.bounds[self.num_sweeps - 1])
        return found if np.isfinite(found) else -np.inf


class Static:
    """The groups as what a compiled program depends on: equal where they are."""

    def __init__(self, value: tuple[Group, ...]):
        self.value = value
        self._key = tuple((part.shape, part.tobytes()) for group in value for part in group)

    def __hash__(self):
        return hash(self._key)

    def __eq__(self, other):
        return isinstance(other, Static) and self._key == other._key


@partial(jax.jit, static_argnames=("groups", "most_sweeps"))
def climb(
    model: ALPS,
    data: Likelihood,
    groups: Static,
    q: tuple[WhenOn, ...],
    opened: Bool[Array, " gate"],
    shut: Bool[Array, " gate"],
    hold_noise: Any,
    num_held: Any,
    num_sweeps: Any,
    tolerance: Any,
    *,
    most_sweeps: int,
    offset: Any = 0.0,
) -> Ascent:
    """``num_held`` sweeps with these gates held, then others until the bound rises by less than ``tolerance`` in one.

    Of the latter there are ``num_sweeps`` at most, and room for ``most_sweeps``. ``offset`` is added to the gates' log
    odds.
    """
    extra = jnp.broadcast_to(jnp.asarray(offset, data.projection.dtype), opened.shape)
    none = jnp.zeros_like(opened)

    def one(q, is_held):
        here = jnp.where(is_held, opened, none), jnp.where(is_held, shut, none)
        return sweep(model, data, groups.value, q, *here, is_held & hold_noise, extra)

    def go_on(carry):
        n, _, _, bounds, _ = carry
        k = n - num_held  # free sweeps so far, whose bounds count
        rise = bounds[jnp.maximum(k - 1, 0)] - bounds[jnp.maximum(k - 2, 0)]
        return (k < 2) | ((k < num_sweeps) & (rise > tolerance))

    def step(carry):
        n, _, q, bounds, _ = carry
        after, bound, squares = one(q, n < num_held)
        place = jnp.maximum(n - num_held, 0)  # of held sweeps the first is overwritten
        return n + 1, q, after, bounds.at[place].set(bound), squares

    bounds = jnp.full(most_sweeps, jnp.nan, data.projection.dtype)
    n, q, _, bounds, squares = jax.lax.while_loop(go_on, step, (0, q, q, bounds, jnp.zeros_like(data.sum_squares)))
    return Ascent(q, bounds, n - num_held, squares)


@partial(jax.jit, static_argnames="groups")
def random_start(model: ALPS, groups: Static, key: Array, like: Array) -> tuple[WhenOn, ...]:
    """Loadings and weights around their prior, all gates even; in the precision of ``like``."""
    found = []
    for group, key_ in zip(groups.value, random.split(key, len(groups.value)), strict=True):
        s = jnp.moveaxis(jnp.asarray(model.mixing_variance, like.dtype)[:, group.latents], 1, 0)
        num_gates, num_features = group.features.shape
        identity = jnp.broadcast_to(jnp.eye(num_features, dtype=s.dtype), (num_gates, num_features, num_features))
        mean_h = jnp.sqrt(s) * random.normal(key_, s.shape, s.dtype)
        zeros = jnp.zeros((num_gates, num_features), s.dtype)
        found.append(WhenOn(zeros[:, 0], zeros, identity, mean_h, jax.vmap(jax.vmap(jnp.diag))(0.1 * s)))
    return tuple(found)


@partial(jax.jit, static_argnames="groups")
def _moved(groups: Static, q, fresh, opened, shut) -> tuple[WhenOn, ...]:
    """Q with what a move opens from ``fresh``."""
    found = []
    for group, on, new in zip(groups.value, q, fresh, strict=True):
        here = opened[group.gates]
        chosen = jax.tree.map(lambda a, b, h=here: jnp.where(h.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, on)
        logit = jnp.where(here, OPENED, jnp.where(shut[group.gates], -OPENED, on.logit))
        found.append(chosen._replace(logit=logit))
    return tuple(found)


def search(
    model: ALPS,
    data: Likelihood,
    groups: tuple[Group, ...],
    rng_key: Array,
    *,
    num_starts: int,
    num_sweeps: int,
    tolerance: float,
    num_rounds: int,
    step_done: Callable[[], Any] = lambda: None,
) -> tuple[Ascent, Float[np.ndarray, " start"], int]:
    """The best ascent, the starts' bounds, and how many moves raised the best of them.

    A round tries to open or shut each gate, to shut one and open another, and to open two: processes that explain
    something only together. A move that raises the bound is kept at once; a round without one is the last.
    """
    static = Static(groups)
    start_key, move_key = random.split(rng_key)
    num_gates = len(model.gate_names)
    every, none = np.ones(num_gates, bool), np.zeros(num_gates, bool)
    go = partial(climb, most_sweeps=max(num_sweeps, MOVE_FREE), offset=np.zeros(num_gates))
    starts: list[Ascent] = []
    for key in random.split(start_key, num_starts):
        q = random_start(model, static, key, data.projection)
        starts.append(go(model, data, static, q, every, none, True, START_SWEEPS, num_sweeps, tolerance))
        step_done()
    best = max(starts, key=lambda ascent: ascent.bound)
    found, num_moves = best, 0
    for number in range(num_rounds):
        before = found
        for opened, shut in moves(model, probabilities(groups, found), np.random.default_rng(number)):
            move_key, key = random.split(move_key)
            q = _moved(static, found.q, random_start(model, static, key, data.projection), opened, shut)
            tried = go(model, data, static, q, opened, shut, False, MOVE_SWEEPS, MOVE_FREE, tolerance)
            if tried.bound > found.bound + RISE:
                found, num_moves = tried, num_moves + 1
        if found is before:
            break
        found = go(model, data, static, found.q, none, none, False, 0, num_sweeps, tolerance)
        step_done()
    return found, np.array([ascent.bound for ascent in starts]), num_moves


def probabilities(groups: tuple[Group, ...], ascent: Ascent) -> Float[np.ndarray, " gate"]:
    """That each gate is on."""
    return np.asarray(in_order(groups, [on.prob for on in ascent.q]))


def moves(
    model: ALPS, prob: Float[np.ndarray, " gate"], rng: np.random.Generator
) -> Iterable[tuple[Bool[np.ndarray, " gate"], Bool[np.ndarray, " gate"]]]:
    """What each move of a round opens and shuts; of more pairs than ``MOST_MOVES`` some at random."""
    free = np.flatnonzero(~model.certain[model.first])
    on, off = free[prob[free] > 0.5], free[prob[free] <= 0.5]
    single: list[Any] = [((g,), ()) for g in free] + [((), (g,)) for g in on]
    pairs: list[Any] = [((g,), (h,)) for g in off for h in on] + [(pair, ()) for pair in combinations(off, 2)]
    chosen = single + [pairs[k] for k in rng.permutation(len(pairs))][: MOST_MOVES - len(single)]
    for opens, shuts in chosen:
        masks = np.zeros((2, len(prob)), bool)
        masks[0, list(opens)] = masks[1, list(shuts)] = True
        yield masks[0], masks[1]
