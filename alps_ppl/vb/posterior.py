"""What ``fit_vb`` returns: q's draws, and its bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from jaxtyping import Array, Float

from alps_ppl import checks
from alps_ppl.gibbs.posterior import WeightsFit
from alps_ppl.model.alps import ALPS
from alps_ppl.vb.family import Group, Likelihood, WhenOn, expected_squares, in_order, log_noise_points
from alps_ppl.vb.search import Static


@dataclass(frozen=True, repr=False)
class VBFit(WeightsFit):
    """What ``fit_vb`` returns: a ``WeightsFit`` of one chain of independent draws of q.

    ``gate_prob`` is q's probability of each gate, the same in every draw. ``elbo``: the lower bound on the log evidence
    in nats, of the discrete model and without Monte Carlo error, before the gates' last update. ``elbos`` (sweep): it
    from sweep to sweep of the last ascent, which never falls. ``start_elbos``: that of each start. ``num_moves``: how
    many moves between modes raised the best of them.
    """

    engine: ClassVar[str] = "vb"

    elbo: float
    elbos: Float[np.ndarray, " sweep"]
    start_elbos: Float[np.ndarray, " start"]
    num_moves: int

    def arrays(self) -> dict[str, tuple[tuple[str, ...], Any]]:
        """What a file keeps besides the sites, {name: (dims, values)}."""
        run = {"elbo": ((), self.elbo), "elbos": (("sweep",), self.elbos), "num_moves": ((), self.num_moves)}
        return super().arrays() | run | {"start_elbos": (("start",), self.start_elbos)}

    @classmethod
    def more(cls, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The bounds, from ``arrays``."""
        found = {name: arrays[name] for name in ("elbos", "start_elbos")}
        return found | {"elbo": float(arrays["elbo"]), "num_moves": int(arrays["num_moves"])}

    def __repr__(self):
        return f"VBFit({self.model}, elbo {self.elbo:.2f})"


@partial(jax.jit, static_argnames=("groups", "num_draws"))
def draws(
    model: ALPS, data: Likelihood, groups: Static, q: tuple[WhenOn, ...], rng_key: Array, num_draws: int
) -> dict[str, Array]:
    """Independent draws of q: b (draw, gate), H, the latents' weights, and what is learnt."""
    keys = random.split(rng_key, 4)
    prob = in_order(groups.value, [on.prob for on in q])
    b = random.uniform(keys[0], (num_draws, len(prob)), prob.dtype) < prob
    H = jnp.zeros((num_draws, *model.mixing_variance.shape), prob.dtype)
    weights = jnp.zeros((num_draws, data.projection.shape[-1]), prob.dtype)
    for number, (group, on) in enumerate(zip(groups.value, q, strict=True)):
        w, h = _given_gates(model, group, on, b[:, group.gates], random.fold_in(keys[1], number))
        weights = weights.at[:, group.features].set(w)
        H = H.at[:, :, group.latents].set(jnp.moveaxis(h, 1, 2))
    sites = {"b": b.astype(jnp.int32), "H": H, "weights": weights}
    squares = expected_squares(data, groups.value, q)
    logs, rates = log_noise_points(model, data, squares)
    shape = (num_draws, logs.shape[1])
    point = random.categorical(keys[2], logs.T, shape=shape)
    if model.private_memory is not None:
        sites["memory"] = point.astype(jnp.int32)
    if model.learns_noise:
        concentration = model.noise_variance.concentration + 0.5 * data.num_observed
        rate = rates[point, jnp.arange(shape[1])]
        sites["noise_variance"] = rate / random.gamma(keys[3], concentration, shape, prob.dtype)
    if model.learns_inclusion:
        free = jnp.asarray(~model.certain[model.first])
        on_average = jnp.where(free, prob, 0.0).sum()
        a = model.inclusion_prior.concentration1 + on_average
        b_ = model.inclusion_prior.concentration0 + free.sum() - on_average
        sites["inclusion_prob"] = random.beta(random.fold_in(keys[3], 1), a, b_, (num_draws,), prob.dtype)
    return sites | {"gate_prob": jnp.broadcast_to(prob, b.shape)}


def _given_gates(model: ALPS, group: Group, on: WhenOn, b: Array, key: Array) -> tuple[Array, Array]:
    """Weights (draw, gate, feature) and loadings (draw, gate, output, member), at their priors where a gate is off."""
    keys = random.split(key)
    s = jnp.moveaxis(jnp.asarray(model.mixing_variance, on.logit.dtype)[:, group.latents], 1, 0)
    z_w = random.normal(keys[0], (len(b), *on.mean_w.shape), s.dtype)
    z_h = random.normal(keys[1], (len(b), *on.mean_h.shape), s.dtype)
    w = on.mean_w + jnp.einsum("gkl,dgl->dgk", jnp.linalg.cholesky(on.cov_w), z_w)
    h = on.mean_h + jnp.einsum("gimn,dgin->dgim", jnp.linalg.cholesky(on.cov_h), z_h)
    return jnp.where(b[..., None], w, z_w), jnp.where(b[..., None, None], h, jnp.sqrt(s) * z_h)


def init_from_vb(fit: VBFit, rng_key: Array, *, num_chains: int = 1) -> dict[str, Array]:
    """Draws of the program's sites from q, one per chain, for a sampler's ``init_params`` to start from.

    Parameters
    ----------
    fit
        Of ``fit_vb``.
    rng_key
        A JAX key.
    num_chains
        With more than one, every site gets a leading chain axis.
    """
    checks.instance("fit", fit, VBFit, "what fit_vb returned")
    checks.whole_number("num_chains", num_chains)
    checks.prng_key(rng_key)
    chosen = random.choice(rng_key, fit.weights.shape[1], (num_chains,), replace=False)
    sites = {name: value[0, chosen] for name, value in fit.sites.items()} | {"x": fit.samples["x"][0, chosen]}
    return sites if num_chains > 1 else {name: value[0] for name, value in sites.items()}
