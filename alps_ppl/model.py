"""GP-ALPS, the generative model, written once (paper, section 2)."""

import reprlib
import sys
import warnings
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
from numpyro.distributions import constraints
from tinygp.kernels import Kernel
from tinygp.transforms import Subspace

from alps_ppl.covariances import Covariance, parameters, with_parameters
from alps_ppl.processes import GaussianProcess
from alps_ppl.temperature import PRIOR_TEMPERATURE

# Where a gate's prior is 0 or 1 its logit is infinite. The site then gets this logit, and the gate itself is set.
LARGEST_LOGIT = 40.0


class ALPS:
    """The GP-ALPS model: a linear mixing model of Gaussian processes with a gate on every latent.

    Calling it runs the NumPyro program (paper, eq. 2)::

        x_j ~ GP(0, k_j),   b_j ~ Bern(theta_j),   H_ij ~ N(0, s_ij),
        f(t) = H (x(t) o b),   y_i(t) ~ N(f_i(t), sigma_i^2)

    with sites ``x`` (latent, time), ``b`` (latent), ``H`` (output, latent), ``noise_variance``
    (output) if it is learnt, and ``y`` (time, output): rows are times, columns are outputs. NaN in
    ``y`` is a missing cell. ``relaxed=True`` makes the gate a RelaxedBernoulli of temperature 1/2,
    as SVI needs; nothing else changes.

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
    covariance_bounds
        ``{latent: {parameter: (low, high)}}``: positive covariance parameters that ``fit_svi`` learns within these
        bounds, from where the covariance has them; ``fit.model`` holds what it learnt. A parameter is an attribute of
        the tinygp covariance, through sums and products by a path: "scale", "kernel2.scale".
    mixing_variance
        s, the prior *variance* of H in squared output units: a number, one per output, or (output, latent).
    noise_variance
        sigma^2 in squared output units. A number or one per output: fixed. A NumPyro distribution: learnt,
        with that prior for each output (the Gibbs sampler needs an InverseGamma).
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
        mixing_variance: float | Sequence[float] | Float[Array, "output latent"] = 1.0,
        noise_variance: float | Sequence[float] | dist.Distribution,
        covariance_bounds: Mapping[str, Mapping[str, tuple[float, float]]] | None = None,
        jitter: float | None = None,
    ):
        self.latents, self.covariances = _named_covariances(covariances)
        self.outputs = output_names(outputs)
        self.gate_names, self.gate_of = _gates(self.latents, shared_gates or {})
        self.inclusion_prior = inclusion_prob if isinstance(inclusion_prob, dist.Beta) else None
        self.inclusion_prob = _inclusion_prob(inclusion_prob, expected_active, self.latents, always_on)
        _check_shared(self)
        self.mixing_variance = _mixing_variance(mixing_variance, len(self.outputs), len(self.latents))
        self.noise_variance = _noise_variance(noise_variance, len(self.outputs))
        self.covariance_bounds = check_bounds(self.latents, self.covariances, covariance_bounds or {})
        self.jitter = None if jitter is None else float(in_range("jitter", jitter, 0.0))

    @property
    def learns_inclusion(self) -> bool:
        """Whether ``inclusion_prob`` is a site of the program."""
        return self.inclusion_prior is not None

    @property
    def learns_noise(self) -> bool:
        """Whether ``noise_variance`` is a site of the program."""
        return isinstance(self.noise_variance, dist.Distribution)

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

    @property
    def gate_plate(self) -> numpyro.plate:
        """The gates' plate: "latent", or "gate" where latents share one."""
        shared = len(self.gate_names) < len(self.latents)
        return numpyro.plate("gate" if shared else "latent", len(self.gate_names))

    def prior_any(self, latents: Sequence[int] | np.ndarray) -> float:
        """The prior probability that at least one of these latents is on."""
        gates = np.unique(self.gate_of[list(latents)])
        prob = self.inclusion_prob[self.first[gates]]
        free = int(((prob > 0) & (prob < 1)).sum())
        if self.inclusion_prior is None or (prob == 1).any() or not free:
            return float(1 - (1 - prob).prod())
        a, b = float(self.inclusion_prior.concentration1), float(self.inclusion_prior.concentration0)
        return float(1 - np.prod([(b + k) / (a + b + k) for k in range(free)]))

    def subset(self, latents: Sequence[str]) -> "ALPS":
        """The same model with these latents only, in this model's order."""
        unknown = [name for name in latents if name not in self.latents]
        if unknown or not len(latents):
            raise ValueError(f"latents: expected some of {list(self.latents)}, got {short(list(latents))}")
        keep = [j for j, name in enumerate(self.latents) if name in set(latents)]
        smaller = copy(self)
        smaller.latents = tuple(self.latents[j] for j in keep)
        smaller.covariances = tuple(self.covariances[j] for j in keep)
        names = [self.gate_names[self.gate_of[j]] for j in keep]
        smaller.gate_names, smaller.gate_of = _numbered(names)
        smaller.inclusion_prob = self.inclusion_prob[keep]
        smaller.mixing_variance = self.mixing_variance[:, keep]
        smaller.covariance_bounds = {n: b for n, b in self.covariance_bounds.items() if n in smaller.latents}
        return smaller

    def covariance_params(self, dtype) -> dict[str, Array]:
        """A ``numpyro.param`` site for each covariance parameter with bounds, "latent.parameter".

        It is the parameter's logarithm: a scale or a period is learnt by its ratio.
        """
        start = {name: parameters(c) for name, c in zip(self.latents, self.covariances, strict=True)}
        return {
            f"{latent}.{path}": numpyro.param(
                f"{latent}.{path}",
                jnp.asarray(np.log(start[latent][path]), dtype),
                constraint=constraints.interval(*np.log(pair)),
            )
            for latent, bounds in self.covariance_bounds.items()
            for path, pair in bounds.items()
        }

    def learnt_covariances(self, params: Mapping[str, Array]) -> tuple[Covariance, ...]:
        """The covariances with the parameters that have bounds from ``params``."""
        return tuple(
            with_parameters(
                c, {path: jnp.exp(params[f"{name}.{path}"]) for path in self.covariance_bounds.get(name, ())}
            )
            for name, c in zip(self.latents, self.covariances, strict=True)
        )

    def with_learnt(self, params: Mapping[str, Array]) -> "ALPS":
        """The model whose covariances have the parameters learnt in ``params``, with none left to learn."""
        if not self.covariance_bounds:
            return self
        learnt = copy(self)
        learnt.covariances = self.learnt_covariances(jax.tree.map(np.asarray, dict(params)))
        learnt.covariance_bounds = {}
        return learnt

    def __call__(
        self,
        inputs: Float[Array, "time *column"],
        y: Float[Array, "time output"] | None = None,
        *,
        relaxed: bool = False,
        num_times: int | None = None,
    ):
        """The program. ``num_times``: of how many times these are a minibatch; only ``y`` is scaled up."""
        inputs, y = self.check(inputs, y, warn=False)
        output = numpyro.plate("output", len(self.outputs))
        time = numpyro.plate("time", len(inputs), dim=-2)

        covariances = self.learnt_covariances(self.covariance_params(inputs.dtype))
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
            scale = jnp.asarray(np.sqrt(self.mixing_variance), inputs.dtype)
            H = numpyro.sample("H", dist.Normal(0.0, scale).to_event(1), infer={"event_dims": ["latent"]})
            noise_variance = (
                numpyro.sample("noise_variance", self.noise_variance)
                if self.learns_noise
                else jnp.asarray(self.noise_variance, inputs.dtype)
            )
        with time, output:
            f = numpyro.deterministic("f", (x.mT * b) @ H.mT)
            noise = dist.Normal(f, jnp.sqrt(noise_variance))
            if y is None:
                return numpyro.sample("y", noise)
            observed = ~jnp.isnan(y)
            with handlers.scale(scale=(num_times or len(inputs)) / len(inputs)):
                return numpyro.sample("y", noise.mask(observed), obs=jnp.where(observed, y, 0.0))

    def check(
        self, inputs: Any, y: Any = None, *, warn: bool = True, name: str = "inputs"
    ) -> tuple[Array, Array | None]:
        """``inputs`` and ``y`` as float arrays of shape (time,) or (time, column) and (time, output).

        Raises a ValueError or TypeError that says what was expected, got, and what to do. ``warn``: of a ``y``
        that float32 is too coarse to fit. ``name``: what errors call the inputs.
        """
        inputs = _check_inputs(inputs, name)
        num_columns = inputs.shape[1] if inputs.ndim == 2 else 1
        for latent, covariance in zip(self.latents, self.covariances, strict=True):
            column = getattr(covariance, "axis", None) if isinstance(covariance, Subspace) else None
            # JAX would take the last column for one that isn't there.
            if isinstance(column, int) and not (inputs.ndim == 2 and -num_columns <= column < num_columns):
                raise ValueError(f"latent {latent!r} reads column {column} of {name}, whose shape is {inputs.shape}")
        return inputs, None if y is None else _check_y(y, inputs, self.outputs, warn)

    def __repr__(self):
        return f"ALPS(latents={list(self.latents)}, outputs={list(self.outputs)})"


