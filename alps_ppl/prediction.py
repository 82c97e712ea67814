"""Outputs at new inputs, from either engine.

Given a draw of the gates, H and (for the sampler) the latents' weights, an output at a time is Gaussian.
A posterior predictive is therefore an equal mixture of Gaussians, one per draw, and its mean, sd,
quantiles and density are computed from the mixture itself, with no draws of y.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int
from numpyro.infer import MCMC, Predictive

from alps_ppl.chains import GibbsFit
from alps_ppl.features import features
from alps_ppl.model import ALPS, check_count, given
from alps_ppl.svi import SVIFit, check_key


class Draws(NamedTuple):
    """Posterior draws, and what each says of the latents at a time.

    A latent's mean at a new input is the sum of ``basis`` times the weights at ``places`` (None: all of them, in their
    order) over the columns that it owns. ``latent_variance`` is what a draw leaves open.
    """

    gated_H: Float[Array, "draw output latent"]
    noise_variance: Float[Array, "draw output"]
    weights: Float[Array, "draw weight"]
    basis: Float[Array, "new column"]
    owner: Int[np.ndarray, " column"]
    latent_variance: Float[Array, "latent new"]
    places: Int[np.ndarray, "new column"] | None = None


def predict(
    posterior: SVIFit | GibbsFit | MCMC,
    model: ALPS | None = None,
    inputs: Any = None,
    y: Any = None,
    new_inputs: Any = None,
    *,
    interval: float = 0.9,
    include_noise: bool = True,
    num_draws: int = 1000,
) -> xr.Dataset:
    """Mean, sd and a central interval of every output at new inputs, in ``y``'s units.

    ``posterior`` is what ``fit_svi`` or ``load`` returned, or the ``MCMC`` object after its run on ``inputs`` and
    ``y``. ``predict(posterior, new_inputs=...)`` will do where the posterior knows its model and inputs: all but the
    draws of samplers that aren't this package's.
    The gates' uncertainty is included. ``new_inputs`` may be in any order, inside gaps or ahead; the
    Dataset has ``mean``, ``sd``, ``lower`` and ``upper`` over (time, output), in the given order.
    ``include_noise=False`` gives f instead of y. At most ``num_draws`` posterior draws are used, evenly
    spread over the chains.
    """
    if not 0 < interval < 1:
        raise ValueError(f"interval: expected a probability strictly between 0 and 1, got {interval}")
    if new_inputs is None:
        raise ValueError("new_inputs: expected the times to predict, got None")
    check_count("num_draws", num_draws)
    if model is None and inputs is None and y is None:
        model, inputs = fitted(posterior)
    else:
        model, inputs, y = check_posterior(posterior, model, inputs, y, num_draws)
    new_inputs = _check_new(model, inputs, new_inputs)
    draws = posterior_draws(posterior, model, inputs, new_inputs, num_draws)
    if not include_noise:
        draws = draws._replace(noise_variance=jnp.zeros_like(draws.noise_variance))
    tails = jnp.asarray([0.5 - interval / 2, 0.5 + interval / 2], inputs.dtype)

    def summarise(loc, variance):
        mean = loc.mean(0)
        sd = jnp.sqrt(variance.mean(0) + loc.var(0))
        return mean, sd, *_mixture_quantiles(loc, jnp.sqrt(variance), tails)

    values = _over_times(summarise, draws)
    names = ("mean", "sd", "lower", "upper")
    dataset = xr.Dataset(
        {name: (("time", "output"), np.asarray(value)) for name, value in zip(names, values, strict=True)},
        coords={"output": list(model.outputs), **time_coordinate(new_inputs)},
        attrs={"interval": interval, "includes_noise": int(include_noise)},
    )
    return dataset


def log_predictive_density(
    posterior: SVIFit | MCMC,
    model: ALPS,
    inputs: Any,
    y: Any,
    new_inputs: Any,
    new_y: Any,
    *,
    num_draws: int = 1000,
) -> xr.DataArray:
    """Log p(y_i(t) | Y) of each cell of ``new_y`` (time, output) by itself; NaN where it is missing."""
    model, inputs, y = check_posterior(posterior, model, inputs, y, num_draws)
    new_inputs = _check_new(model, inputs, new_inputs)
    cells = np.asarray(new_y, float)
    expected = (len(new_inputs), len(model.outputs))
    if cells.shape != expected and not (cells.ndim == 1 and cells[:, None].shape == expected):
        raise ValueError(f"new_y: expected shape (time, output) = {expected}, got {cells.shape}")
    new_y = jnp.asarray(cells.reshape(expected))
    draws = posterior_draws(posterior, model, inputs, new_inputs, num_draws)
    log_num_draws = jnp.log(len(draws.weights))

    def density(loc, variance, cell):
        return logsumexp(norm.logpdf(cell, loc, jnp.sqrt(variance)), axis=0) - log_num_draws

    values = _over_times(density, draws, new_y)
    return xr.DataArray(
        np.asarray(values),
        dims=("time", "output"),
        # Without the inputs of several columns, whose dimension an array of (time, output) hasn't.
        coords={"output": list(model.outputs), "time": time_coordinate(new_inputs)["time"]},
        name="log_density",
    )


def time_coordinate(inputs: Float[Array, "time *column"]) -> dict:
    """The ``time`` coordinate: the inputs themselves, or the rows' numbers beside ``inputs`` (time, column)."""
    values = np.asarray(inputs)
    if values.ndim == 1:
        return {"time": values}
    return {"time": np.arange(len(values)), "inputs": (("time", "column"), values)}


