"""The Gibbs sampler as a NumPyro MCMC kernel."""

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.infer.mcmc import MCMCKernel
from numpyro.util import is_prng_key

from alps_ppl import checks
from alps_ppl.gibbs.features import Features, by_latents, latent_features
from alps_ppl.gibbs.moves import MOVES
from alps_ppl.gibbs.shears import sheared
from alps_ppl.gibbs.statistics import Statistics, statistics
from alps_ppl.gibbs.streaming import SummedRows
from alps_ppl.gibbs.sweep import STARTS, ALPSGibbsState, first_state, sweep_chains
from alps_ppl.gibbs.target import Plan, members
from alps_ppl.model.alps import ALPS
from alps_ppl.model.scales import check_grid

# What a user may choose among; a sweep draws the latents, H and what is learnt in any case.
CHOICE = tuple(name for name, move in MOVES.items() if not move.always)
# A process of so many weights, a cycle, can't do a private memory's work.
FEW_WEIGHTS = 4
SETS = {
    "marginal": ("hand_over", "marginal_gate", "exchange", "shear", "scale"),
    "markov": ("hand_over", "marginal_gate", "marginal_swap", "exchange", "shear", "scale"),
    "joint": ("hand_over", "gate_column", "gate_latent", "exchange", "scale"),
    "joint_swap": ("hand_over", "gate_column", "gate_latent", "marginal_swap", "exchange", "scale"),
    "collapsed": ("gate_column", "scale"),
    "paper": ("gate",),
    "all": tuple(name for name in CHOICE if name != "gate"),
}
FEW_OUTPUTS = 2
# Up to so many features a swap is cheap enough to be worth it.
FEW_FEATURES = 200


