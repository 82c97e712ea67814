"""GP-ALPS, the generative model, written once (paper, section 2)."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Int
from numpyro import handlers
from tinygp.transforms import Subspace

from alps_ppl import checks
from alps_ppl.model import arguments
from alps_ppl.model.covariances import Covariance, prior_variances
from alps_ppl.model.leaves import by_name, from_names
from alps_ppl.model.memory import OutputNoise, PrivateMemory, UnknownMemoryNoise
from alps_ppl.model.processes import GaussianProcess
from alps_ppl.model.scales import OnGrid, UnknownScale
from alps_ppl.model.tails import NoiseFactors, noise_factors
from alps_ppl.model.unknown import UnknownParameters

# Of the relaxed program's gates (paper, App. B.7).
PRIOR_TEMPERATURE = 0.5
# Where a gate's prior is 0 or 1 its logit is infinite. The site then gets this logit, and the gate itself is set.
LARGEST_LOGIT = 40.0


@jax.tree_util.register_pytree_node_class
class ALPS(UnknownParameters):
    """The GP-ALPS model: a linear mixing model of Gaussian processes with a gate on every latent.

    Calling it runs the NumPyro program (paper, eq. 2)::

        x_j ~ GP(0, k_j),   b_j ~ Bern(theta_j),   H_ij ~ N(0, s_ij),
        f(t) = H (x(t) o b),   y_i(t) ~ N(f_i(t), sigma_i^2)

    with sites ``x`` (latent, time), ``b`` (latent), ``H`` (output, latent), ``noise_variance``
    (output) if it is learnt, and ``y`` (time, output): rows are times, columns are outputs. NaN in
    ``y`` is a missing cell. ``relaxed=True`` makes the gate a RelaxedBernoulli of temperature 1/2,
    as SVI needs; nothing else changes. A model is a JAX pytree of its priors' numbers, so compiled functions take it as
    an argument.

    Parameters
    ----------
    covariances
        A tinygp covariance for each latent's name.
    outputs
        The outputs' names, or how many there are.
    inclusion_prob
        theta, the prior probability of a gate: a number or one per latent; 0 and 1 mean never and
        always. A ``dist.Beta``: one theta for all gates, learnt, with that prior. Or give ``expected_active``, the
        prior mean of the number of active latents. Default 1/2.
    always_on
        Names of latents that have no gate: theta is 1 for them.
    shared_gates
        ``{gate: [latents]}``: latents that are on or off together, with one gate b. The site ``b`` then has a
        value per gate, in the order of ``gate_names``; ``gates(b)`` spreads it over the latents.
    copies
        ``{latent: number}``: so many latents of its covariance, "daily 1", "daily 2" and so on, in the place of that
        latent, with one gate and a column of H each. One gate with two copies of a linear-periodic covariance gives
        every output an amplitude and a phase of its own. The other arguments speak of the latent as one.
    private_memory
        A memory that each output has for itself, besides its white noise: ``alps.private_memory(inputs)``. None, the
        paper's model, has none. ``noise_variance`` is then the variance of both together.
    covariance_bounds
        ``{latent: {parameter: (low, high)}}``: positive covariance parameters that ``fit_svi`` learns within these
        bounds, from where the covariance has them; ``fit.model`` holds what it learnt. A parameter is an attribute of
        the tinygp covariance, through sums and products by a path: "scale", "kernel2.scale".
    covariance_ranges
        ``{latent: {parameter: (low, high)}}``: a positive covariance parameter that isn't known, a lengthscale or a
        period, with a log-uniform prior between these; one of a latent, and copies have it together. It is the site
        "latent.parameter", on a grid: ``(low, high, points)`` says of how many points. ``fit_gibbs`` draws it together
        with the gate, and ``alps.scales(fit)`` is what it found; ``fit_svi`` learns it as one with bounds.
    mixing_variance
        s, the prior *variance* of H in squared output units: a number, one per output, or (output, latent).
    noise_variance
        sigma^2 in squared output units. A number or one per output: fixed. A NumPyro distribution: learnt,
        with that prior for each output (the Gibbs sampler needs an InverseGamma).
    noise_df
        Student's t of so many degrees of freedom, from 2 to 30, for the white noise, of scale sigma_i: a cell far out
        of all else then weighs little. None: the paper's normal noise. Each cell has a factor v of its
        noise variance, the site ``noise_factor`` (time, output), a point of a grid: see ``alps_ppl.model.tails``.
    jitter
        Added to Gram matrices before a Cholesky factor, relative to their mean diagonal. Default 1e-8
        in float64 and 1e-4 in float32.

    Raises ValueError or TypeError when an argument is none of these.
    """

    def __init__(
        self,
        covariances: Mapping[str, Covariance] | Iterable[tuple[str, Covariance]],
        outputs: int | Sequence[str] = 1,
        *,
        inclusion_prob: float | Sequence[float] | dist.Beta | None = None,
        expected_active: float | None = None,
        always_on: Sequence[str] = (),
        shared_gates: Mapping[str, Sequence[str]] | None = None,
        copies: Mapping[str, int] | None = None,
        private_memory: PrivateMemory | None = None,
        mixing_variance: float | Sequence[float] | Float[Array, "output latent"] = 1.0,
        noise_variance: float | Sequence[float] | dist.Distribution,
        covariance_bounds: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
        covariance_ranges: Mapping[str, Mapping[str, Sequence[float]]] | None = None,
        noise_df: float | None = None,
        jitter: float | None = None,
    ):
        names, of_name = arguments.named_covariances(covariances)
        self.outputs = checks.output_names(outputs)
        self.latents, copied = arguments.copies(names, copies or {})
        self.copy_of = tuple(names[k] for k in copied)
        self.covariances = tuple(of_name[k] for k in copied)
        self.gate_names, gate_of = arguments.gates(names, shared_gates or {})
        self.gate_of = gate_of[copied]
        self.inclusion_prior: Any = inclusion_prob if isinstance(inclusion_prob, dist.Beta) else None
        prob = arguments.inclusion_probs(inclusion_prob, expected_active, names, always_on, gate_of)
        self.inclusion_prob = prob[copied]
        self.mixing_variance = arguments.mixing_variances(mixing_variance, len(self.outputs), len(names))[:, copied]
        self.noise_variance: Any = arguments.noise_variances(noise_variance, len(self.outputs))
        self.private_memory = arguments.private_memory(private_memory)
        self.covariance_bounds = arguments.covariance_bounds(names, of_name, covariance_bounds or {})
        self.unknown_scales: dict[str, UnknownScale] = arguments.covariance_ranges(
            names, of_name, covariance_ranges or {}, self.covariance_bounds
        )
        self.noise_df = None if noise_df is None else checks.in_range("noise_df", noise_df, 2.0, 30.0)
        self.jitter = None if jitter is None else checks.in_range("jitter", jitter, 0.0)

    def __call__(
        self,
        inputs: Float[Array, "time *column"],
        y: Float[Array, "time output"] | None = None,
        *,
        relaxed: bool = False,
        num_times: int | None = None,
    ):
        """The program, after a check of its arguments.

        Parameters
        ----------
        inputs
            (time,) or (time, column).
        y
            (time, output), NaN for a missing cell; None draws it.
        relaxed
            Whether the gates are RelaxedBernoulli, and points of private memories and noise factors are summed out.
        num_times
            Of how many times these are a minibatch: only ``y`` is scaled up.
        """
        return self.program(*self.check(inputs, y), relaxed=relaxed, num_times=num_times)

    def program(
        self,
        inputs: Array,
        y: Array | None = None,
        *,
        relaxed: bool = False,
        num_times: int | None = None,
        sum_out: bool | None = None,
    ):
        """Eq. 2: ``__call__``, with its parameters, but without the check.

        ``sum_out`` is whether the points of private memories and of noise factors are summed out, None: where the
        program is relaxed.
        """
        sum_out = relaxed if sum_out is None else sum_out
        output = numpyro.plate("output", len(self.outputs))
        time = numpyro.plate("time", len(inputs), dim=-2)

        covariances = self.learnt_covariances(self.covariance_params(inputs.dtype))
        if self.unknown_scales:
            grids = {
                name: unknown.grid for name, unknown in zip(self.scale_sites, self.unknown_scales.values(), strict=True)
            }
            covariances = self.at_scales({name: numpyro.sample(name, OnGrid(grid)) for name, grid in grids.items()})
        x = numpyro.sample(
            "x",
            GaussianProcess(covariances, inputs, jitter=self.jitter),
            infer={"event_dims": ["latent", "time"]},
        )
        logits = jnp.asarray(self.site_logits, inputs.dtype)
        if self.learns_inclusion:
            theta = numpyro.sample("inclusion_prob", self.inclusion_prior)
            logits = jnp.where(self.certain[self.first], logits, jax.scipy.special.logit(theta))
        with self.gate_plate:
            bernoulli = (
                dist.RelaxedBernoulliLogits(PRIOR_TEMPERATURE, logits) if relaxed else dist.Bernoulli(logits=logits)
            )
            b = self.gates(numpyro.sample("b", bernoulli))
        with output:
            scale = jnp.sqrt(jnp.asarray(self.mixing_variance, inputs.dtype))
            H = numpyro.sample("H", dist.Normal(0.0, scale).to_event(1), infer={"event_dims": ["latent"]})
            noise_variance = (
                numpyro.sample("noise_variance", self.noise_variance)
                if self.learns_noise
                else jnp.asarray(self.noise_variance, inputs.dtype)
            )
            if self.private_memory is not None and not sum_out:
                memory = numpyro.sample("memory", dist.Categorical(logits=self.private_memory.log_prior))
        factors = None
        if self.tails is not None and not sum_out:
            with time, output:
                point = numpyro.sample("noise_factor", dist.Categorical(logits=self.tails.log_prior))
            factors = jnp.asarray(self.tails.variance, inputs.dtype)[point]
        if self.private_memory is not None:
            if num_times not in (None, len(inputs)):
                raise ValueError(
                    "num_times: with a private memory times aren't independent: a minibatch can't be scaled up"
                )
            f = numpyro.deterministic("f", (x.mT * b) @ H.mT)
            if sum_out:
                self.check_sum_out()
                own = UnknownMemoryNoise(f, noise_variance, self.private_memory, inputs, observed=y)
            else:
                here = self.private_memory.at(memory)
                own = OutputNoise(f, noise_variance, here, inputs, observed=y, factors=factors)
            return numpyro.sample("y", own, obs=None if y is None else jnp.nan_to_num(y))
        with time, output:
            f = numpyro.deterministic("f", (x.mT * b) @ H.mT)
            noise = dist.Normal(f, jnp.sqrt(noise_variance if factors is None else noise_variance * factors))
            if self.tails is not None and sum_out:
                noise = self.tails.mixture(f, noise_variance)
            if y is None:
                return numpyro.sample("y", noise)
            observed = ~jnp.isnan(y)
            with handlers.scale(scale=(num_times or len(inputs)) / len(inputs)):
                return numpyro.sample("y", noise.mask(observed), obs=jnp.where(observed, y, 0.0))

    def check(self, inputs: Any, y: Any = None, *, name: str = "inputs") -> tuple[Array, Array | None]:
        """``inputs`` and ``y`` as float arrays of shape (time,) or (time, column) and (time, output).

        Parameters
        ----------
        inputs
            Numbers, in any order; ``name`` is what errors call them.
        y
            (time, output) with NaN for a missing cell, or None.

        Raises a ValueError or TypeError that says what was expected, got, and what to do.
        """
        inputs = checks.times(inputs, name)
        num_columns = inputs.shape[1] if inputs.ndim == 2 else 1
        if self.private_memory is not None and num_columns > 1:
            raise ValueError(f"{name}: a private memory runs along one column of times, got shape {inputs.shape}")
        for latent, covariance in zip(self.latents, self.covariances, strict=True):
            column = getattr(covariance, "axis", None) if isinstance(covariance, Subspace) else None
            # JAX would take the last column for one that isn't there.
            if isinstance(column, int) and not (inputs.ndim == 2 and -num_columns <= column < num_columns):
                raise ValueError(f"latent {latent!r} reads column {column} of {name}, whose shape is {inputs.shape}")
        return inputs, None if y is None else checks.cells(y, inputs, self.outputs)

    def check_data(self, inputs: Any, y: Any) -> tuple[Array, Array]:
        """``check`` for a fit: ``y`` has to be there, and float32 has to be fine enough for it."""
        if y is None:
            raise ValueError("y: expected data of shape (time, output), NaN where a cell is missing, got None")
        inputs, y = self.check(inputs, y)
        checks.warn_if_off_centre(y, self.outputs)
        checks.warn_if_off_scale(y, self._expected_variance(inputs), self.outputs)
        return inputs, y

    def _expected_variance(self, inputs: Array) -> Float[np.ndarray, " output"]:
        """Of each output, as its priors have it with every gate on and learnt noise at its prior's mode."""
        noise = self.noise_variance
        if self.learns_noise:
            is_known = isinstance(noise, dist.InverseGamma)
            noise = np.asarray(noise.rate / (noise.concentration + 1)) if is_known else 0.0
        if isinstance(inputs, jax.core.Tracer):
            return self.mixing_variance.sum(1) + noise
        of_latents = prior_variances(self.covariances, checks.some_of(inputs)).mean(1)
        return self.mixing_variance @ np.asarray(of_latents) + noise

    @property
    def tails(self) -> NoiseFactors | None:
        """The grid of the cells' noise factors, where noise is Student's."""
        return None if self.noise_df is None else noise_factors(self.noise_df)

    def check_sum_out(self) -> None:
        """A ValueError where the points of memories and of noise factors can't both be summed out, as SVI needs."""
        if self.tails is not None and self.private_memory is not None:
            raise ValueError(
                "noise_df: SVI can't have Student's noise and private memories together; fit by Gibbs, or leave one out"
            )

    learns_inclusion = property(lambda self: self.inclusion_prior is not None, doc="Whether theta is a site.")
    learns_noise = property(lambda self: isinstance(self.noise_variance, dist.Distribution), doc="Whether sigma^2 is.")

    @property
    def inclusion_logits(self) -> Float[np.ndarray, " latent"]:
        """Logit theta, infinite where theta is 0 or 1."""
        with np.errstate(divide="ignore"):
            return np.log(self.inclusion_prob) - np.log1p(-self.inclusion_prob)

    @property
    def certain(self) -> Bool[np.ndarray, " latent"]:
        """Where theta is 0 or 1: such a gate is fixed, and its site has no effect."""
        return (self.inclusion_prob == 0) | (self.inclusion_prob == 1)

    @property
    def first(self) -> Int[np.ndarray, " gate"]:
        """The first latent of each gate."""
        return np.unique(self.gate_of, return_index=True)[1]

    @property
    def site_logits(self) -> Float[np.ndarray, " gate"]:
        """The logits of the site ``b``: logit theta, but finite."""
        return np.clip(self.inclusion_logits, -LARGEST_LOGIT, LARGEST_LOGIT)[self.first]

    def gates(self, b: Float[Array, "*draw gate"]) -> Float[Array, "*draw latent"]:
        """The latents' gates from the site ``b``, exactly 0 or 1 where the prior says never or always."""
        b = b if len(self.gate_names) == len(self.latents) else b[..., self.gate_of]
        certain = self.certain
        return jnp.where(certain, self.inclusion_prob.astype(b.dtype), b) if certain.any() else b

    def gated_H(self, sites: Mapping[str, Array]) -> Float[Array, "draw output latent"]:
        """H_ij b_j in draws of the sites."""
        return self.gates(sites["b"].astype(sites["H"].dtype))[:, None, :] * sites["H"]

    def noise_variances(self, sites: Mapping[str, Array]) -> Float[Array, "*draw output"]:
        """The outputs' noise variances in draws of the sites, which have them where they are learnt."""
        if self.learns_noise:
            return sites["noise_variance"]
        H = sites["H"]
        return jnp.broadcast_to(jnp.asarray(self.noise_variance, H.dtype), H.shape[:-1])

    @property
    def gate_plate(self) -> numpyro.plate:
        """The gates' plate: "latent", or "gate" where latents share one."""
        shared = len(self.gate_names) < len(self.latents)
        return numpyro.plate("gate" if shared else "latent", len(self.gate_names))

    def subset(self, latents: Sequence[str]) -> "ALPS":
        """The same model with these latents only, in this model's order; of copies all stay or none."""
        wanted = {self.copy_of[self.latents.index(name)] if name in self.latents else name for name in latents}
        if not wanted or not wanted <= set(self.copy_of):
            raise ValueError(f"latents: expected some of {list(self.latents)}, got {checks.short(list(latents))}")
        keep = [j for j, name in enumerate(self.copy_of) if name in wanted]
        smaller = copy(self)
        smaller.latents = tuple(self.latents[j] for j in keep)
        smaller.copy_of = tuple(self.copy_of[j] for j in keep)
        smaller.covariances = tuple(self.covariances[j] for j in keep)
        smaller.gate_names, smaller.gate_of = arguments.numbered([self.gate_names[self.gate_of[j]] for j in keep])
        smaller.inclusion_prob = self.inclusion_prob[keep]
        smaller.mixing_variance = self.mixing_variance[:, keep]
        smaller.covariance_bounds = {n: b for n, b in self.covariance_bounds.items() if n in smaller.copy_of}
        smaller.unknown_scales = {n: u for n, u in self.unknown_scales.items() if n in smaller.copy_of}
        return smaller

    def tree_flatten(self):
        """The priors' numbers, and what a program is compiled for: names, gates, inclusion_prob, bounds, jitter."""
        (noise, of_noise), (inclusion, of_inclusion) = map(by_name, (self.noise_variance, self.inclusion_prior))
        numbers = (self.covariances, self.mixing_variance, noise, inclusion)
        numbers += (self.private_memory, tuple(unknown.grid for unknown in self.unknown_scales.values()))
        paths = tuple((name, unknown.path) for name, unknown in self.unknown_scales.items())
        bounds = tuple((name, tuple(by_path.items())) for name, by_path in self.covariance_bounds.items())
        shape = (self.latents, self.copy_of, self.outputs, self.gate_names, tuple(self.gate_of.tolist()))
        shape += (tuple(self.inclusion_prob.tolist()), bounds, paths, self.noise_df, self.jitter, of_noise)
        shape += (of_inclusion,)
        return numbers, shape

    @classmethod
    def tree_unflatten(cls, shape, numbers) -> "ALPS":
        """The model again, its numbers perhaps traced."""
        model = object.__new__(cls)
        model.covariances, model.mixing_variance, noise, inclusion, *rest = numbers
        model.private_memory, grids = rest
        model.latents, model.copy_of, model.outputs, model.gate_names, gate_of, inclusion_prob, *rest = shape
        bounds, paths, model.noise_df, model.jitter, *of_priors = rest
        model.noise_variance, model.inclusion_prior = map(from_names, (noise, inclusion), of_priors)
        named = zip(paths, grids, strict=True)
        model.unknown_scales = {name: UnknownScale(path, grid) for (name, path), grid in named}
        model.gate_of, model.inclusion_prob = np.array(gate_of), np.array(inclusion_prob)
        model.covariance_bounds = {name: dict(by_path) for name, by_path in bounds}
        return model

    def __repr__(self):
        return f"ALPS(latents={list(self.latents)}, outputs={list(self.outputs)})"
