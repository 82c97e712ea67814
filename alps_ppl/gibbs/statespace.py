"""Markov latents: covariances with a state-space form, whose cost grows with the number of times and not with its cube.

A rough covariance has no low rank, but the Matern family, random walks and sums of them are observations of a Markov
chain of states, s_t = A_t s_{t-1} + e_t with e_t ~ N(0, Q_t), and so the posterior precision of all states is block
tridiagonal. Times are the sorted, distinct inputs.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from tinygp import kernels
from tinygp.kernels import quasisep
from tinygp.kernels.distance import L1Distance

from alps_ppl.model.covariances import Covariance, White, without_factors
from alps_ppl.model.walks import Wiener

MARKOV: dict[type, Any] = {
    kernels.Exp: quasisep.Exp,
    kernels.Matern32: quasisep.Matern32,
    kernels.Matern52: quasisep.Matern52,
}
FULL_RANK = (quasisep.Exp, quasisep.Matern32, quasisep.Matern52, quasisep.SHO, quasisep.Celerite, White)


class StateSpace(NamedTuple):
    """The states of all Markov latents side by side, ``dim`` in all, at the sorted distinct ``times``.

    x_j(t) is the sum over j's own states of ``observe`` times the state. ``transition`` is A_t from the time
    before (zero at the first), ``precision`` Q_t^-1; both are block diagonal by ``owner``.
    """

    times: Float[np.ndarray, " time"]
    owner: Int[np.ndarray, " dim"]
    observe: Float[np.ndarray, " dim"]
    transition: Float[np.ndarray, "time dim dim"]
    precision: Float[np.ndarray, "time dim dim"]


def markov_terms(covariance: Covariance, scale: Any = 1.0) -> tuple[list[Covariance], list[Covariance]]:
    """The terms of ``scale`` times a covariance that have a state space of full rank, and the others.

    In tinygp's quasiseparable classes, or a walk, however it is written: sums and factors are multiplied out.
    """
    core: Any
    scale, core = without_factors(covariance, scale)
    if isinstance(core, (kernels.Sum, quasisep.Sum)):
        first, second = markov_terms(core.kernel1, scale), markov_terms(core.kernel2, scale)
        return first[0] + second[0], first[1] + second[1]
    if type(core) in MARKOV and isinstance(core.distance, L1Distance):
        return [quasisep.Scale(kernel=MARKOV[type(core)](scale=core.scale), scale=scale)], []
    is_one = np.ndim(scale) == 0 and float(scale) == 1
    if isinstance(core, FULL_RANK):
        return [core if is_one else quasisep.Scale(kernel=core, scale=scale)], []
    plain = [core if is_one else kernels.Constant(scale) * core]
    return (plain, []) if isinstance(core, Wiener) else ([], plain)


def states_resolve(terms: Sequence[Covariance], times: Float[np.ndarray, " time"], dtype) -> bool:
    """Whether ``dtype`` can tell the states apart: those of a smooth covariance at close times hardly change.

    In float32 a latent of several states loses nats of evidence below a share of 1e-3; one of a single state doesn't.
    """
    for kernel in terms:
        _, Q = transitions(kernel, times[:-1], times[1:])
        prior = marginal(kernel, times[1:])
        share = (np.diagonal(Q, axis1=-2, axis2=-1) / np.diagonal(prior, axis1=-2, axis2=-1)).min(initial=1.0)
        if share < (1e-9 if jnp.finfo(dtype).bits == 64 else 1e-5 if prior.shape[-1] == 1 else 3e-3):
            return False
    return True


def state_space(terms: dict[int, Sequence[Covariance]], times: Float[np.ndarray, " time"]) -> StateSpace:
    """The states of ``terms``, {latent: its Markov terms}, at sorted distinct times."""
    owner: list[int] = []
    observe, matrices = [], []
    for j, kernels_ in terms.items():
        for kernel in kernels_:
            A, Q = transitions(kernel, times[:-1], times[1:])
            first = marginal(kernel, times[:1])
            observe.append(_observation(kernel))
            owner += [j] * first.shape[-1]
            matrices.append((np.concatenate([0 * first, A]), np.linalg.inv(np.concatenate([first, Q]))))
    transition, precision = (_block_diagonal([pair[k] for pair in matrices]) for k in range(2))
    return StateSpace(times, np.array(owner), np.concatenate(observe), transition, precision)


def transitions(kernel: Covariance, before, after) -> tuple[np.ndarray, np.ndarray]:
    """A and Q of s(after) = A s(before) + e, e ~ N(0, Q), for each pair of times."""
    scale, walk = without_factors(kernel)
    if isinstance(walk, Wiener):
        A, Q = _walk_transitions(walk, before, after)
        return np.asarray(A, np.float64), float(scale) * np.asarray(Q, np.float64)
    # tinygp's A acts on rows.
    A = np.asarray(_transition_matrices(kernel, before, after), np.float64).mT
    stationary = marginal(kernel, after)
    return A, stationary - A @ stationary @ A.mT


_transition_matrices = jax.jit(lambda kernel, before, after: jax.vmap(kernel.transition_matrix)(before, after))
_walk_transitions = jax.jit(lambda walk, before, after: walk.transition(before, after))


def marginal(kernel: Covariance, times: Float[np.ndarray, " time"]) -> Float[np.ndarray, "time d d"]:
    """The states' prior covariance at each of the times."""
    scale, walk = without_factors(kernel)
    if isinstance(walk, Wiener):
        return float(scale) * np.asarray(walk.marginal(jnp.asarray(times)), np.float64)
    stationary = np.asarray(kernel.stationary_covariance(), np.float64)  # type: ignore[attr-defined]
    return np.broadcast_to(stationary, (len(times), *stationary.shape))


