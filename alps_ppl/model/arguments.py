"""The arguments of ``ALPS`` as arrays of known shapes, or an error that says what was expected."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Float, Int

from alps_ppl.checks import in_range, instance, numbers, positive, short, whole_number
from alps_ppl.model.covariances import Covariance, parameters
from alps_ppl.model.memory import PrivateMemory
from alps_ppl.model.scales import MOST_POINTS, UnknownScale, kind_of, num_points, scale_grid


def named_covariances(covariances: Any) -> tuple[tuple[str, ...], tuple[Covariance, ...]]:
    """The latents' names and their covariances, from a mapping or pairs."""
    try:
        items = [(str(n), c) for n, c in (covariances.items() if isinstance(covariances, Mapping) else covariances)]
    except (TypeError, ValueError):
        raise TypeError(
            f"covariances: expected {{name: covariance}} or (name, covariance) pairs, got {short(covariances)}"
        ) from None
    pairs = dict(items)
    if not pairs or len(pairs) < len(items):
        raise ValueError(f"covariances: expected at least one latent and no name twice, got {short(list(pairs))}")
    for name, covariance in pairs.items():
        if not isinstance(covariance, Covariance):
            raise TypeError(
                f"covariances[{name!r}]: expected a tinygp covariance (tinygp.kernels or alps.linear_periodic), "
                f"got {type(covariance).__name__}"
            )
    return tuple(pairs), tuple(pairs.values())


# A covariance of low rank has no use for more; one of full rank would fill memory.
MOST_COPIES = 20


def copies(names: Sequence[str], number: Mapping[str, int]) -> tuple[tuple[str, ...], Int[np.ndarray, " latent"]]:
    """The latents' names, each copy with its number, and which of ``names`` each is."""
    instance("copies", number, Mapping, "{latent: number of copies}")
    if not set(number) <= set(names):
        raise ValueError(f"copies: expected some of the latents {list(names)}, got {short(list(number))}")
    for name, count in number.items():
        whole_number(f"copies[{name!r}]", count)
        in_range(f"copies[{name!r}]", count, 1, MOST_COPIES)
    counts = [number.get(name, 1) for name in names]
    latents = [f"{n} {c + 1}" if k > 1 else n for n, k in zip(names, counts, strict=True) for c in range(k)]
    made = {f"{n} {c + 1}" for n, k in zip(names, counts, strict=True) if k > 1 for c in range(k)}
    if taken := sorted(made & set(names)):
        raise ValueError(f"copies: {', '.join(taken)} is a latent's name and that of another's copy; rename the latent")
    return tuple(latents), np.repeat(np.arange(len(names)), counts)


def private_memory(memory: Any) -> PrivateMemory | None:
    """None, or what ``alps.private_memory`` made."""
    if memory is not None:
        instance("private_memory", memory, PrivateMemory, "what alps.private_memory(inputs) returns, or None")
    return memory


def gates(latents: Sequence[str], shared: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], np.ndarray]:
    """The gates' names, in the order of their first latents, and the gate of each latent."""
    gate: dict[str, str] = {}
    instance("shared_gates", shared, Mapping, "{gate: [latents]}")
    for name, members in shared.items():
        instance(f"shared_gates[{name!r}]", members, Sequence, "a list of latents")
        taken = str(name) in latents and list(members) != [name]
        if taken or not members or not set(members) <= set(latents) - set(gate):
            raise ValueError(
                f"shared_gates[{name!r}]: expected a name that no latent has, and a list of some of the latents "
                f"{list(latents)}, none of them in another gate, got {short(members)}"
            )
        gate |= dict.fromkeys(members, str(name))
    return numbered([gate.get(latent, latent) for latent in latents])


def numbered(gate_of_latent: Sequence[str]) -> tuple[tuple[str, ...], Int[np.ndarray, " latent"]]:
    """The different names, and each latent's number among them."""
    names = tuple(dict.fromkeys(gate_of_latent))
    return names, np.array([names.index(name) for name in gate_of_latent])


def inclusion_probs(
    inclusion_prob: Any, expected_active: Any, latents: Sequence[str], always_on: Sequence[str], gate_of: np.ndarray
) -> Float[np.ndarray, " latent"]:
    """Theta of each latent; the prior mean where it is learnt."""
    instance("always_on", always_on, Collection, "a list of latents")
    if isinstance(always_on, str) or not set(always_on) <= set(latents):
        raise ValueError(f"always_on: expected a list of some of the latents {list(latents)}, got {always_on!r}")
    if inclusion_prob is not None and expected_active is not None:
        raise ValueError("give inclusion_prob or expected_active, not both")
    always = np.isin(latents, list(always_on))
    if isinstance(inclusion_prob, dist.Distribution):
        if not isinstance(inclusion_prob, dist.Beta) or inclusion_prob.batch_shape:
            got = f"{type(inclusion_prob).__name__} of batch shape {inclusion_prob.batch_shape}"
            raise ValueError(f"inclusion_prob: expected one Beta, whose theta all latents share, got {got}")
        inclusion_prob = float(inclusion_prob.mean)
    if expected_active is not None:
        expected = in_range("expected_active", expected_active, int(always.sum()), len(latents))
        inclusion_prob = (expected - always.sum()) / max(len(latents) - always.sum(), 1)
    prob = numbers("inclusion_prob", 0.5 if inclusion_prob is None else inclusion_prob)
    if prob.shape not in ((), (len(latents),)) or not ((prob >= 0) & (prob <= 1)).all():
        raise ValueError(
            f"inclusion_prob: expected probabilities in [0, 1], one or one per latent ({len(latents)}), got "
            f"{short(inclusion_prob)}"
        )
    prob = np.where(always, 1.0, prob)
    if not (prob == prob[np.unique(gate_of, return_index=True)[1]][gate_of]).all():
        raise ValueError(f"shared_gates: expected one inclusion_prob for the latents of a gate, got {prob.tolist()}")
    return prob