def fitted(posterior: SVIFit | GibbsFit | MCMC) -> tuple[ALPS, Array]:
    """The model and the inputs that ``posterior`` is of. Raises a ValueError or TypeError if it doesn't know them."""
    _check_kind(posterior)
    if not isinstance(posterior, SVIFit):
        samples_of(posterior)
    fit: Any = posterior if isinstance(posterior, SVIFit) else posterior.sampler
    model, inputs = getattr(fit, "model", None), getattr(fit, "inputs", None)
    if not isinstance(model, ALPS) or inputs is None:
        raise ValueError(f"posterior: {type(fit).__name__} doesn't know its model and inputs; pass model, inputs and y")
    return model, jnp.asarray(inputs)


def check_posterior(
    posterior: SVIFit | GibbsFit | MCMC, model: ALPS | None, inputs: Any, y: Any, num_draws: int
) -> tuple[ALPS, Array, Array]:
    """The model, with what the fit learnt of its covariances, and ``inputs`` and ``y`` as arrays.

    Raises a ValueError or TypeError unless ``posterior`` is a finished fit of this model to these inputs.
    """
    check_count("num_draws", num_draws)
    _check_kind(posterior)
    if not isinstance(model, ALPS):
        raise TypeError(f"model: expected the alps_ppl.ALPS that was fitted, got {type(model).__name__}")
    fit = posterior if isinstance(posterior, SVIFit) else posterior.sampler
    x = None if isinstance(posterior, SVIFit) else samples_of(posterior).get("x")
    num_times = None if x is None else x.shape[-1]
    fitted_model, fitted_inputs = getattr(fit, "model", model), getattr(fit, "inputs", None)
    if isinstance(posterior, SVIFit) and model.covariance_bounds:
        names = {f"{latent}.{path}" for latent, bounds in model.covariance_bounds.items() for path in bounds}
        model = model.with_learnt(posterior.params) if names <= set(posterior.params) else model
    if isinstance(fitted_model, ALPS) and not _same(fitted_model, model):
        raise ValueError(f"model: expected the one that was fitted, {fitted_model}, got another, {model}")
    inputs, y = model.check(inputs, given(y), warn=False)
    others = fitted_inputs is not None and not np.array_equal(fitted_inputs, inputs)
    if others or num_times not in (None, len(inputs)):
        raise ValueError(
            f"inputs: expected those that were fitted, in their order, got {len(inputs)} other ones; new times are "
            "predict's new_inputs"
        )
    return model, inputs, y


def _check_kind(posterior) -> None:
    if not isinstance(posterior, (SVIFit, GibbsFit, MCMC)):
        raise TypeError(
            f"posterior: expected what fit_svi returned or a NumPyro MCMC after its run, got {type(posterior).__name__}"
        )


