"""The draws of a Gibbs run, with the model and the data that they are of."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.infer import MCMC

from alps_ppl import checks
from alps_ppl.gibbs.features import Features, assemble
from alps_ppl.gibbs.kernel import ALPSGibbs
from alps_ppl.model.alps import ALPS
from alps_ppl.model.draws import LatentDraws, Samples


@dataclass(frozen=True, repr=False)
class GibbsFit:
    """What ``fit_gibbs`` and ``from_mcmc`` return.

    ``inputs``, ``y``: what was fitted. ``features``: what the latents' ``weights`` (chain, draw, weight) are
    coordinates of. ``sites``: b (chain, draw, gate), H, and what is learnt; ``sample_stats``: ``gate_prob`` (chain,
    draw, gate), the probability with which a sweep drew each gate on, and ``lp``, the log joint density of Y, the
    weights and all else.
    """

    engine: ClassVar[str] = "gibbs"

    model: ALPS
    inputs: Float[Array, "time *column"]
    y: Float[Array, "time output"]
    features: Features
    sites: dict[str, Array]
    weights: Float[Array, "chain draw weight"]
    sample_stats: dict[str, Array]

    @property
    def num_chains(self) -> int:
        """How many chains were run."""
        return self.weights.shape[0]

    @property
    def inclusion_prob(self) -> Float[np.ndarray, " latent"]:
        """The probability that each latent is on, the mean of ``gate_prob``."""
        return np.asarray(self.model.gates(self.sample_stats["gate_prob"].mean((0, 1))))

    @cached_property
    def samples(self) -> Samples:
        """The program's sites by name, (chain, draw, ...)."""
        return Samples(self.sites, self._latents)

    def _latents(self) -> Float[Array, "chain draw latent time"]:
        phi = jnp.asarray(self.features.phi(), self.weights.dtype)
        to_x = jax.jit(lambda weights, phi: jax.lax.map(lambda w: self.features.latents(w, phi), weights))
        x = to_x(self.weights.reshape(-1, self.weights.shape[-1]), phi)
        return x.reshape(*self.weights.shape[:2], *x.shape[1:])

    def thin(self, num_draws: int) -> dict[str, Array]:
        """At most ``num_draws`` draws of b, H, the weights and what is learnt, (draw, ...), evenly spread over all."""
        available = self.weights.shape[0] * self.weights.shape[1]
        keep = np.linspace(0, available - 1, min(num_draws, available)).round().astype(int)
        sites = self.sites | {"weights": self.weights}
        return {name: value.reshape(available, *value.shape[2:])[keep] for name, value in sites.items()}

    def at(self, new_inputs: Float[Array, "new *column"], num_draws: int = 1000) -> LatentDraws:
        """What at most ``num_draws`` draws say of the latents at new inputs."""
        sites = self.thin(num_draws)
        gated_H = self.model.gates(sites["b"].astype(new_inputs.dtype))[:, None, :] * sites["H"]
        noise = self.model.noise_variances(sites)
        return LatentDraws(gated_H, noise, sites["weights"], *self.features.extend(new_inputs))

    def arrays(self) -> dict[str, tuple[tuple[str, ...], Any]]:
        """What a file keeps besides the sites, {name: (dims, values)}.

        The features are kept, too: chosen anew elsewhere, their pivots might be others.
        """
        features = self.features
        return {
            "weights": (("chain", "draw", "weight"), np.asarray(self.weights)),
            "rank": (("latent",), np.array(features.layout.ranks)),
            "pivots": (("feature",), np.concatenate(features.pivots)),
            "pivot_tril": (("cell",), np.concatenate([tril.ravel() for tril in features.pivot_tril])),
            "markovian": (("markov",), np.array(sorted(features.terms), np.int64)),
        }

    @classmethod
    def from_arrays(
        cls, model: ALPS, inputs: Array, y: Array, arrays: Mapping[str, np.ndarray], samples: Mapping, stats: Mapping
    ) -> "GibbsFit":
        """The fit again, from ``arrays`` and the draws of its sites and sample_stats."""
        rank = arrays["rank"]
        pivots = np.split(arrays["pivots"], np.cumsum(rank)[:-1])
        trils = np.split(arrays["pivot_tril"], np.cumsum(rank**2)[:-1])
        factors = [(p, tril.reshape(len(p), len(p))) for p, tril in zip(pivots, trils, strict=True)]
        features = assemble(model.covariances, inputs, factors, arrays["markovian"].tolist())
        sites, stats = ({n: jnp.asarray(v) for n, v in part.items() if n != "x"} for part in (samples, stats))
        return cls(model, inputs, y, features, sites, jnp.asarray(arrays["weights"]), stats)

    def __repr__(self):
        return f"GibbsFit({self.model}, {self.num_chains} chains of {self.weights.shape[1]} draws)"


def fit_of_draws(kernel: ALPSGibbs, draws: dict[str, Array]) -> GibbsFit:
    """The fit of a kernel's collected fields: z's, with b the gates', potential_energy and gate_prob."""
    sites = {name: v for name, v in draws.items() if name in ("b", "H", "noise_variance", "inclusion_prob", "memory")}
    stats = {"gate_prob": draws["gate_prob"], "lp": -draws["potential_energy"]}
    return GibbsFit(kernel.model, kernel.inputs, kernel.y, kernel.features, sites, draws["weights"], stats)


def from_mcmc(mcmc: MCMC) -> GibbsFit:
    """The fit of a NumPyro ``MCMC(ALPSGibbs(model), ...)`` after its run.

    Raises a TypeError for another kernel's, and a ValueError where there are no draws yet, where b, H or the weights
    weren't collected, or where the kernel has been run on other data since.
    """
    checks.instance("mcmc", mcmc, MCMC, "a numpyro.infer.MCMC after its run")
    kernel = mcmc.sampler
    checks.instance("mcmc", kernel, ALPSGibbs, "one with an ALPSGibbs kernel")
    try:
        draws = mcmc.get_samples(group_by_chain=True) | mcmc.get_extra_fields(group_by_chain=True)
    except (AssertionError, TypeError):
        raise ValueError("mcmc: it has no draws yet; call mcmc.run(rng_key, inputs, y) first") from None
    missing = {"b", "H", "weights", "gate_prob", "potential_energy"} - set(draws)
    if missing:
        raise ValueError(f"mcmc: expected draws of {sorted(missing)}, too, but they weren't collected")
    if not kernel.is_bound_to(mcmc._args, mcmc._kwargs):
        raise ValueError("mcmc: its kernel has been run on other data since; make a kernel for each MCMC")
    return fit_of_draws(kernel, draws)
