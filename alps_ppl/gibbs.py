"""The Gibbs sampler as a NumPyro MCMC kernel (paper, App. C): state, start, sweep."""

import inspect
import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jax.lax import erf_inv
from jaxtyping import Array, Float, Int
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from alps_ppl.conditionals import (
    Statistics,
    gate_and_column_conditional,
    gate_and_latent_conditional,
    gate_conditional,
    log_evidence,
    mixing_conditional,
    moments,
    noise_conditional,
    residual_sum_squares,
    scale_conditional,
    statistics,
    weights_conditional,
    weights_likelihood,
    weights_squares,
)
from alps_ppl.covariances import equal_covariance_groups
from alps_ppl.features import Features, features
from alps_ppl.model import ALPS, check_count, in_range, short, warn_caller

# What a sweep may have besides its draws of all latents, of H and of the noise.
MOVES = {
    "gate": "b_j given the latents and H: the paper's",
    "gate_column": "b_j with its column of H integrated out, then the column",
    "gate_latent": "b_j with its latent integrated out, then the latent",
    "marginal_gate": "b_j with all latents integrated out",
    "marginal_swap": "(b_j, H_:j) and (b_k, H_:k) change places, all latents integrated out",
    "marginal_walk": "a random walk of H_:j, all latents integrated out",
    "exchange": "two latents of one covariance change places",
    "scale": "the scale that H_:j and x_j share",
}
BLOCKS = {
    "few outputs": ("marginal_gate", "exchange", "scale"),
    "many outputs": ("gate_column", "gate_latent", "exchange", "scale"),
    "many outputs, few features": ("gate_column", "gate_latent", "marginal_swap", "exchange", "scale"),
    "collapsed": ("gate_column", "scale"),
    "paper": ("gate",),
    "all": tuple(name for name in MOVES if name != "gate"),
}
FEW_OUTPUTS = 2
# A swap factorises a matrix of all features; up to here two latents that can stand in for each other are worth it.
FEW_FEATURES = 200
STARTS = ("held", "prior", "dispersed", "off", "on")


class ALPSGibbsState(NamedTuple):
    """``z``: b (latent), H, the latents' weights and, where they are learnt, noise_variance and inclusion_prob.

    ``potential_energy`` is -log p(Y, w, H, b, sigma^2), with the latents' weights for the latents; NaN
    before the first sweep.
    ``gate_prob`` (gate,) is the probability with which the sweep drew each gate on: its mean over the draws
    estimates the inclusion probability with less Monte Carlo error than the mean of ``b``. ``weights`` are those of
    ``z`` once more: prediction needs them, and ``get_samples`` has the program's sites only.
    ``stats`` is the data's and the same in all chains: it isn't batched in vectorized chains. ``held`` counts the
    sweeps to come in which the gates are held open.
    """

    z: dict[str, Array]
    potential_energy: Float[Array, ""]
    gate_prob: Float[Array, " gate"]
    rng_key: Array
    stats: Statistics
    held: Int[Array, ""]

    @property
    def weights(self) -> Float[Array, " weight"]:
        """The latents' weights, as an extra field."""
        return self.z["weights"]


# What vmap maps over when the chains are vectorized: everything but the statistics.
_CHAIN_AXES: Any = ALPSGibbsState(z=0, potential_energy=0, gate_prob=0, rng_key=0, stats=None, held=0)  # type: ignore