def _is_concrete(array) -> bool:
    return not isinstance(array, jax.core.Tracer)


def short(value: Any) -> str:
    """``repr``, on one line and cut, for messages."""
    return " ".join(reprlib.repr(value).split())


def numbers(name: str, value: Any):
    """``value`` as a float64 NumPy array whatever JAX's precision; NaN where pandas or a mask says missing.

    A TypeError for what isn't real numbers or isn't rectangular. A traced array stays as it is.
    """
    if not _is_concrete(value):
        return value
    wrong = TypeError(f"{name}: expected a number or a rectangular array of numbers, got {short(value)}")
    try:
        value = np.ma.filled(value.astype(float), np.nan) if isinstance(value, np.ma.MaskedArray) else value
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise wrong from None
    kinds = {array.dtype.kind, getattr(getattr(value, "dtype", None), "kind", "")}
    if "c" in kinds:
        raise TypeError(f"{name}: expected real numbers, got complex ones; pass real and imaginary parts as outputs")
    if kinds & set("mM"):
        raise TypeError(
            f"{name}: expected numbers, got dates or durations; alps.Data turns dates into hours or days, "
            "or divide by a duration yourself, e.g. (t - t[0]) / numpy.timedelta64(1, 'h')"
        )
    if value is None or kinds & set("UST"):
        raise wrong
    try:
        if array.dtype.kind == "O":  # pandas.NA, without importing pandas
            cells = [np.nan if cell is None or type(cell).__name__ == "NAType" else cell for cell in array.flat]
            return np.array(cells, np.float64).reshape(array.shape)
        return array.astype(np.float64)
    except (TypeError, ValueError):
        raise wrong from None