def mixing_variances(mixing_variance: Any, num_outputs: int, num_latents: int) -> Float[np.ndarray, "output latent"]:
    """s_ij, from a number, one per output, or all."""
    shapes = ((), (num_outputs,), (num_outputs, num_latents))
    described = f"a number, one per output ({num_outputs}), or (output, latent) = ({num_outputs}, {num_latents})"
    s = positive("mixing_variance", mixing_variance, shapes, described)
    return np.broadcast_to(s[:, None] if s.ndim == 1 else s, (num_outputs, num_latents)).copy()


def noise_variances(noise_variance: Any, num_outputs: int) -> Float[np.ndarray, " output"] | dist.Distribution:
    """Fixed variances, one per output, or the prior of learnt ones."""
    if not isinstance(noise_variance, dist.Distribution):
        described = f"a number or one per output ({num_outputs})"
        variance = positive("noise_variance", noise_variance, ((), (num_outputs,)), described)
        return np.broadcast_to(variance, (num_outputs,)).copy()
    shape = noise_variance.batch_shape
    right_shape = shape in ((), (1,), (num_outputs,)) and not noise_variance.event_shape
    if not right_shape or bool(jnp.any(noise_variance.support(jnp.asarray(-1.0)))):
        raise ValueError(
            f"noise_variance: expected a prior of positive numbers, e.g. InverseGamma, of batch shape () or "
            f"({num_outputs},), got {type(noise_variance).__name__} of batch shape {shape}"
        )
    base = getattr(noise_variance, "base_dist", None)
    if isinstance(base, dist.InverseGamma):  # one prior expanded: its Gibbs conditional reads its parameters
        return dist.InverseGamma(jnp.broadcast_to(base.concentration, shape), base.rate)
    return noise_variance


def covariance_bounds(
    latents: Sequence[str], covariances: Sequence[Covariance], bounds: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, tuple[float, float]]]:
    """``{latent: {parameter: (low, high)}}`` of parameters that there are, each now between its bounds."""
    checked: dict[str, dict[str, tuple[float, float]]] = {}
    instance("covariance_bounds", bounds, Mapping, "{latent: {parameter: (low, high)}}")
    known = {name: parameters(covariance) for name, covariance in zip(latents, covariances, strict=True)}
    for latent, path, pair in (
        (name, path, pair) for name, by_path in bounds.items() for path, pair in by_path.items()
    ):
        name = f"covariance_bounds[{latent!r}][{path!r}]"
        if path not in known.get(latent, ()):
            parts = {of: list(its) for of, its in known.items()}
            raise ValueError(f"{name}: expected a latent and one of its covariance's parameters, {parts}")
        edges, own = numbers(name, pair), known[latent][path]
        if edges.shape != (2,) or np.ndim(own) or not 0 < edges[0] < own < edges[1] < np.inf:
            raise ValueError(
                f"{name}: expected (low, high), positive, with the covariance's own {short(own)}, where learning "
                f"starts, between them, got {short(pair)}"
            )
        checked.setdefault(latent, {})[path] = (float(edges[0]), float(edges[1]))
    return checked


# Of a period over a range without a number of points: a fit says where these are too few.
POINTS_OF_A_PERIOD = 200


def covariance_ranges(
    latents: Sequence[str],
    covariances: Sequence[Covariance],
    ranges: Mapping[str, Mapping[str, Any]],
    bounds: Mapping[str, Any],
) -> dict[str, UnknownScale]:
    """``{latent: its unknown scale}`` from ``{latent: {parameter: (low, high) or (low, high, points)}}``."""
    instance("covariance_ranges", ranges, Mapping, "{latent: {parameter: (low, high)}}")
    known = dict(zip(latents, covariances, strict=True))
    checked: dict[str, UnknownScale] = {}
    for latent, by_path in ranges.items():
        instance(f"covariance_ranges[{latent!r}]", by_path, Mapping, "{parameter: (low, high)}")
        if latent not in known:
            raise ValueError(f"covariance_ranges: expected some of the latents {list(latents)}, got {latent!r}")
        if latent in bounds:
            raise ValueError(
                f"covariance_ranges[{latent!r}]: it has covariance_bounds, too (--learn); leave one of them out"
            )
        if len(by_path) != 1:
            raise ValueError(f"covariance_ranges[{latent!r}]: expected one parameter, got {short(list(by_path))}")
        ((path, given),) = by_path.items()
        name = f"covariance_ranges[{latent!r}][{path!r}]"
        if path not in (paths := parameters(known[latent])) or np.ndim(paths[path]):
            raise ValueError(f"{name}: expected one of its covariance's parameters, {list(paths)}")
        edges = numbers(name, given)
        kind = kind_of(known[latent], path)
        least = -np.inf if kind == "time" else 0
        if edges.shape not in ((2,), (3,)) or not least < edges[0] < edges[1] < np.inf:
            positive_ = "finite" if kind == "time" else "positive"
            raise ValueError(f"{name}: expected (low, high) or (low, high, points), {positive_}, got {short(given)}")
        low, high = map(float, edges[:2])
        enough = POINTS_OF_A_PERIOD if kind == "period" else num_points(low, high, 0.0, kind)
        points = edges[2] if len(edges) == 3 else enough
        if points != int(points) or not 2 <= points <= MOST_POINTS:
            raise ValueError(f"{name}: expected a whole number of points from 2 to {MOST_POINTS}, got {points:g}")
        checked[latent] = UnknownScale(path, scale_grid(low, high, int(points), kind))
    return checked