class ALPSGibbs(MCMCKernel):
    """A Gibbs kernel for :class:`ALPS` (paper, App. C), used as any NumPyro kernel::

        mcmc = MCMC(ALPSGibbs(model), num_warmup=500, num_samples=1000, num_chains=4)
        mcmc.run(rng_key, inputs, y)
        fit = alps.from_mcmc(mcmc)

    All chain methods work; ``alps.fit_gibbs`` is the same sampler with checkpoints, compiled once for all data of one
    shape. ``get_samples()`` has b, H, what is learnt, and ``weights``, the latents' coordinates. The latents, as large
    as all times, are computed where they are asked for: ``alps.from_mcmc(mcmc).samples["x"]``. So NumPyro's
    ``Predictive`` needs those samples, not ``get_samples()``, from which it would draw x anew.

    Parameters
    ----------
    model
        The ``ALPS``; noise is fixed or has an InverseGamma prior.
    moves
        What a sweep has besides its draws of all latents, of H and of what is learnt: names from
        ``alps_ppl.gibbs.kernel.CHOICE``, or the name of a set in ``SETS``: "marginal" integrates all latents out of
        each gate, "markov" also swaps latents with Markov states, "joint" integrates the gate's column of H or its
        latent out, "joint_swap" also swaps latents, "collapsed" is the column alone, "paper" the paper's plain gate,
        which mixes poorly and is kept as the reference, and "all" is all but that. "default" is what measured best in
        effective draws per second (``python -m benchmarks gibbs``): "markov" with several gates of latents with Markov
        states, "marginal" with one, or with one or two outputs, else "joint_swap" with at most 200 features, "joint"
        with more.
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

    ``init_params`` may hold b, H, x and noise_variance, each with a leading chain axis for several
    chains; what it lacks starts as ``start`` says, and where it has b no gate is held. A fitted SVI state:
    ``init_params=alps.init_from_svi(...)``.
    """

    sample_field = "z"

    def __init__(
        self,
        model: ALPS,
        *,
        moves: str | Sequence[str] = "default",
        start: str = "held",
        max_rank: int = 2000,
        tolerance: float | None = None,
    ):
        checks.instance("model", model, ALPS, "an alps_ppl.ALPS")
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
        checks.whole_number("max_rank", max_rank)
        self.model = model
        self.moves = moves
        self.start = start
        self.max_rank = max_rank
        self.tolerance = None if tolerance is None else checks.in_range("tolerance", tolerance, 1e-15, 0.1)
        _chosen_moves(moves, model)
        self._seen: dict[tuple, tuple] = {}

    @property
    def default_fields(self):
        """What is collected without asking: the sites, then the potential energy and the gates' probabilities."""
        return ("z", "potential_energy", "gate_prob")

    def bind(self, inputs: Any, y: Any = None) -> None:
        """Check the data, and choose the features that they need: ``features``, ``plan`` and ``stats`` from here on.

        ``inputs`` may be a ``SummedRows``, which has them already.
        """
        if isinstance(inputs, SummedRows):
            inputs.check_model(self.model, y)
            self.inputs, self.y, self.features, self.stats = inputs.inputs, inputs.y, inputs.features, inputs.stats
        else:
            self.inputs, self.y = self.model.check_data(inputs, y)
            _check_scales(self.model, self.inputs)
            self.features = latent_features(
                self.model.covariances,
                self.inputs,
                names=self.model.latents,
                max_rank=self.max_rank,
                tolerance=self.tolerance,
                unknown=by_latents(self.model),
            )
            self.stats = statistics(
                self.features,
                self.y,
                self.model.private_memory,
                [unknown.grid.log_prior for unknown in self.model.unknown_scales.values()],
                self.model.tails is not None,
            )
        moves = _chosen_moves(self.moves, self.model, self.features)
        has_private, layout = self.model.private_memory is not None, self.features.layout
        private_states = len(self.model.outputs) if has_private and self.features.space is not None else 0
        weights = np.bincount(self.model.gate_of[layout.owner], minlength=len(self.model.gate_names))
        memories = tuple(np.flatnonzero(weights > FEW_WEIGHTS).tolist()) if has_private else ()
        student = self.model.tails is not None
        # Without states Student's noise leaves the memories' grid at one point.
        if not memories or not self.model.learns_noise or (student and self.features.space is None):
            moves = tuple(name for name in moves if name != "hand_over")
        if not self.model.unknown_scales:
            moves = tuple(name for name in moves if name != "unknown_scale")
        pairs = sheared(layout, self.features.observe) if self.features.space is not None else ()
        moves = tuple(name for name in moves if name != "shear" or pairs)
        factors: Any = self.y.shape if student else (0, 0)
        self.plan = Plan(moves, layout, _equal_pairs(self.model), private_states, memories, pairs, factors)
        _warn_if_imprecise(self.model, self.stats)

    def init(self, rng_key, num_warmup, init_params, model_args, model_kwargs):
        """The first state; ``rng_key`` may be a batch of keys (vectorized chains).

        NumPyro calls it before each run of a kernel without ``_sample_fn``, also of one that goes on after its warm-up,
        whose data may be others.
        """
        # Ranks are shapes, so the data's part is computed even where a caller (pmap, vmap) is tracing, at the price of
        # compiling it anew.
        tracing = isinstance(rng_key, jax.core.Tracer)
        with jax.ensure_compile_time_eval() if tracing else nullcontext():
            self._bind_arguments(model_args, model_kwargs)
        return self.first_states(rng_key, num_warmup, init_params)

    def first_states(self, rng_key, num_warmup: int, init_params: dict[str, Array] | None) -> ALPSGibbsState:
        """The state of a chain before its first sweep, or of several where ``rng_key`` is a batch of keys."""
        sites = self._init_sites(init_params, None if is_prng_key(rng_key) else len(rng_key))
        held = self.start == "held" and "b" not in sites
        open_sweeps = num_warmup // 2 if held else 0
        white = held and self.model.private_memory is not None and self.model.learns_noise
        white_sweeps = num_warmup // 5 if white else 0
        return _first_states(self.plan, self.start, self.model, self.stats, rng_key, sites, open_sweeps, white_sweeps)

    def sample(self, state: ALPSGibbsState, model_args, model_kwargs) -> ALPSGibbsState:
        """One sweep over all moves."""
        _refuse_traced_data((model_args, model_kwargs))
        return sweep_chains(self.plan, self.model, self.stats, state)

    def postprocess_fn(self, model_args, model_kwargs):
        """From a draw of the latents' gates to a draw of the site ``b``, and from points to unknown scales."""
        return self.to_sites

    def to_sites(self, z: dict[str, Array]) -> dict[str, Array]:
        """Draws of a state's ``z`` with those of the program's sites."""
        model = self.model
        scales = {
            site: jnp.asarray(unknown.grid.values, self.y.dtype)[z["scales"][..., k]]
            for k, (site, unknown) in enumerate(zip(model.scale_sites, model.unknown_scales.values(), strict=True))
        }
        return {**z, "b": z["b"][..., model.first], **scales}

    def get_diagnostics_str(self, state):
        """For the progress bar."""
        return f"{int(state.z['b'].sum())} of {len(self.model.latents)} latents on"

    def __getstate__(self):
        return {**self.__dict__, "_seen": {}}

    def is_bound_to(self, model_args, model_kwargs) -> bool:
        """Whether the data of ``mcmc.run(rng_key, *model_args, **model_kwargs)`` are the last that were bound."""
        return self._is_data(*self.model.check(*self._data(model_args, model_kwargs)))

    def _is_data(self, inputs: Any, y: Any) -> bool:
        return np.array_equal(inputs, self.inputs) and np.array_equal(y, self.y, equal_nan=True)

    def _data(self, model_args, model_kwargs) -> tuple[Any, Any]:
        bound = inspect.signature(self.model.__call__).bind(*model_args, **model_kwargs).arguments
        if bound.get("relaxed"):
            raise ValueError("ALPSGibbs samples the discrete program; leave relaxed=True out")
        _refuse_traced_data((bound["inputs"], bound.get("y")))
        return bound["inputs"], bound.get("y")

    def _bind_arguments(self, model_args, model_kwargs) -> None:
        inputs, y = self._data(model_args, model_kwargs)
        self.bind(inputs, y)
        # NumPyro compiles a sweep for the arrays themselves, by their identity, and so would miss that they changed.
        *_, inputs_then, y_then = self._seen.setdefault((id(inputs), id(y)), (inputs, y, self.inputs, self.y))
        if not self._is_data(inputs_then, y_then):
            raise ValueError("y: it or the inputs were changed in place since the last run; pass a copy of them")

    def _init_sites(self, init_params, num_chains: int | None) -> dict[str, Array]:
        """The sites that a chain is told to start from, with weights for x; ``num_chains`` is None for one chain."""
        sites, model = dict(init_params or {}), self.model
        sizes = {"b": (len(model.gate_names),), "H": model.mixing_variance.shape}
        sizes |= {"x": (len(model.latents), len(self.inputs))}
        sizes |= {"noise_variance": (len(model.outputs),)} if model.learns_noise else {}
        sizes |= {"inclusion_prob": ()} if model.learns_inclusion else {}
        sizes |= {"scales": (len(model.unknown_scales),)} if model.unknown_scales else {}
        sizes |= {} if model.private_memory is None else {"memory": (len(model.outputs),)}
        sizes |= {} if model.tails is None else {"noise_factor": self.y.shape}
        if not set(sites) <= set(sizes):
            raise ValueError(f"init_params: expected some of {list(sizes)}, got {sorted(sites)}")
        for name, value in sites.items():
            expected = (*((num_chains,) if num_chains else ()), *sizes[name])
            if jnp.shape(value) != expected:
                raise ValueError(f"init_params: expected {name} of shape {expected}, got {jnp.shape(value)}")
            if isinstance(value, jax.core.Tracer):
                continue
            wanted, right = {
                "b": ("numbers from 0 to 1", lambda v: (v >= 0) & (v <= 1)),
                "inclusion_prob": ("probabilities strictly between 0 and 1", lambda v: (v > 0) & (v < 1)),
                "memory": (
                    "points of the private memory's grid",
                    lambda v: np.isin(v, range(len(getattr(model.private_memory, "share", ())))),
                ),
                "noise_factor": (
                    "points of the noise factors' grid",
                    lambda v: np.isin(v, range(len(getattr(model.tails, "variance", ())))),
                ),
                "noise_variance": ("positive, finite numbers", lambda v: (v > 0) & np.isfinite(v)),
            }.get(name, ("finite numbers", np.isfinite))
            if not np.all(right(np.asarray(value))):
                raise ValueError(f"init_params: expected {name} to hold {wanted}")
        if model.unknown_scales and "scales" not in sites:
            sites.pop("x", None)  # what its weights are depends on the scales; the first sweep draws it
        if "x" in sites:
            held = self.features.weights(jnp.asarray(sites.pop("x")))
            sites["weights"] = self.features.own_weights(held, jnp.asarray(sites.get("scales", 0)))
        return sites