def in_range(name: str, value: Any, low: float, high: float = np.inf) -> np.ndarray:
    """One finite number in [low, high]."""
    number = numbers(name, value)
    if number.shape != () or not (np.isfinite(number) and low <= number <= high):
        raise ValueError(f"{name}: expected a number from {low:g} to {high:g}, got {short(value)}")
    return number


def check_count(name: str, value: Any) -> None:
    """A ValueError unless ``value`` is a whole number of at least 1."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: expected a positive whole number, got {value!r}")


def warn_caller(message: str) -> None:
    """A UserWarning at the line that called this package, directly or through NumPyro and JAX."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in ("alps_ppl", "numpyro", "jax"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def given(y: Any) -> Any:
    """``y``, which the program may go without but a fit may not."""
    if y is None:
        raise ValueError("y: expected data of shape (time, output), NaN where a cell is missing, got None")
    return y


def _check_inputs(inputs: Any, name: str) -> Array:
    values = numbers(name, inputs)
    if values.ndim not in (1, 2):
        raise ValueError(f"{name}: expected shape (time,) or (time, column), got {values.shape}")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.size == 0:
        raise ValueError(f"{name}: expected at least one time, got shape {values.shape}")
    if not _is_concrete(values):
        return values
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise ValueError(f"{name}: expected finite numbers, got {values[row]} in row {row}; drop that row")
    array = jnp.asarray(values)
    if array.dtype == jnp.float32:
        _warn_if_rounded(values, name)
    return array