def _refuse_traced_data(data):
    """The features and their number come from the data's values, and are constants of the compiled program."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(data)):
        raise TypeError("ALPSGibbs needs concrete data to choose its features: leave jit_model_args=True out")


def _noise(key, normal: dict[str, tuple], uniform: dict[str, tuple], dtype) -> tuple[dict, dict]:
    """Standard normals and uniforms of several shapes from one draw: each draw costs .3 s of compilation."""
    shapes = [*normal.values(), *uniform.values()]
    sizes = [math.prod(shape) for shape in shapes]
    # Open at -1, as in jax.random.normal: an inverse of it is finite, and so is the logarithm of a uniform.
    flat = random.uniform(key, (sum(sizes),), dtype, minval=np.nextafter(np.array(-1, dtype), 0), maxval=1)
    parts = [part.reshape(shape) for part, shape in zip(jnp.split(flat, np.cumsum(sizes)[:-1]), shapes, strict=True)]
    normals = [math.sqrt(2) * erf_inv(part) for part in parts[: len(normal)]]
    uniforms = [0.5 + 0.5 * part for part in parts[len(normal) :]]
    return dict(zip(normal, normals, strict=True)), dict(zip(uniform, uniforms, strict=True))


class ALPSGibbs(MCMCKernel):
    """A Gibbs kernel for :class:`ALPS`, used as any NumPyro kernel::

        MCMC(ALPSGibbs(model), num_warmup=500, num_samples=1000, num_chains=4).run(rng_key, inputs, y)

    All chain methods work; ``chain_method="vectorized"`` shares the statistics and compiles once.
    ``get_samples()`` has the program's sites b, H, x and, if learnt, noise_variance; the extra fields
    have ``gate_prob``, ``potential_energy`` and ``weights``, the latents' coordinates.

    Parameters
    ----------
    blocks
        Which moves a sweep has besides its draws of all latents, of H and of the noise: names from
        ``alps_ppl.gibbs.MOVES``, or the name of a set in ``alps_ppl.gibbs.BLOCKS``: among them "paper" (gate: the
        paper's plain blocks, which mix poorly and are kept as the reference) and "all" but the paper's. "default" is
        what measured best in effective draws per second (``python -m benchmarks gibbs``): "few outputs" with one or two
        outputs or a latent with states, "many outputs" otherwise; with at most 200 features "many outputs, few
        features", where latents that can stand in for each other change places.
    start
        Where b starts. "held" holds every gate open for the first half of the warm-up, so that the latents, H and the
        noise settle before latents drop out, which is what the temperature's low start does for SVI (paper, App. B): a
        gate that closed while its column of H was noise may not open again. "prior", "off", "on", or "dispersed", which
        draws the number of active latents evenly from none to all, let gates move from the first sweep: chains that
        agree from there agree more convincingly. The other sites start from the prior.
    max_rank
        The largest number of features of one latent; a covariance that needs more raises a ValueError.
    tolerance
        The largest variance that a latent's features may leave out, relative to its largest variance.
        Default 1e-10 in float64, 1e-5 in float32.
    keep_latents
        Whether the draws have ``x``, a number per chain, draw, latent and time. Without it memory doesn't grow with
        the number of times, but for latents with states; ``predict`` works all the same.

    ``init_params`` may hold b, H, x and noise_variance, each with a leading chain axis for several
    chains; what it lacks starts as ``start`` says, and where it has b no gate is held. A fitted SVI state:
    ``init_params=alps.init_from_svi(...)``.
    """

    sample_field = "z"

    def __init__(
        self,
        model: ALPS,
        *,
        blocks: str | Sequence[str] = "default",
        start: str = "held",
        max_rank: int = 2000,
        tolerance: float | None = None,
        keep_latents: bool = True,
    ):
        if not isinstance(model, ALPS):
            raise TypeError(f"model: expected an alps_ppl.ALPS, got {type(model).__name__}")
        if start not in STARTS:
            raise ValueError(f"start: expected one of {STARTS}, got {start!r}")
        if model.learns_noise and not isinstance(model.noise_variance, dist.InverseGamma):
            raise ValueError(
                "noise_variance: the Gibbs sampler needs an InverseGamma prior (or fixed variances), got "
                f"{type(model.noise_variance).__name__}"
            )
        if model.covariance_bounds:
            raise ValueError(
                "covariance_bounds: the Gibbs sampler takes covariances as they are; pass it fit.model, which has what "
                "fit_svi learnt (on the command line: --engine svi,gibbs), or leave covariance_bounds out"
            )
        check_count("max_rank", max_rank)
        if not isinstance(keep_latents, bool):
            raise TypeError(f"keep_latents: expected True or False, got {short(keep_latents)}")
        if tolerance is not None:
            tolerance = float(in_range("tolerance", tolerance, 1e-15, 0.1))
        self.model = model
        self.blocks = blocks
        self.moves = _moves(blocks, model)
        self.start = start
        self.max_rank = max_rank
        self.tolerance = tolerance
        self.keep_latents = keep_latents
        self._sample_fn: Any = None
        self._features: Features | None = None
        self._phi: np.ndarray | None = None
        self.inputs: np.ndarray | None = None

    @property
    def default_fields(self):
        """What is collected without asking: the sites, then the potential energy and the gates' probabilities."""
        return ("z", "potential_energy", "gate_prob", "weights")

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """The first state; ``rng_key`` may be a batch of keys (vectorized chains)."""
        # Ranks are shapes, so the data's part is computed even where a caller (pmap, vmap) is tracing, at the price of
        # compiling it anew; the features are NumPy arrays, since traced ones must not outlive a trace.
        tracing = isinstance(rng_key, jax.core.Tracer)
        with jax.ensure_compile_time_eval() if tracing else nullcontext():
            inputs, y = self._data(model_args, model_kwargs)
            self.inputs = np.asarray(inputs)
            self._features = features(
                self.model.covariances,
                inputs,
                names=self.model.latents,
                max_rank=self.max_rank,
                tolerance=self.tolerance,
            )
            self.moves = _moves(self.blocks, self.model, self._features)
            self._phi = self._features.phi() if self.keep_latents else None
            stats = statistics(self._features, y)
            self._warn_if_imprecise(stats)
        self._sample_fn = self._sweep
        given = self._given(init_params, None if is_prng_key(rng_key) else len(rng_key))
        held = num_warmup // 2 if self.start == "held" and "b" not in given else 0
        first = partial(self._init_chain, held=held)
        first = first if is_prng_key(rng_key) else jax.vmap(first, (0, None, 0), _CHAIN_AXES)
        return jax.jit(first)(rng_key, stats, given)

    def sample(self, state: ALPSGibbsState, model_args, model_kwargs) -> ALPSGibbsState:
        """One sweep over all blocks."""
        _refuse_traced_data((model_args, model_kwargs))
        if is_prng_key(state.rng_key):
            return self._sweep(state)
        return jax.vmap(self._sweep, (_CHAIN_AXES,), _CHAIN_AXES)(state)

    def postprocess_fn(self, model_args, model_kwargs):
        """From a draw of the weights to a draw of the program's sites."""
        features: Any = self._features

        def to_sites(z):
            sites = {name: value for name, value in z.items() if name != "weights"} | {"b": z["b"][self.model.first]}
            return {**sites, "x": features.latents(z["weights"], self._phi)} if self.keep_latents else sites

        return jax.jit(to_sites)

    def get_diagnostics_str(self, state):
        """For the progress bar."""
        return f"{int(state.z['b'].sum())} of {len(self.model.latents)} latents on"

    def __getstate__(self):
        return {**self.__dict__, "_sample_fn": None}

    def _data(self, model_args, model_kwargs):
        bound = inspect.signature(self.model.__call__).bind(*model_args, **model_kwargs).arguments
        if bound.get("relaxed"):
            raise ValueError("ALPSGibbs samples the discrete program; leave relaxed=True out")
        if bound.get("y") is None:
            raise ValueError("ALPSGibbs needs data: mcmc.run(rng_key, inputs, y)")
        _refuse_traced_data((bound["inputs"], bound["y"]))
        return self.model.check(bound["inputs"], bound["y"])

    def _warn_if_imprecise(self, stats: Statistics):
        if self.model.learns_noise or stats.sum_squares.dtype == jnp.float64:
            return
        mean_square = np.asarray(stats.sum_squares) / np.maximum(np.asarray(stats.num_observed), 1)
        if (mean_square * 1e-5 > self.model.noise_variance).any():
            warn_caller(
                "float32 can't resolve a noise variance of less than a hundred-thousandth of the data's mean "
                "square; switch on 64-bit with numpyro.enable_x64()"
            )

    def _given(self, init_params, num_chains: int | None) -> dict[str, Array]:
        """The given sites, with weights for x; ``num_chains`` is None for a single chain."""
        given = dict(init_params or {})
        unknown = set(given) - {"b", "H", "x", "noise_variance", "inclusion_prob"}
        if unknown:
            raise ValueError(
                f"init_params: expected some of b, H, x, noise_variance, inclusion_prob, got {sorted(unknown)}"
            )
        learnt = {"noise_variance": self.model.learns_noise, "inclusion_prob": self.model.learns_inclusion}
        for name, learns in learnt.items():
            if name in given and not learns:
                raise ValueError(f"init_params: {name} is fixed in this model, so it has no start")
        sizes = {"b": (len(self.model.gate_names),), "H": self.model.mixing_variance.shape, "inclusion_prob": ()}
        sizes |= {"x": (len(self.model.latents), len(self._features.times))}  # type: ignore[union-attr]
        sizes |= {"noise_variance": (len(self.model.outputs),)}
        for name, value in given.items():
            expected = (*((num_chains,) if num_chains else ()), *sizes[name])
            if jnp.shape(value) != expected:
                raise ValueError(f"init_params: expected {name} of shape {expected}, got {jnp.shape(value)}")
            if isinstance(value, jax.core.Tracer):
                continue
            values = np.asarray(value)
            wanted, right = {
                "b": ("zeros and ones", np.isin(values, (0, 1))),
                "noise_variance": ("positive, finite variances", np.isfinite(values) & (values > 0)),
                "inclusion_prob": ("probabilities strictly between 0 and 1", (values > 0) & (values < 1)),
            }.get(name, ("finite values", np.isfinite(values)))
            if not right.all():
                raise ValueError(f"init_params: expected {name} to hold {wanted}, got {values[~right].flat[0]}")
        if "x" in given:
            given["weights"] = self._features.weights(jnp.asarray(given.pop("x")))  # type: ignore[union-attr]
        return given

    def _init_chain(self, rng_key, stats: Statistics, given: dict[str, Array], *, held: int) -> ALPSGibbsState:
        model, dtype = self.model, stats.gram.dtype
        p, m = model.mixing_variance.shape
        num_gates = len(model.gate_names)
        rng_key, key, noise_key = random.split(rng_key, 3)
        normal, uniform = _noise(
            key, {"H": (p, m), "weights": stats.owner.shape}, {"b": (num_gates,), "prob": ()}, dtype
        )
        prior = model.inclusion_prob[model.first]
        starts: dict[str, Any] = {"prior": prior, "dispersed": uniform["prob"], "off": 0.0, "on": 1.0}
        starts["held"] = jnp.where(prior > 0, 1.0, 0.0)
        z = {
            "b": uniform["b"] <= starts[self.start],
            "H": normal["H"] * np.sqrt(model.mixing_variance),
            "weights": normal["weights"],
        }
        if model.learns_noise:
            z["noise_variance"] = model.noise_variance.expand((p,)).sample(noise_key)
        if model.learns_inclusion:
            z["inclusion_prob"] = model.inclusion_prior.mean  # type: ignore[union-attr]
        z = {name: jnp.asarray(given.get(name, value), dtype) for name, value in z.items()}
        z["b"] = model.gates(z["b"]).astype(jnp.int32)
        unknown = jnp.full((), jnp.nan, dtype)  # the first sweep's to compute: a second of compilation
        gate_prob = jnp.asarray(prior, dtype)
        return ALPSGibbsState(z, unknown, gate_prob, rng_key, stats, jnp.asarray(held, jnp.int32))

    def _noise_variance(self, z) -> Float[Array, " output"]:
        return z["noise_variance"] if self.model.learns_noise else jnp.asarray(self.model.noise_variance, z["H"].dtype)

    def _logits(self, z) -> Float[Array, " latent"]:
        """Logit theta of each latent's gate."""
        logits = jnp.asarray(self.model.inclusion_logits, z["H"].dtype)
        if not self.model.learns_inclusion:
            return logits
        return jnp.where(self.model.certain, logits, jax.scipy.special.logit(z["inclusion_prob"]))

    def _log_prior(self, H, b, logits) -> Float[Array, ""]:
        """Of b and H, up to a constant; a shared gate counts once."""
        gates = jax.nn.log_sigmoid(jnp.where(b == 1, logits, -logits))[self.model.first].sum()
        return gates - 0.5 * (H**2 / self.model.mixing_variance).sum()

    def _potential_energy(self, stats, rss, z) -> Float[Array, ""]:
        noise, weights, s = self._noise_variance(z), z["weights"], self.model.mixing_variance
        log_joint = (
            self._log_prior(z["H"], z["b"], self._logits(z))
            - 0.5 * (stats.num_observed @ jnp.log(2 * jnp.pi * noise) + rss @ (1 / noise))
            - 0.5 * (weights_squares(stats, weights, s.shape[1]).sum() + weights.size * np.log(2 * np.pi))
            - 0.5 * np.log(2 * np.pi * s).sum()
        )
        if stats.states is not None:
            log_joint += stats.states.half_log_det
        if self.model.learns_noise:
            log_joint += self.model.noise_variance.log_prob(noise).sum()
        if self.model.learns_inclusion:
            log_joint += self.model.inclusion_prior.log_prob(z["inclusion_prob"])  # type: ignore[union-attr]
        return -log_joint.astype(noise.dtype)

    def _sweep(self, state: ALPSGibbsState) -> ALPSGibbsState:
        """All blocks once: those without the latents, the latents, those given the latents, the noise."""
        model, stats = self.model, state.stats
        dtype = stats.gram.dtype
        s = jnp.asarray(model.mixing_variance, dtype)
        noise = self._noise_variance(state.z)
        H, b = state.z["H"], state.z["b"].astype(dtype)
        logits = self._logits(state.z)
        logits = jnp.where((state.held > 0) & (logits > -jnp.inf), jnp.inf, logits)
        rng_key, key, noise_key = random.split(state.rng_key, 3)
        normal, uniform = _noise(key, *self._noise_shapes(len(stats.owner)), dtype)
        gate_probs = []

        if any(move.startswith("marginal") for move in self.moves):
            H, b, prob = self._marginal_moves(stats, H, b, noise, logits, normal, uniform)
            gate_probs += [prob] if "marginal_gate" in self.moves else []
        weights = weights_conditional(stats, H, b, noise).transform(normal["weights"])
        if "gate_latent" in self.moves:
            b, weights, prob = self._gates_with_latents(stats, H, b, weights, noise, logits, normal, uniform)
            gate_probs.append(prob)
        products = moments(stats, weights, len(b))
        if "gate" in self.moves:
            b, prob = self._gates(products, H, b, noise, logits, uniform)
            gate_probs.append(prob)
        if "gate_column" in self.moves:
            H, b, prob = self._gates_with_columns(products, H, b, noise, s, logits, normal, uniform)
            gate_probs.append(prob)
        H = mixing_conditional(products, b, noise, s).transform(normal["mixing"])
        z = {}
        if model.learns_noise:
            block = noise_conditional(stats, products, H, b, model.noise_variance)
            noise = z["noise_variance"] = block.sample(noise_key).astype(dtype)
        rss = residual_sum_squares(stats, products, H, b)
        if "exchange" in self.moves:
            H, b, weights = self._exchange(H, b, weights, logits, uniform["exchange"])
        if "scale" in self.moves:
            c = self._shared_scale(stats, H, weights, s, normal["scale"], uniform["scale"])
            H, weights = H * c, weights / c[stats.owner]
        if model.learns_inclusion:
            z["inclusion_prob"] = self._inclusion_conditional(b).sample(random.fold_in(noise_key, 1)).astype(dtype)
        z |= {"b": b.astype(jnp.int32), "H": H, "weights": weights}
        energy = self._potential_energy(stats, rss, z)
        # A move of gates with a block of their own leaves shared gates out (NaN).
        gate_prob = jnp.nanmean(jnp.stack(gate_probs), 0)
        return ALPSGibbsState(z, energy, gate_prob, rng_key, stats, jnp.maximum(state.held - 1, 0))

    def _inclusion_conditional(self, b) -> dist.Beta:
        """The inclusion probability given the gates that it governs: a Beta."""
        prior: Any = self.model.inclusion_prior
        free = ~self.model.certain[self.model.first]
        on = jnp.where(free, b[self.model.first], 0).sum()
        return dist.Beta(prior.concentration1 + on, prior.concentration0 + free.sum() - on)

    def _noise_shapes(self, num_weights: int) -> tuple[dict[str, tuple], dict[str, tuple]]:
        """How many standard normals and how many uniforms each block of a sweep takes."""
        p, m = self.model.mixing_variance.shape
        normal = {
            "weights": (num_weights,),
            "mixing": (p, m),
            "gate_column": (m, p),
            "gate_latent": self._own_features().shape if "gate_latent" in self.moves else (),
            "marginal_walk": (m, p),
            "scale": (m,),
        }
        uniform = {
            "gate": (len(self.model.gate_names),),
            "gate_column": (m,),
            "gate_latent": (m,),
            "marginal": (1 + 3 * m,),  # as many as there can be proposals
            "marginal_swap": (2, m),
            "marginal_walk": (m,),
            "exchange": (len(self._equal_pairs()),),
            "scale": (m,),
        }
        used = {"weights", "mixing", "marginal", *self.moves}
        return {n: d for n, d in normal.items() if n in used}, {n: d for n, d in uniform.items() if n in used}

    def _marginal_moves(self, stats, H, b, noise, logits, normal, uniform):
        """Flips of a gate, swaps of two latents' (b, h), walks of a column of H: p(Y | H, b, sigma^2) accepts them.

        A proposal puts the latents in another order, flips some gates, and adds to H; each is as probable backwards.
        """
        p, m = H.shape
        index = jnp.arange(m)
        order, flip, shift = jnp.tile(index, (m, 1)), jnp.zeros((m, m), bool), jnp.zeros((m, p, m), H.dtype)
        # The first proposal changes nothing and is accepted: it evaluates where the chain is, in the same program.
        proposals = [(order[:1], flip[:1], shift[:1])]
        num_gates = len(self.model.gate_names)
        if "marginal_gate" in self.moves:
            of_gate = jnp.asarray(self.model.gate_of == np.arange(num_gates)[:, None])
            proposals.append((order[:num_gates], of_gate, shift[:num_gates]))
        single = self._single()
        if "marginal_swap" in self.moves and len(single) > 1:
            size, singles = len(single), jnp.asarray(single)
            j = jnp.minimum(uniform["marginal_swap"][0] * size, size - 1).astype(int)[:, None]
            k = (j + 1 + jnp.minimum(uniform["marginal_swap"][1] * (size - 1), size - 2).astype(int)[:, None]) % size
            j, k = singles[j], singles[k]
            swap = jnp.where(index == j, k, jnp.where(index == k, j, index))
            proposals.append((swap, flip, shift))
        if "marginal_walk" in self.moves:
            # No step size is the right one for every column: each is drawn, from .02 to 1 prior sd.
            size = 0.02 * 50 ** uniform["marginal_walk"][:, None] * np.sqrt(self.model.mixing_variance.T)
            walk = (size * normal["marginal_walk"])[:, :, None] * jnp.eye(m, dtype=H.dtype)[:, None, :]
            proposals.append((order, flip, walk))
        proposals = jax.tree.map(lambda *parts: jnp.concatenate(parts), *proposals)

        def log_target(H, b):
            return log_evidence(stats, H, b, noise) + self._log_prior(H, b, logits)

        def step(carry, proposal):
            H, b, here = carry
            order, flip, shift, u = proposal
            new_H, new_b = H[:, order] + shift, jnp.where(flip, 1 - b[order], b[order])
            there = log_target(new_H, new_b)
            accept = jnp.log(u) < there - here
            on_minus_off = jnp.where((b * flip).any(), here - there, there - here)
            carry = jax.tree.map(lambda new, old: jnp.where(accept, new, old), (new_H, new_b, there), carry)
            return carry, jax.nn.sigmoid(on_minus_off)

        nowhere = jnp.full((), -jnp.inf, H.dtype)
        (H, b, _), prob = jax.lax.scan(step, (H, b, nowhere), (*proposals, uniform["marginal"][: len(proposals[0])]))
        return H, b, prob[1 : num_gates + 1]

    def _gates_with_latents(self, stats, H, b, weights, noise, logits, normal, uniform):
        likelihood = weights_likelihood(stats, H, noise)

        def draw(carry, step):
            b, weights = carry
            j, own, u, latent_noise = step
            block = gate_and_latent_conditional(likelihood, weights * b[stats.owner], logits, j, own)
            value = block.transform(u, latent_noise)
            return (b.at[j].set(value[0]), weights.at[own].set(value[1:], mode="drop")), block.probs

        j = self._single()
        steps = (jnp.asarray(j), self._own_features()[j], uniform["gate_latent"][j], normal["gate_latent"][j])
        (b, weights), prob = jax.lax.scan(draw, (b, weights), steps)
        return b, weights, self._by_gate(prob)

    def _gates(self, products, H, b, noise, logits, uniform):
        gate_of = self.model.gate_of

        def draw(b, step):
            j, u = step
            prob = gate_conditional(products, H, b, noise, logits, j, gate_of).probs
            return jnp.where(jnp.asarray(gate_of) == jnp.asarray(gate_of)[j], (u <= prob).astype(b.dtype), b), prob

        return jax.lax.scan(draw, b, (jnp.asarray(self.model.first), uniform["gate"]))

    def _gates_with_columns(self, products, H, b, noise, s, logits, normal, uniform):

        def draw(carry, step):
            H, b = carry
            j, u, column_noise = step
            block = gate_and_column_conditional(products, H, b, noise, s, logits, j)
            value = block.transform(u, column_noise)
            return (H.at[:, j].set(value[1:]), b.at[j].set(value[0])), block.probs

        j = self._single()
        steps = (jnp.asarray(j), uniform["gate_column"][j], normal["gate_column"][j])
        (H, b), prob = jax.lax.scan(draw, (H, b), steps)
        return H, b, self._by_gate(prob)

    def _exchange(self, H, b, weights, logits, uniform):
        """Latents of one covariance change places; the likelihood stays, the priors decide (Barker's rule)."""
        for n, (j, k) in enumerate(self._equal_pairs()):
            order = np.arange(len(b))
            order[[j, k]] = k, j
            new_H, new_b = H[:, order], b[order]
            accept = uniform[n] < jax.nn.sigmoid(self._log_prior(new_H, new_b, logits) - self._log_prior(H, b, logits))
            owner = self._features.owner  # type: ignore[union-attr]
            features = np.arange(len(owner))
            features[owner == j], features[owner == k] = np.flatnonzero(owner == k), np.flatnonzero(owner == j)
            H, b = jnp.where(accept, new_H, H), jnp.where(accept, new_b, b)
            weights = jnp.where(accept, weights[features], weights)
        return H, b, weights

    def _shared_scale(self, stats, H, weights, s, normal, uniform) -> Float[Array, " latent"]:
        """An independence Metropolis step for each latent's scale; its proposal is somewhat wider than the target."""
        target = scale_conditional(stats, H, weights, s)
        mode = target.laplace()
        proposal = dist.Normal(mode.loc, 1.2 * mode.scale)
        u, here = proposal.loc + proposal.scale * normal, jnp.zeros_like(mode.loc)
        log_ratio = target.log_density(u) - target.log_density(here) + proposal.log_prob(here) - proposal.log_prob(u)
        return jnp.where(jnp.log(uniform) < log_ratio, jnp.exp(u), 1.0)

    def _own_features(self) -> np.ndarray:
        """(latent, largest rank): each latent's features, padded with the number of features."""
        owner = self._features.owner  # type: ignore[union-attr]
        ranks = np.bincount(owner, minlength=len(self.model.latents))
        own = np.full((len(ranks), ranks.max()), len(owner))
        own[np.arange(ranks.max()) < ranks[:, None]] = np.arange(len(owner))
        return own

    def _equal_pairs(self) -> list[tuple[int, int]]:
        """The pairs of latents whose covariances are equal, and whose gates can change places."""
        group, single = equal_covariance_groups(self.model.covariances), set(self._single())
        return [(j, k) for j, k in combinations(range(len(group)), 2) if group[j] == group[k] and {j, k} <= single]

    def _single(self) -> np.ndarray:
        """The latents that share their gate with no other."""
        gate_of = self.model.gate_of
        return np.flatnonzero(np.bincount(gate_of)[gate_of] == 1)

    def _by_gate(self, prob: Float[Array, " single"]) -> Float[Array, " gate"]:
        """Probabilities of the gates of single latents, NaN for the shared gates."""
        gates = self.model.gate_of[self._single()]
        return jnp.full(len(self.model.gate_names), jnp.nan, prob.dtype).at[gates].set(prob)


def _moves(blocks: str | Sequence[str], model: ALPS, features: Features | None = None) -> tuple[str, ...]:
    has_states = features is not None and features.space is not None
    chosen = blocks
    if blocks == "default":
        few_features = features is not None and features.num_features <= FEW_FEATURES
        many = "many outputs, few features" if few_features else "many outputs"
        chosen = "few outputs" if len(model.outputs) <= FEW_OUTPUTS or has_states else many
    moves = BLOCKS.get(chosen, (chosen,)) if isinstance(chosen, str) else chosen
    if not isinstance(moves, (list, tuple)) or not all(move in list(MOVES) for move in moves):
        raise ValueError(
            f"blocks: expected the name of a set, one of {['default', *BLOCKS]} as a string, or a list of moves among "
            f"{list(MOVES)}, got {blocks!r}"
        )
    moves = tuple(dict.fromkeys(moves))
    if not any("gate" in move for move in moves):
        raise ValueError(f"blocks: expected a move of the gates ({[m for m in MOVES if 'gate' in m]}), got {moves}")
    if len(model.gate_names) < len(model.latents) and not {"gate", "marginal_gate"} & set(moves):
        if not isinstance(blocks, str) or blocks in MOVES:
            raise ValueError(
                f"blocks: latents that share a gate need marginal_gate or gate, which {moves} doesn't have; add one"
            )
        moves = ("marginal_gate", *moves)
    if has_states and "gate_latent" in moves:
        if not isinstance(blocks, str) or blocks in MOVES:
            raise ValueError("blocks: gate_latent isn't there for a latent with Markov states; use marginal_gate")
        moves = tuple(move for move in moves if move != "gate_latent")
    return moves