@partial(jax.jit, static_argnums=(0, 1))
def _first_states(plan, start, model, stats, rng_key, sites, open_sweeps, white_sweeps):
    one = partial(first_state, plan, start, model, stats, open_sweeps=open_sweeps, white_sweeps=white_sweeps)
    return one(rng_key, sites) if is_prng_key(rng_key) else jax.vmap(one)(rng_key, sites)


def _refuse_traced_data(data):
    """The features and their number come from the data's values."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(data)):
        raise TypeError(
            "ALPSGibbs needs concrete data to choose its features: leave jit_model_args=True out (alps.fit_gibbs "
            "compiles once for all data of one shape)"
        )


def _warn_if_imprecise(model: ALPS, stats: Statistics) -> None:
    if model.learns_noise or stats.sum_squares.dtype == jnp.float64:
        return
    mean_square = np.asarray(stats.sum_squares) / np.maximum(np.asarray(stats.num_observed), 1)
    if (mean_square * 1e-5 > model.noise_variance).any():
        checks.warn_caller(
            "float32 can't resolve a noise variance of less than a hundred-thousandth of the data's mean "
            "square; switch on 64-bit with numpyro.enable_x64()"
        )


def _check_scales(model: ALPS, inputs: Array) -> None:
    """A ValueError for unknown scales that these inputs, or this precision, can't have."""
    if model.unknown_scales and inputs.dtype != jnp.float64:
        raise ValueError("covariance_ranges: an unknown scale needs 64-bit; call numpyro.enable_x64() first")
    for name, unknown in model.unknown_scales.items():
        check_grid(name, model.covariances[model.copy_of.index(name)], unknown, inputs)


