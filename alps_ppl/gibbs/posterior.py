"""The draws of a Gibbs run, with the model and the data that they are of."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.infer import MCMC

from alps_ppl import checks
from alps_ppl.gibbs.features import Features, assemble, by_latents, latents_at
from alps_ppl.gibbs.kernel import ALPSGibbs
from alps_ppl.model.alps import ALPS
from alps_ppl.model.draws import LatentDraws, Samples
from alps_ppl.model.memory import own_memories
from alps_ppl.model.tails import spread_evenly


@dataclass(frozen=True, repr=False)
class WeightsFit:
    """Draws of the program's sites, the latents by their weights.

    ``inputs``, ``y``: what was fitted. ``features``: what the latents' ``weights`` (chain, draw, weight) are
    coordinates of. ``sites``: b (chain, draw, gate), H, and what is learnt; ``sample_stats``: ``gate_prob`` (chain,
    draw, gate), a probability that each gate is on.
    """

    engine: ClassVar[str]

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
        own = {} if self.model.private_memory is None else {"own_memory": self._own_memory}
        return Samples(self.sites, x=self._latents, **own)

    def _latents(self) -> Float[Array, "chain draw latent time"]:
        phi = jnp.asarray(self.features.phi(), self.weights.dtype)
        to_x = jax.jit(lambda weights, phi: jax.lax.map(lambda w: self.features.latents(w, phi), weights))
        x = to_x(self.weights.reshape(-1, self.weights.shape[-1]), phi)
        return x.reshape(*self.weights.shape[:2], *x.shape[1:])

    def _own_memory(self) -> Float[Array, "chain draw time output"]:
        """A path of each output's memory for every draw, given the draw and y."""
        num_chains, num_draws = self.weights.shape[:2]
        paths, _ = self._own_memories(self.thin(num_chains * num_draws), self.inputs, jax.random.key(0))
        return jnp.swapaxes(paths, 0, 1).reshape(num_chains, num_draws, *self.y.shape)

    def _own_memories(self, sites: dict[str, Array], new_inputs: Array, rng_key: Array | None = None):
        basis = self.features.basis(jnp.asarray(self.features.phi(), self.weights.dtype))
        draws = {name: sites[name] for name in ("weights", "H", "memory")}
        draws |= {"b": self.model.gates(sites["b"].astype(self.y.dtype)), "s2": self.model.noise_variances(sites)}
        if (tails := self.model.tails) is not None:
            draws["factors"] = jnp.asarray(tails.variance, self.y.dtype)[sites["noise_factor"]]
        return _own_memories(
            self.features.layout.features,
            self.model.private_memory,
            basis,
            self.inputs,
            self.y,
            new_inputs,
            draws,
            rng_key,
        )

    def thin(self, num_draws: int) -> dict[str, Array]:
        """At most ``num_draws`` draws of b, H, the weights and what is learnt, (draw, ...), evenly spread over all."""
        available = self.weights.shape[0] * self.weights.shape[1]
        keep = np.linspace(0, available - 1, min(num_draws, available)).round().astype(int)
        sites = self.sites | {"weights": self.weights}
        return {name: value.reshape(available, *value.shape[2:])[keep] for name, value in sites.items()}

    def thin_paths(self, num_draws: int) -> dict[str, Array]:
        """``thin``'s draws, and the latents' paths ``x`` (draw, latent, time)."""
        sites = self.thin(num_draws)
        phi = jnp.asarray(self.features.phi(), self.weights.dtype)
        return sites | {"x": jax.lax.map(lambda weights: self.features.latents(weights, phi), sites["weights"])}

    def at(self, new_inputs: Float[Array, "new *column"], num_draws: int = 1000) -> LatentDraws:
        """What at most ``num_draws`` draws say of the latents at new inputs."""
        sites = self.thin(num_draws)
        gated_H = self.model.gated_H(sites)
        noise = self.model.noise_variances(sites)
        if self.model.unknown_scales and len(new_inputs):
            extended = self._at_scales(sites, gated_H, noise, new_inputs)
        else:
            extended = LatentDraws(gated_H, noise, sites["weights"], *self.features.extend(new_inputs))
        if self.model.private_memory is not None and len(new_inputs):
            own_mean, own_variance = self._own_memories(sites, new_inputs)
            white = noise * (1 - self.model.private_memory.at(sites["memory"]).share)
            extended = extended._replace(noise_variance=white, own_mean=own_mean, own_variance=own_variance)
        if (tails := self.model.tails) is not None:
            extended = extended._replace(noise_variance=extended.noise_variance * spread_evenly(tails, *noise.shape))
        return extended

    def _at_scales(self, sites: dict[str, Array], gated_H: Array, noise: Array, new_inputs: Array) -> LatentDraws:
        """Where scales are unknown, what a draw says of a latent depends on its scale: one latent for each visited."""
        families, model = self.features.families, self.model
        points = [
            np.asarray(unknown.grid.nearest(sites[site]))
            for site, unknown in zip(model.scale_sites, model.unknown_scales.values(), strict=True)
        ]
        visited = []
        for k, one in enumerate(families):
            is_on = (np.asarray(gated_H[..., one.latents[0]]) != 0).any(-1)
            visited += [(k, int(point)) for point in np.unique(points[k][is_on])]
        *extended, of = self.features.extend_at(new_inputs, visited)
        chosen = [points[k] == point for k, point in visited for _ in families[k].latents]
        further = [gated_H[..., j, None] * jnp.asarray(here)[:, None, None] for j, here in zip(of, chosen, strict=True)]
        return LatentDraws(jnp.concatenate([gated_H, *further], -1), noise, sites["weights"], *extended)

    def arrays(self) -> dict[str, tuple[tuple[str, ...], Any]]:
        """What a file keeps besides the sites, {name: (dims, values)}.

        The features are kept, too: chosen anew elsewhere, their pivots might be others.
        """
        features = self.features
        return {
            "weights": (("chain", "draw", "weight"), np.asarray(self.weights)),
            "rank": (("latent",), np.array(features.layout.features.ranks)),
            "pivots": (("feature",), np.concatenate(features.pivots)),
            "pivot_tril": (("cell",), np.concatenate([tril.ravel() for tril in features.pivot_tril])),
            "markovian": (("markov",), np.array(sorted(features.terms), np.int64)),
            "num_rows": ((), np.array(features.num_rows)),
        }

    @classmethod
    def from_arrays(
        cls, model: ALPS, inputs: Array, y: Array, arrays: Mapping[str, np.ndarray], samples: Mapping, stats: Mapping
    ) -> Self:
        """The fit again, from ``arrays`` and the draws of its sites and sample_stats."""
        rank = arrays["rank"]
        pivots = np.split(arrays["pivots"], np.cumsum(rank)[:-1])
        trils = np.split(arrays["pivot_tril"], np.cumsum(rank**2)[:-1])
        factors = [(p, tril.reshape(len(p), len(p))) for p, tril in zip(pivots, trils, strict=True)]
        features = assemble(model.covariances, inputs, factors, arrays["markovian"].tolist(), by_latents(model))
        features = features._replace(num_rows=int(arrays.get("num_rows", 0)))  # older files have none
        sites, stats = ({n: jnp.asarray(v) for n, v in part.items() if n != "x"} for part in (samples, stats))
        return cls(model, inputs, y, features, sites, jnp.asarray(arrays["weights"]), stats, **cls.more(arrays))

    @classmethod
    def more(cls, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """What a fit of this class has besides, from ``arrays``."""
        return {}


class GibbsFit(WeightsFit):
    """What ``fit_gibbs`` and ``from_mcmc`` return: a ``WeightsFit`` of several chains.

    ``gate_prob`` is the probability with which a sweep drew each gate on; ``sample_stats`` also has ``lp``, the log
    joint density of Y, the weights and all else.
    """

    engine: ClassVar[str] = "gibbs"

    def __repr__(self):
        return f"GibbsFit({self.model}, {self.num_chains} chains of {self.weights.shape[1]} draws)"


@partial(jax.jit, static_argnums=0)
def _own_memories(layout, grid, basis, inputs, y, new_inputs, draws, rng_key):
    def f(draw):
        return (latents_at(layout, basis, draw["weights"]).T * draw["b"]) @ draw["H"].T

    return own_memories(f, grid, inputs, y, new_inputs, draws, rng_key)


def fit_of_draws(kernel: ALPSGibbs, draws: dict[str, Array]) -> GibbsFit:
    """The fit of a kernel's collected fields: z's, with b the gates', potential_energy and gate_prob."""
    model, features = kernel.model, kernel.features
    names = ("b", "H", "noise_variance", "inclusion_prob", "memory", "noise_factor", *model.scale_sites)
    sites = {name: v for name, v in draws.items() if name in names}
    stats = {"gate_prob": draws["gate_prob"], "lp": -draws["potential_energy"]}
    weights = features.held_weights(draws["weights"], draws.get("scales"))
    return GibbsFit(model, kernel.inputs, kernel.y, features, sites, weights, stats)


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
    missing = {"b", "H", "weights", "gate_prob", "potential_energy", *kernel.model.scale_sites} - set(draws)
    if missing:
        raise ValueError(f"mcmc: expected draws of {sorted(missing)}, too, but they weren't collected")
    if not kernel.is_bound_to(mcmc._args, mcmc._kwargs):
        raise ValueError("mcmc: its kernel has been run on other data since; make a kernel for each MCMC")
    return fit_of_draws(kernel, draws)