def _same(a: ALPS, b: ALPS) -> bool:
    """Whether two models, perhaps one of them read from a file, are of the same names and numbers."""
    (a_leaves, a_tree), (b_leaves, b_tree) = (
        jax.tree.flatten(
            (m.covariances, m.inclusion_prob, m.inclusion_prior, m.gate_of, m.mixing_variance, m.noise_variance)
        )
        for m in (a, b)
    )
    names = (a.latents, a.gate_names, a.outputs, a_tree) == (b.latents, b.gate_names, b.outputs, b_tree)
    return names and all(map(np.array_equal, a_leaves, b_leaves))


def samples_of(mcmc: MCMC, group_by_chain: bool = False) -> dict[str, Array]:
    """The run's draws of the program's sites; a ValueError where there are none."""
    try:
        samples = mcmc.get_samples(group_by_chain)
    except (AssertionError, TypeError):
        raise ValueError("posterior: the MCMC has no draws yet; call mcmc.run(rng_key, inputs, y) first") from None
    missing = ({"b", "H"} if "weights" in mcmc.get_extra_fields() else {"b", "H", "x"}) - set(samples)
    if missing:
        raise ValueError(f"posterior: expected draws of b, H and x, but {sorted(missing)} weren't collected")
    return samples


def posterior_draws(
    posterior: SVIFit | MCMC,
    model: ALPS,
    inputs: Float[Array, "time *column"],
    new_inputs: Float[Array, "new *column"],
    num_draws: int,
) -> Draws:
    """At most ``num_draws`` draws, with the latents' conditional means and variances at ``new_inputs``."""
    engine = _svi_draws if isinstance(posterior, SVIFit) else _mcmc_draws
    draws = engine(posterior, model, inputs, new_inputs, num_draws)
    if not bool(jnp.isfinite(draws.weights).all() & jnp.isfinite(draws.gated_H).all()):
        raise ValueError(
            "posterior: its draws hold values that aren't finite; fit again in 64-bit (numpyro.enable_x64()), "
            "or with y and mixing_variance on the same scale"
        )
    return draws


def _svi_draws(fit: SVIFit, model: ALPS, inputs, new_inputs, num_draws: int) -> Draws:
    sites = svi_sites(fit, inputs, num_draws, names=("b", "H", "noise_variance"))
    mean, variance = jax.jit(lambda params: fit.guide.sparse_process(new_inputs, params).marginals())(fit.params)
    m = len(model.latents)
    # Each latent is its own single feature, with weight 1 in every draw.
    return Draws(
        model.gates(sites["b"].astype(mean.dtype))[:, None, :] * sites["H"],
        _noise(sites, model),
        jnp.ones((num_draws, m), mean.dtype),
        mean.T,
        np.arange(m),
        variance,
    )


def svi_sites(fit: SVIFit, inputs, num_draws: int, names: tuple[str, ...], rng_key=None) -> dict[str, Array]:
    """Draws of the program's sites from the fit's q, gates Bernoulli; x from its marginals at ``inputs``."""
    learns = {"noise_variance": fit.model.learns_noise, "inclusion_prob": fit.model.learns_inclusion}
    names = tuple(name for name in names if learns.get(name, True))
    draw = Predictive(fit.guide.discrete, params=fit.params, num_samples=num_draws, return_sites=names, parallel=True)
    return jax.jit(draw)(jax.random.key(0) if rng_key is None else rng_key, inputs)


def init_from_svi(fit: SVIFit, rng_key: Array, *, num_chains: int = 1) -> dict[str, Array]:
    """Draws of the program's sites from an SVI fit, one per chain: ``MCMC.run(..., init_params=...)`` starts there."""
    if not isinstance(fit, SVIFit):
        raise TypeError(f"fit: expected what fit_svi returned, got {type(fit).__name__}")
    check_count("num_chains", num_chains)
    check_key(rng_key)
    sites = svi_sites(
        fit, fit.inputs, num_chains, names=("b", "H", "x", "noise_variance", "inclusion_prob"), rng_key=rng_key
    )
    return sites if num_chains > 1 else {name: value[0] for name, value in sites.items()}


