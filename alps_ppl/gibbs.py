"""The Gibbs sampler as a NumPyro MCMC kernel (paper, App. C): state, start, sweep."""

import inspect
import warnings
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array, Float
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from alps_ppl.conditionals import (
    Moments,
    Statistics,
    gate_and_column_conditional,
    gate_conditional,
    mixing_conditional,
    moments,
    noise_conditional,
    residual_sum_squares,
    scale_conditional,
    statistics,
    weights_conditional,
)
from alps_ppl.model import ALPS
from alps_ppl.processes import Features, features

BLOCKS = ("collapsed", "paper")


class ALPSGibbsState(NamedTuple):
    """``z``: b, H, the latents' weights and, if it is learnt, noise_variance.

    ``potential_energy`` is -log p(Y, w, H, b, sigma^2), with the latents' weights for the latents.
    ``gate_prob`` (latent,) is the probability with which each gate was last drawn on: its mean over the
    draws estimates the inclusion probability with less Monte Carlo error than the mean of ``b``.
    ``stats`` is the data's and the same in all chains: it isn't batched in vectorized chains.
    """

    z: dict[str, Array]
    potential_energy: Float[Array, ""]
    gate_prob: Float[Array, " latent"]
    moments: Moments
    rng_key: Array
    stats: Statistics


# What vmap maps over when the chains are vectorized: everything but the statistics.
_CHAIN_AXES = ALPSGibbsState(z=0, potential_energy=0, gate_prob=0, moments=0, rng_key=0, stats=None)  # type: ignore[arg-type]


