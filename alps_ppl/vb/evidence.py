"""The log odds of a gate with its weights and loadings together, not apart.

In the family the weights and the loadings of a gate that is on are independent, which costs the gate a part of its
evidence: the better q(b_g, w_g, h_g) is joint. Its log odds are logit theta plus log Z, Z the integral of the expected
likelihood over the priors of w_g and h_g. The loadings are integrated out exactly, the weights by importance sampling
from their prior and from q(w_g).
"""

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from alps_ppl.gibbs.gaussians import PrecisionNormal
from alps_ppl.model.alps import ALPS
from alps_ppl.vb.family import (
    Expected,
    Group,
    Likelihood,
    WhenOn,
    expected,
    expected_squares,
    gated_means,
    in_order,
    left_of,
    noise_terms,
    prior_logits,
)
from alps_ppl.vb.search import Ascent, Static, climb

NUM_DRAWS = 1_000
# q's sds are larger by up to this part where weights are drawn from it; of up to so many latents each sign is tried.
WIDER, MOST_SIGNS = 0.5, 3
# How often all is done again with the better log odds, and by how many sweeps.
ROUNDS, SWEEPS = 4, 5
# How many numbers the draws' w w^T may have at a time.
NUMBERS_AT_A_TIME = 1_000_000
# Of matrices whose Cholesky factor is written out.
MOST_COLUMNS = 6


def refined(
    model: ALPS, data: Likelihood, groups: tuple[Group, ...], q: tuple[WhenOn, ...], key: Array, most_sweeps: int
) -> Ascent:
    """Q with the gates' better log odds, and the other factors where they are best for those.

    ``most_sweeps`` as in ``climb``, whose compiled program it is.
    """
    static, none = Static(groups), np.zeros(len(model.gate_names), bool)
    offset = np.zeros(len(model.gate_names))
    for _ in range(ROUNDS):
        offset = gained(model, data, static, q, key, offset)
        settings = none, none, False, 0, SWEEPS, -np.inf
        ascent = climb(model, data, static, q, *settings, most_sweeps=most_sweeps, offset=offset)
        q = ascent.q
    return ascent


@partial(jax.jit, static_argnames="groups")
def gained(
    model: ALPS, data: Likelihood, groups: Static, q: tuple[WhenOn, ...], key: Array, offset: Float[Array, " gate"]
) -> Float[Array, " gate"]:
    """By how much each gate's log odds are higher than the family's; q has them with ``offset``."""
    weighted = expected(data, noise_terms(model, data, expected_squares(data, groups.value, q))[0])
    means = gated_means(groups.value, q, data.projection.shape[-1])
    logits, _ = prior_logits(model, in_order(groups.value, [on.prob for on in q]))
    found = []
    for group, on in zip(groups.value, q, strict=True):
        keys = jax.vmap(lambda gate: random.fold_in(key, gate))(jnp.asarray(group.gates))
        one = lambda of: log_evidence(model, weighted, Group(*of[0]), of[1], means, of[2])  # noqa: E731
        found.append(jax.lax.map(one, (tuple(map(jnp.asarray, group)), on, keys)))
    apart = in_order(groups.value, [on.logit for on in q]) - logits - offset
    # The bound's part is below the evidence, and an estimate that isn't is an error of the sampling.
    better = jnp.clip(in_order(groups.value, found) - apart, 0.0)
    return jnp.where(jnp.asarray(model.certain[model.first]) | ~jnp.isfinite(better), 0.0, better)


def log_integral(precision: Float[Array, "*batch dim dim"], potential: Float[Array, "*batch dim"]) -> Array:
    """As ``PrecisionNormal``'s, of very many small matrices: up to ``MOST_COLUMNS`` Cholesky's columns are written out.

    With LAPACK's, one by one, the whole update took two to three times as long (noisy mixture, one run).
    """
    size = potential.shape[-1]
    if size > MOST_COLUMNS:
        return PrecisionNormal(potential, precision).log_integral
    L: dict[tuple[int, int], Array] = {}
    white: list[Array] = []
    for i in range(size):
        for j in range(i + 1):
            left = precision[..., i, j] - sum(L[i, k] * L[j, k] for k in range(j))
            L[i, j] = jnp.sqrt(left) if i == j else left / L[j, j]
        white.append((potential[..., i] - sum(L[i, k] * white[k] for k in range(i))) / L[i, i])
    return sum((0.5 * white[i] ** 2 - jnp.log(L[i, i]) for i in range(size)), jnp.zeros(potential.shape[:-1]))


def log_evidence(
    model: ALPS,
    weighted: Expected,
    group: Group,
    on: WhenOn,
    means: Float[Array, "output feature"],
    key: Array,
) -> Float[Array, ""]:
    """Log Z of one gate, the others' features at their ``means``; ``group``'s and ``on``'s arrays are of one gate."""
    own, member = group.features, group.member
    s = jnp.asarray(model.mixing_variance, means.dtype)[:, group.latents]
    left, gram = left_of(weighted, own, means)

    # Of h / sqrt(s), potential and precision are linear in w and in w w^T.
    root = jnp.sqrt(s)
    to_potential = jnp.einsum("ik,km,im->kim", left, member, root)
    to_precision = jnp.einsum("ikl,km,ln,im,in->klimn", gram, member, member, root, root)

    def log_marginal(w):
        """Of the outputs given draws of the weights, the loadings integrated out; relative to the gate off."""
        M = jnp.tensordot(w[:, :, None] * w[:, None, :], to_precision, 2)
        return log_integral(jnp.eye(s.shape[1], dtype=s.dtype) + M, jnp.tensordot(w, to_potential, 1)).sum(-1)

    size, num_members = member.shape
    signs: Any = np.array(list(product((1.0, -1.0), repeat=num_members if num_members <= MOST_SIGNS else 0)))
    of_feature = signs @ member.T if signs.shape[1] else jnp.ones((1, size), s.dtype)
    tril = (1 + WIDER * min(1.0, 4 / size)) * jnp.linalg.cholesky(on.cov_w)
    normal = random.normal(key, (NUM_DRAWS, size), s.dtype)
    which = jnp.arange(NUM_DRAWS) // 2 % len(of_feature)
    of_q = of_feature[which] * (on.mean_w + normal @ tril.T)
    draws = jnp.where((jnp.arange(NUM_DRAWS) % 2 == 0)[:, None], normal, of_q)

    def log_ratio(w):
        """Of the prior to what w is drawn from."""
        log_prior = -0.5 * (w**2).sum()
        white = jax.scipy.linalg.solve_triangular(tril, (of_feature * w - on.mean_w).T, lower=True)
        log_q = -0.5 * (white**2).sum(0) - jnp.log(jnp.diagonal(tril)).sum()
        log_q = logsumexp(log_q) - jnp.log(len(of_feature))
        return log_prior - jnp.logaddexp(log_prior, log_q) + jnp.log(2.0)

    at_a_time = max(1, min(NUM_DRAWS, NUMBERS_AT_A_TIME // size**2))
    chunks = draws[: NUM_DRAWS // at_a_time * at_a_time].reshape(-1, at_a_time, size)
    logs = jax.lax.map(lambda w: log_marginal(w) + jax.vmap(log_ratio)(w), chunks)
    return logsumexp(logs) - jnp.log(logs.size)
