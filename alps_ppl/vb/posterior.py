"""What ``fit_vb`` returns: q's draws, and its bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jax import random
from jaxtyping import Array, Float
from scipy.special import expit

from alps_ppl import checks
from alps_ppl.gibbs.posterior import WeightsFit
from alps_ppl.model.alps import ALPS
from alps_ppl.vb.family import Group, Likelihood, log_noise_points
from alps_ppl.vb.search import Ascent


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


def draws(
    model: ALPS, data: Likelihood, groups: tuple[Group, ...], ascent: Ascent, rng_key: Array, num_draws: int
) -> dict[str, np.ndarray]:
    """Independent draws of q: b (draw, gate), H, the latents' weights, and what is learnt.

    NumPy's, which compiles nothing; its generator's seed is the key.
    """
    rng = np.random.default_rng(np.asarray(random.key_data(rng_key), np.uint32).ravel().tolist())
    q: Any = jax.tree.map(lambda part: np.asarray(part, np.float64), ascent.q)
    prob = np.zeros(len(model.gate_names))
    for group, on in zip(groups, q, strict=True):
        prob[group.gates] = expit(on.logit)
    b = rng.uniform(size=(num_draws, len(prob))) < prob
    H = np.zeros((num_draws, *model.mixing_variance.shape))
    weights = np.zeros((num_draws, data.projection.shape[-1]))
    for group, on in zip(groups, q, strict=True):
        w, h = _given_gates(model, group, on, b[:, group.gates], rng)
        weights[:, group.features] = w
        H[:, :, group.latents] = np.moveaxis(h, 1, 2)
    sites: dict[str, np.ndarray] = {"b": b.astype(np.int32), "H": H, "weights": weights}
    logs, rates = (np.asarray(part, np.float64) for part in log_noise_points(model, data, ascent.squares))
    probs = np.exp(logs - logs.max(0))
    cdf: Any = np.cumsum(probs / probs.sum(0), 0)  # (point, output)
    point = (rng.uniform(size=(num_draws, 1, cdf.shape[1])) > cdf).sum(1).clip(0, len(cdf) - 1)
    if model.private_memory is not None:
        sites["memory"] = point.astype(np.int32)
    if model.learns_noise:
        concentration = np.asarray(model.noise_variance.concentration + 0.5 * data.num_observed, np.float64)
        rate = np.asarray(rates, np.float64)[point, np.arange(cdf.shape[1])]
        sites["noise_variance"] = rate / rng.gamma(np.broadcast_to(concentration, rate.shape))
    if model.learns_inclusion:
        free = ~model.certain[model.first]
        on_average = np.where(free, prob, 0.0).sum()
        a = float(model.inclusion_prior.concentration1) + on_average
        other = float(model.inclusion_prior.concentration0) + free.sum() - on_average
        sites["inclusion_prob"] = rng.beta(a, other, num_draws)
    return sites | {"gate_prob": np.broadcast_to(prob, b.shape)}


def _given_gates(
    model: ALPS, group: Group, on: Any, b: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (draw, gate, feature) and loadings (draw, gate, output, member), at their priors where a gate is off."""
    s = np.moveaxis(model.mixing_variance[:, group.latents], 1, 0)
    z_w, z_h = (rng.normal(size=(len(b), *part.shape)) for part in (on.mean_w, on.mean_h))
    w = on.mean_w + np.einsum("gkl,dgl->dgk", np.linalg.cholesky(on.cov_w), z_w)
    h = on.mean_h + np.einsum("gimn,dgin->dgim", np.linalg.cholesky(on.cov_h), z_h)
    return np.where(b[..., None], w, z_w), np.where(b[..., None, None], h, np.sqrt(s) * z_h)


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