def _refuse_traced_data(data):
    """The features and their number come from the data's values, and are constants of the compiled program."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(data)):
        raise TypeError("ALPSGibbs needs concrete data to choose its features: leave jit_model_args=True out")


class ALPSGibbs(MCMCKernel):
    """A Gibbs kernel for :class:`ALPS`, used as any NumPyro kernel::

        MCMC(ALPSGibbs(model), num_warmup=500, num_samples=1000, num_chains=4).run(rng_key, inputs, y)

    All chain methods work; ``chain_method="vectorized"`` shares the statistics and compiles once.
    ``get_samples()`` has the program's sites b, H, x and, if learnt, noise_variance; the extra fields
    have ``gate_prob`` and ``potential_energy``.

    Parameters
    ----------
    blocks
        "collapsed": each gate is drawn jointly with its column of H, integrated out, and a Metropolis step
        moves the scale that H_:j and x_j share. "paper": the paper's plain blocks, p(b_j | x, H), which mix
        poorly and are kept as the reference.
    max_rank
        The largest number of features of one latent; a covariance that needs more raises a ValueError.
    tolerance
        The largest variance that a latent's features may leave out, relative to its largest variance.
        Default 1e-10 in float64, 1e-5 in float32.

    ``init_params`` may hold b, H, x and noise_variance, each with a leading chain axis for several
    chains; what it lacks is drawn from the prior.
    """

    sample_field = "z"

    def __init__(self, model: ALPS, *, blocks: str = "collapsed", max_rank: int = 2000, tolerance: float | None = None):
        if not isinstance(model, ALPS):
            raise TypeError(f"model: expected an alps_ppl.ALPS, got {type(model).__name__}")
        if blocks not in BLOCKS:
            raise ValueError(f"blocks: expected one of {BLOCKS}, got {blocks!r}")
        if model.learns_noise and not isinstance(model.noise_variance, dist.InverseGamma):
            raise ValueError(
                "noise_variance: the Gibbs sampler needs an InverseGamma prior (or fixed variances), got "
                f"{type(model.noise_variance).__name__}"
            )
        self.model = model
        self.blocks = blocks
        self.max_rank = max_rank
        self.tolerance = tolerance
        self._sample_fn: Any = None
        self._features: Features | None = None
        self.inputs: np.ndarray | None = None

    @property
    def default_fields(self):
        """What is collected without asking: the sites, then the potential energy and the gates' probabilities."""
        return ("z", "potential_energy", "gate_prob")

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
            stats = statistics(self._features, y)
            self._warn_if_imprecise(stats)
        self._sample_fn = self._sweep
        first = self._init_chain if is_prng_key(rng_key) else jax.vmap(self._init_chain, (0, None, 0), _CHAIN_AXES)
        num_chains = None if is_prng_key(rng_key) else len(rng_key)
        return jax.jit(first)(rng_key, stats, self._start(init_params, num_chains))

    def sample(self, state: ALPSGibbsState, model_args, model_kwargs) -> ALPSGibbsState:
        """One sweep over all blocks."""
        _refuse_traced_data((model_args, model_kwargs))
        if is_prng_key(state.rng_key):
            return self._sweep(state)
        return jax.vmap(self._sweep, (_CHAIN_AXES,), _CHAIN_AXES)(state)

    def postprocess_fn(self, model_args, model_kwargs):
        """From a draw of the weights to a draw of the program's sites."""
        phi, owner = self._features.phi, self._features.owner  # type: ignore[union-attr]
        num_latents = len(self.model.latents)

        def to_sites(z):
            weights = z["weights"]
            columns = jax.nn.one_hot(owner, num_latents, dtype=weights.dtype) * weights[:, None]
            sites = {name: value for name, value in z.items() if name != "weights"}
            return {**sites, "x": (jnp.asarray(phi, weights.dtype) @ columns).T}

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
            warnings.warn(
                "float32 can't resolve a noise variance of less than a hundred-thousandth of the data's mean "
                "square; switch on 64-bit with numpyro.enable_x64()",
                UserWarning,
                stacklevel=2,
            )

    def _start(self, init_params, num_chains: int | None) -> dict[str, Array]:
        """The given sites, with weights for x; ``num_chains`` is None for a single chain."""
        start = dict(init_params or {})
        unknown = set(start) - {"b", "H", "x", "noise_variance"}
        if unknown:
            raise ValueError(f"init_params: expected some of b, H, x, noise_variance, got {sorted(unknown)}")
        if "noise_variance" in start and not self.model.learns_noise:
            raise ValueError("init_params: noise_variance is fixed in this model, so it has no start")
        sizes = {"b": (len(self.model.latents),), "H": self.model.mixing_variance.shape}
        sizes |= {"x": (len(self.model.latents), self._features.phi.shape[0])}  # type: ignore[union-attr]
        sizes |= {"noise_variance": (len(self.model.outputs),)}
        for name, value in start.items():
            expected = (*((num_chains,) if num_chains else ()), *sizes[name])
            if jnp.shape(value) != expected:
                raise ValueError(f"init_params: expected {name} of shape {expected}, got {jnp.shape(value)}")
        if "x" in start:
            start["weights"] = self._features.weights(start.pop("x"))  # type: ignore[union-attr]
        return start

    def _init_chain(self, rng_key, stats: Statistics, start: dict[str, Array]) -> ALPSGibbsState:
        model, dtype = self.model, stats.gram.dtype
        m, p = len(model.latents), len(model.outputs)
        rng_key, b_key, H_key, w_key, noise_key = random.split(rng_key, 5)
        z = {
            "b": random.bernoulli(b_key, model.inclusion_prob),
            "H": random.normal(H_key, (p, m), dtype) * np.sqrt(model.mixing_variance),
            "weights": random.normal(w_key, stats.owner.shape, dtype),
        }
        if model.learns_noise:
            z["noise_variance"] = model.noise_variance.expand((p,)).sample(noise_key)
        z = {name: jnp.asarray(start.get(name, value), dtype) for name, value in z.items()}
        z["b"] = model.gates(z["b"]).astype(jnp.int32)
        return self._state(rng_key, stats, z, jnp.asarray(model.inclusion_prob, dtype))

    def _state(self, rng_key, stats, z, gate_prob) -> ALPSGibbsState:
        moments_ = moments(stats, z["weights"], len(self.model.latents))
        energy = self._potential_energy(stats, moments_, z)
        return ALPSGibbsState(z, energy, gate_prob, moments_, rng_key, stats)

    def _noise(self, z) -> Float[Array, " output"]:
        return z["noise_variance"] if self.model.learns_noise else jnp.asarray(self.model.noise_variance, z["H"].dtype)

    def _potential_energy(self, stats, moments_, z) -> Float[Array, ""]:
        model = self.model
        noise = self._noise(z)
        rss = residual_sum_squares(stats, moments_, z["H"], z["b"].astype(noise.dtype))
        logits = jnp.asarray(model.inclusion_logits, noise.dtype)
        log_joint = (
            -0.5 * (stats.num_observed @ jnp.log(2 * jnp.pi * noise) + rss @ (1 / noise))
            + dist.Normal().log_prob(z["weights"]).sum()
            + dist.Normal(0, np.sqrt(model.mixing_variance)).log_prob(z["H"]).sum()
            + jax.nn.log_sigmoid(jnp.where(z["b"] == 1, logits, -logits)).sum()
        )
        if model.learns_noise:
            log_joint += model.noise_variance.log_prob(noise).sum()
        return -log_joint.astype(noise.dtype)

    def _sweep(self, state: ALPSGibbsState) -> ALPSGibbsState:
        """Gates (with their columns of H), H, the noise, the latents: each given the newest of all others."""
        model, stats, moments_ = self.model, state.stats, state.moments
        dtype = stats.gram.dtype
        rng_key, gate_key, H_key, noise_key, w_key, scale_key = random.split(state.rng_key, 6)
        noise = self._noise(state.z)
        s = jnp.asarray(model.mixing_variance, dtype)

        gates = self._collapsed_gates if self.blocks == "collapsed" else self._paper_gates
        H, b, gate_prob = gates(gate_key, moments_, state.z["H"], state.z["b"].astype(dtype), noise, s)
        H = mixing_conditional(moments_, b, noise, s).sample(H_key)
        z = {"b": b.astype(jnp.int32), "H": H}
        if model.learns_noise:
            noise = noise_conditional(stats, moments_, H, b, model.noise_variance).sample(noise_key)
            z["noise_variance"] = noise.astype(dtype)
        z["weights"] = weights_conditional(stats, H, b, noise).sample(w_key)
        if self.blocks == "collapsed":
            c = self._shared_scale(scale_key, stats, H, z["weights"], s)
            z |= {"H": H * c, "weights": z["weights"] / c[stats.owner]}
        return self._state(rng_key, stats, z, gate_prob)

    def _shared_scale(self, rng_key, stats, H, weights, s) -> Float[Array, " latent"]:
        """An independence Metropolis step for each latent's scale; its proposal is somewhat wider than the target."""
        target = scale_conditional(stats, H, weights, s)
        mode = target.laplace()
        proposal = dist.Normal(mode.loc, 1.2 * mode.scale)
        propose_key, accept_key = random.split(rng_key)
        u, here = proposal.sample(propose_key), jnp.zeros_like(mode.loc)
        log_ratio = target.log_density(u) - target.log_density(here) + proposal.log_prob(here) - proposal.log_prob(u)
        accept = jnp.log(random.uniform(accept_key, u.shape, u.dtype)) < log_ratio
        return jnp.where(accept, jnp.exp(u), 1.0)

    def _collapsed_gates(self, rng_key, moments_, H, b, noise, s):
        logits = jnp.asarray(self.model.inclusion_logits, H.dtype)

        def draw(carry, j_and_key):
            H, b = carry
            j, key = j_and_key
            block = gate_and_column_conditional(moments_, H, b, noise, s, logits, j)
            gate_and_column = block.sample(key)
            return (H.at[:, j].set(gate_and_column[1:]), b.at[j].set(gate_and_column[0])), block.probs

        keys = random.split(rng_key, len(b))
        (H, b), gate_prob = jax.lax.scan(draw, (H, b), (jnp.arange(len(b)), keys))
        return H, b, gate_prob

    def _paper_gates(self, rng_key, moments_, H, b, noise, s):
        logits = jnp.asarray(self.model.inclusion_logits, H.dtype)

        def draw(b, j_and_key):
            j, key = j_and_key
            block = gate_conditional(moments_, H, b, noise, logits, j)
            return b.at[j].set(block.sample(key).astype(b.dtype)), jax.nn.sigmoid(block.logits)

        b, gate_prob = jax.lax.scan(draw, b, (jnp.arange(len(b)), random.split(rng_key, len(b))))
        return H, b, gate_prob