def _warn_if_rounded(values: np.ndarray, name: str) -> None:
    columns = values.reshape(len(values), -1).T
    for column in columns:
        gaps = np.diff(np.unique(column))
        error = np.abs(column.astype(np.float32) - column).max()
        if gaps.size and error > 1e-2 * gaps.min():
            warn_caller(
                f"{name}: float32 moves them by up to {error:.2g} where neighbours are {gaps.min():.2g} apart; "
                "subtract the first time, or switch on 64-bit with numpyro.enable_x64()"
            )
            return


def _check_y(y: Any, inputs: Array, outputs: Sequence[str], warn: bool) -> Array:
    columns = getattr(y, "columns", None)
    values = numbers("y", y)
    if values.ndim == 1 and len(outputs) == 1:
        values = values[:, None]
    expected = (len(inputs), len(outputs))
    if values.shape != expected:
        hint = "; this looks like its transpose: pass y.T" if values.shape == expected[::-1] else ""
        raise ValueError(
            f"y: expected shape (time, output) = {expected} for inputs of shape {inputs.shape} and "
            f"{len(outputs)} output(s), got {values.shape}; rows are times, columns are outputs{hint}"
        )
    if columns is not None and set(columns) == set(outputs) and list(columns) != list(outputs):
        raise ValueError(
            f"y: its columns are the model's outputs in another order, {list(columns)}; pass y[{list(outputs)}]"
        )
    if not _is_concrete(values):
        return values
    if np.isinf(values).any():
        row, column = np.argwhere(np.isinf(values))[0]
        raise ValueError(
            f"y: expected finite numbers or NaN (a missing cell), got {values[row, column]} in row {row}, "
            f"output {outputs[column]!r}; put NaN there if the cell is missing"
        )
    if np.isnan(values).all():
        raise ValueError(f"y: every one of its {values.size} cells is missing (NaN); nothing to fit")
    if np.nanmax(np.abs(values)) > jnp.finfo(jnp.asarray(0.0).dtype).max:
        raise ValueError("y: some values overflow float32; rescale y or switch on 64-bit with numpyro.enable_x64()")
    array = jnp.asarray(values)
    if warn and array.dtype == jnp.float32:
        _warn_if_off_centre(values, outputs)
    return array


def _warn_if_off_centre(values: np.ndarray, outputs: Sequence[str]) -> None:
    """The sums of squares that a learnt noise comes from lose all their digits under a large mean."""
    for output, column in zip(outputs, values.T, strict=True):
        cells = column[~np.isnan(column)]
        if cells.size and abs(cells.mean()) > 1e3 * cells.std() > 0:
            warn_caller(
                f"y: output {output!r} has mean {cells.mean():.3g} and sd {cells.std():.2g}, too far from 0 for "
                "float32; subtract the mean (alps.Data does), or switch on 64-bit with numpyro.enable_x64()"
            )
            return


def _named_covariances(covariances) -> tuple[tuple[str, ...], tuple[Covariance, ...]]:
    try:
        items = covariances.items() if isinstance(covariances, Mapping) else covariances
        pairs = [(name, covariance) for name, covariance in items]
    except (TypeError, ValueError):
        raise TypeError(
            f"covariances: expected {{name: covariance}} or (name, covariance) pairs, got {short(covariances)}"
        ) from None
    if not pairs:
        raise ValueError("covariances: expected at least one latent, {name: covariance}, got none")
    names = [str(name) for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"covariances: latent names must differ, got {twice} more than once")
    for name, covariance in pairs:
        if not isinstance(covariance, Kernel):
            raise TypeError(
                f"covariances[{name!r}]: expected a tinygp covariance (tinygp.kernels or alps.linear_periodic), "
                f"got {type(covariance).__name__}"
            )
    return tuple(names), tuple(covariance for _, covariance in pairs)