def _mcmc_draws(mcmc: MCMC, model: ALPS, inputs, new_inputs, num_draws: int) -> Draws:
    sites = thinned_sites(mcmc, num_draws)
    sampler = mcmc.sampler
    if "weights" in sites:
        basis, weights = sampler._features, sites["weights"]
    else:  # another sampler's draws: x at the inputs doesn't tell Markov latents' states, so features of full rank
        basis = features(model.covariances, inputs, names=model.latents, max_rank=len(inputs), states=False)
        weights = basis.weights(sites["x"])
    new = basis.extend(new_inputs)
    return Draws(
        model.gates(sites["b"].astype(new.basis.dtype))[:, None, :] * sites["H"],
        _noise(sites, model),
        weights,
        new.basis,
        new.owner,
        new.residual,
        new.places,
    )


def thinned_sites(mcmc: MCMC, num_draws: int) -> dict[str, Array]:
    """The MCMC run's draws of the program's sites, evenly thinned to at most ``num_draws``."""
    samples = samples_of(mcmc)
    extra = mcmc.get_extra_fields()
    if "weights" in extra:
        samples = samples | {"weights": extra["weights"]}
    available = len(samples["b"])
    keep = np.linspace(0, available - 1, min(num_draws, available)).round().astype(int)
    return {name: value[keep] for name, value in samples.items()}


def _noise(sites, model: ALPS) -> Float[Array, "draw output"]:
    if model.learns_noise:
        return sites["noise_variance"]
    return jnp.broadcast_to(jnp.asarray(model.noise_variance, sites["H"].dtype), sites["H"].shape[:2])


def _check_new(model: ALPS, inputs, new_inputs):
    if np.size(new_inputs) == 0:
        return jnp.zeros((0, *inputs.shape[1:]), inputs.dtype)
    new_inputs, _ = model.check(new_inputs, name="new_inputs")
    if new_inputs.shape[1:] != inputs.shape[1:]:
        raise ValueError(
            f"new_inputs: expected the columns of inputs, of shape {inputs.shape}, got shape {new_inputs.shape}"
        )
    return new_inputs


def _over_times(function: Callable, draws: Draws, *cells: Float[Array, "new output"]):
    """``function(loc, variance, *cell)`` at each time, loc and variance being (draw, output)."""
    num_latents = draws.gated_H.shape[-1]

    def at_time(basis, places, latent_variance, *cell):
        weights = draws.weights if places is None else draws.weights[:, places]
        columns = jax.nn.one_hot(draws.owner, num_latents, dtype=basis.dtype) * basis[:, None]
        loc = jnp.einsum("sij,sj->si", draws.gated_H, weights @ columns)
        variance = draws.gated_H**2 @ latent_variance + draws.noise_variance
        # A floor for f without noise where nothing is left open: the quantiles divide by the sd.
        return function(loc, jnp.clip(variance, jnp.finfo(loc.dtype).tiny ** 0.5), *cell)

    if len(draws.basis) == 0:
        place = None if draws.places is None else np.zeros(draws.places.shape[1], int)
        shape = jax.eval_shape(
            at_time, draws.basis.sum(0), place, draws.latent_variance.sum(1), *[c.sum(0) for c in cells]
        )
        return jax.tree.map(lambda leaf: jnp.zeros((0, *leaf.shape), leaf.dtype), shape)
    size = max(1, 2_000_000 // (draws.gated_H.shape[0] * draws.gated_H.shape[1]))
    mapped = partial(jax.lax.map, lambda args: at_time(*args), batch_size=min(size, len(draws.basis)))
    return jax.jit(mapped)((draws.basis, draws.places, draws.latent_variance.T, *cells))


def _mixture_quantiles(loc, scale, levels) -> Float[Array, "level output"]:
    """Quantiles of the equal mixture of normals over the first axis, by bisection of its cdf."""
    low, high = (loc - 10 * scale).min(0), (loc + 10 * scale).max(0)

    def halve(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        below = norm.cdf(middle[:, None], loc, scale).mean(1) < levels[:, None]
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    start = tuple(jnp.broadcast_to(edge, (len(levels), *edge.shape)) for edge in (low, high))
    low, high = jax.lax.fori_loop(0, 30, halve, start)
    return 0.5 * (low + high)