def _observation(kernel: Covariance) -> np.ndarray:
    _, walk = without_factors(kernel)
    if isinstance(walk, Wiener):
        return np.eye(walk.at_start().shape[0])[0]
    return np.asarray(kernel.observation_model(0.0), np.float64)  # type: ignore[attr-defined]


def _block_diagonal(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """(time, dim, dim) from (time, d, d) each."""
    dims = np.cumsum([0, *[matrix.shape[-1] for matrix in matrices]])
    whole = np.zeros((len(matrices[0]), dims[-1], dims[-1]))
    for matrix, start, stop in zip(matrices, dims, dims[1:], strict=False):
        whole[:, start:stop, start:stop] = matrix
    return whole


def interpolate(
    terms: dict[int, Sequence[Covariance]], space: StateSpace, new_times: Float[np.ndarray, " new"], num_latents
):
    """E[x_j(new) | states] and what they leave open: coefficients of the states before and after each new time.

    Returns ``index`` (new, 2 dim) into the states (time by dim, flattened), ``coefficients`` (new, 2 dim), and the
    residual variance (latent, new).
    """
    times, dim = space.times, len(space.owner)
    k = np.searchsorted(times, new_times, side="right") - 1
    ahead, inside = (k < 0)[:, None, None], (k + 1 < len(times))[:, None, None]
    before, after = np.clip(k, 0, None), np.clip(k + 1, None, len(times) - 1)
    index = np.concatenate([before[:, None] * dim + np.arange(dim), after[:, None] * dim + np.arange(dim)], 1)
    left, right, residual = [], [], np.zeros((num_latents, len(new_times)))
    for j, kernels_ in terms.items():
        for kernel in kernels_:
            observe = _observation(kernel)
            A1, Q1 = transitions(kernel, np.where(k < 0, new_times, times[before]), new_times)
            A1, Q1 = np.where(ahead, 0.0, A1), np.where(ahead, marginal(kernel, new_times), Q1)
            A2, Q2 = transitions(kernel, new_times, np.where(k + 1 < len(times), times[after], new_times))
            total = np.where(inside, A2 @ Q1 @ A2.mT + Q2, np.eye(len(observe)))
            gain = np.where(inside, Q1 @ A2.mT @ np.linalg.inv(total), 0.0)
            left.append(observe @ (A1 - gain @ A2 @ A1))
            right.append(observe @ gain)
            residual[j] += np.clip(observe @ (Q1 - gain @ A2 @ Q1) @ observe, 0.0, None)
    return index, np.concatenate([*left, *right], 1), residual