def output_names(outputs) -> tuple[str, ...]:
    """The names themselves, or y1, y2, ... for a number of outputs; an error for anything else."""
    if isinstance(outputs, (int, np.integer)) and not isinstance(outputs, bool):
        if outputs < 1:
            raise ValueError(f"outputs: expected at least one, got {outputs}")
        return tuple(f"y{i + 1}" for i in range(outputs)) if outputs > 1 else ("y",)
    if isinstance(outputs, str):
        raise TypeError(f"outputs: expected their number or a list of names, got the string {outputs!r}")
    try:
        names = [str(name) for name in outputs]
    except TypeError:
        raise TypeError(f"outputs: expected their number or a list of names, got {short(outputs)}") from None
    if not names or len(set(names)) < len(names):
        raise ValueError(f"outputs: expected at least one name and no name twice, got {names}")
    return tuple(names)


def _gates(latents: Sequence[str], shared: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], np.ndarray]:
    """The gates' names, in the order of their first latents, and the gate of each latent."""
    gate: dict[str, str] = {}
    if not isinstance(shared, Mapping) or not all(isinstance(members, (list, tuple)) for members in shared.values()):
        raise TypeError(f"shared_gates: expected {{gate: [latents]}}, got {short(shared)}")
    for name, members in shared.items():
        if not len(members) or not set(members) <= set(latents) or set(members) & set(gate):
            raise ValueError(
                f"shared_gates[{name!r}]: expected some of the latents {list(latents)}, none of them in another gate, "
                f"got {list(members)}"
            )
        if str(name) in latents and list(members) != [name]:
            raise ValueError(f"shared_gates: {name!r} is a latent's name; give the gate another")
        gate |= dict.fromkeys(members, str(name))
    return _numbered([gate.get(latent, latent) for latent in latents])