def _equal_pairs(model: ALPS) -> tuple[tuple[int, int], ...]:
    """The pairs of gates whose latents have equal covariances: they can change places."""
    group = model.covariance_groups
    of_gate = [[group[j] for j in gate] for gate in members(model)]
    return tuple((g, h) for g, h in combinations(range(len(of_gate)), 2) if of_gate[g] == of_gate[h])


def _chosen_moves(moves: str | Sequence[str], model: ALPS, features: Features | None = None) -> tuple[str, ...]:
    """All moves of a sweep in their order; what depends on the data's features is settled once there are any."""
    has_states = features is not None and features.space is not None
    named: Any = moves
    if moves == "default":
        few_features = features is not None and features.num_features <= FEW_FEATURES
        joint = "joint_swap" if few_features else "joint"
        named = "marginal" if len(model.outputs) <= FEW_OUTPUTS or has_states else joint
        rivals = {int(model.gate_of[j]) for j in features.layout.state_owner} if features is not None else set()
        named = "markov" if len(rivals) > 1 else named
    chosen = SETS.get(named, (named,)) if isinstance(named, str) else named
    if not isinstance(chosen, (list, tuple)) or not set(chosen) <= set(CHOICE):
        raise ValueError(
            f"moves: expected the name of a set, one of {['default', *SETS]} as a string, or a list of moves among "
            f"{list(CHOICE)}, got {moves!r}"
        )
    if not any("gate" in move for move in chosen):
        raise ValueError(f"moves: expected a move of the gates ({[m for m in CHOICE if 'gate' in m]}), got {chosen}")
    a_set = isinstance(moves, str) and moves not in CHOICE
    if has_states and "gate_latent" in chosen:
        if not a_set:
            raise ValueError("moves: gate_latent isn't there for a latent with Markov states; use marginal_gate")
        chosen = tuple(move for move in chosen if move != "gate_latent")
    return tuple(name for name, move in MOVES.items() if move.always or name in chosen)