def _numbered(gate_of_latent: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    names = tuple(dict.fromkeys(gate_of_latent))
    return names, np.array([names.index(name) for name in gate_of_latent])


def _check_shared(model: ALPS) -> None:
    for g, name in enumerate(model.gate_names):
        prob = model.inclusion_prob[model.gate_of == g]
        if np.ptp(prob) > 0:
            raise ValueError(
                f"shared_gates[{name!r}]: expected one inclusion_prob for its latents, got {prob.tolist()}"
            )


def check_bounds(latents, covariances, bounds) -> dict[str, dict[str, tuple[float, float]]]:
    """``covariance_bounds`` as given; an error for what isn't there or isn't within."""
    if not isinstance(bounds, Mapping):
        raise TypeError(f"covariance_bounds: expected {{latent: {{parameter: (low, high)}}}}, got {short(bounds)}")
    checked: dict[str, dict[str, tuple[float, float]]] = {}
    for latent, by_parameter in bounds.items():
        if latent not in latents or not isinstance(by_parameter, Mapping):
            raise ValueError(
                f"covariance_bounds: expected {{latent: {{parameter: (low, high)}}}} with latents among "
                f"{list(latents)}, got {latent!r}: {short(by_parameter)}"
            )
        for path, pair in by_parameter.items():
            name = f"covariance_bounds[{latent!r}][{path!r}]"
            known = parameters(covariances[latents.index(latent)])
            if path not in known:
                raise ValueError(f"{name}: expected one of the covariance's parameters {list(known)}")
            edges = numbers(name, pair)
            if edges.shape != (2,) or not 0 < edges[0] < edges[1] < np.inf:
                raise ValueError(f"{name}: expected (low, high) with 0 < low < high, got {short(pair)}")
            if np.ndim(known[path]) or not edges[0] < known[path] < edges[1]:
                raise ValueError(
                    f"{name}: expected the covariance's own {short(known[path])}, where learning starts, to be between "
                    f"the bounds, got {edges[0]:g} to {edges[1]:g}"
                )
            checked.setdefault(latent, {})[path] = (float(edges[0]), float(edges[1]))
    return checked


def _inclusion_prob(inclusion_prob, expected_active, latents, always_on) -> Float[np.ndarray, " latent"]:
    num_latents = len(latents)
    names = isinstance(always_on, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in always_on)
    if not names or not set(always_on) <= set(latents):
        raise ValueError(f"always_on: expected a list of some of the latents {list(latents)}, got {always_on!r}")
    always = np.array([name in set(always_on) for name in latents])
    if inclusion_prob is not None and expected_active is not None:
        raise ValueError("give inclusion_prob or expected_active, not both")
    if isinstance(inclusion_prob, dist.Beta):
        if inclusion_prob.batch_shape:
            raise ValueError(
                f"inclusion_prob: expected one Beta prior for all gates, got batch shape {inclusion_prob.batch_shape}"
            )
        inclusion_prob = float(inclusion_prob.mean)
    if expected_active is not None:
        free = num_latents - always.sum()
        expected = in_range("expected_active", expected_active, int(always.sum()), num_latents)
        inclusion_prob = (expected - always.sum()) / max(free, 1)
    prob = numbers("inclusion_prob", 0.5 if inclusion_prob is None else inclusion_prob)
    if prob.shape not in ((), (num_latents,)):
        raise ValueError(f"inclusion_prob: expected a number or one per latent ({num_latents}), got shape {prob.shape}")
    if not ((prob >= 0) & (prob <= 1)).all():
        raise ValueError(f"inclusion_prob: expected probabilities in [0, 1], got {inclusion_prob}")
    return np.where(always, 1.0, prob)


def _positive(name: str, values: np.ndarray) -> np.ndarray:
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"{name}: expected positive, finite variances, got {values.tolist()}")
    return values


def _mixing_variance(mixing_variance, num_outputs: int, num_latents: int) -> Float[np.ndarray, "output latent"]:
    s = numbers("mixing_variance", mixing_variance)
    if s.shape not in ((), (num_outputs,), (num_outputs, num_latents)):
        raise ValueError(
            f"mixing_variance: expected a number, one per output ({num_outputs}), or (output, latent) = "
            f"({num_outputs}, {num_latents}), got shape {s.shape}"
        )
    s = s[:, None] if s.ndim == 1 else s
    return _positive("mixing_variance", np.broadcast_to(s, (num_outputs, num_latents)).copy())


def _noise_variance(noise_variance, num_outputs: int):
    if isinstance(noise_variance, dist.Distribution):
        shape = noise_variance.batch_shape
        if noise_variance.event_shape or shape not in ((), (1,), (num_outputs,)):
            raise ValueError(
                f"noise_variance: expected a prior with batch shape () or ({num_outputs},), got {shape} "
                f"and event shape {noise_variance.event_shape}"
            )
        if bool(jnp.any(noise_variance.support(jnp.asarray(-1.0)))):
            raise ValueError(
                "noise_variance: expected a prior of positive numbers, e.g. InverseGamma, got one of any sign"
            )
        base = getattr(noise_variance, "base_dist", None)
        if isinstance(base, dist.InverseGamma):  # one prior expanded: the Gibbs block reads its parameters
            return dist.InverseGamma(jnp.broadcast_to(base.concentration, shape), base.rate)
        return noise_variance
    variance = numbers("noise_variance", noise_variance)
    if variance.shape not in ((), (num_outputs,)):
        raise ValueError(
            f"noise_variance: expected a number or one per output ({num_outputs}), got shape {variance.shape}"
        )
    return _positive("noise_variance", np.broadcast_to(variance, (num_outputs,)).copy())
