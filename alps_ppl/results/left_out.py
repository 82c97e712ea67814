"""Each cell's density given all other cells, a draw of H, gates and noise, with the latents integrated out.

Given these y is Gaussian, and with Q the inverse of its covariance a cell c given the others has variance 1 / Q_cc and
lies (Q y)_c / Q_cc above its mean (Rasmussen and Williams 2006, eq. 5.12). Q comes from Woodbury's identity in weight
space: with noise covariance D and features A, Q = D^-1 - D^-1 A (I + A^T D^-1 A)^-1 A^T D^-1.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from alps_ppl import checks
from alps_ppl.gibbs.features import Features, by_latents, latent_features
from alps_ppl.gibbs.posterior import GibbsFit
from alps_ppl.model.memory import kalman
from alps_ppl.results.fits import Fit

Cells = Float[Array, "time output"]


def check_all_rows(fit: Fit) -> None:
    """A ValueError for a fit of ``sum_rows``: what is left out of the few rows it keeps is in its sums still."""
    if getattr(getattr(fit, "features", None), "num_rows", 0):
        raise ValueError("fit: it is of sum_rows' sums, which hold every cell; leave cells out of the rows themselves")


def check_left_out(fit: Fit) -> GibbsFit:
    """The fit; a TypeError or ValueError where its latents can't be integrated out, or that would mean nothing."""
    advice = "leave integrate_latents out, or refit without some cells by alps.ArvizWrapper"
    checks.instance("fit", fit, GibbsFit, f"what fit_gibbs or from_mcmc returned, draws of the posterior; {advice}")
    check_all_rows(fit)
    if fit.model.tails is not None:
        raise ValueError(f"fit: with Student's noise y isn't Gaussian, its latents can't be integrated out; {advice}")
    return cast(GibbsFit, fit)


def left_out(fit: GibbsFit, sites: Mapping[str, Array], rng_key: Array) -> tuple[Array, Array]:
    """Log p(y_c | other cells, sites) of each observed cell, and a draw of y_c from it, (chain, draw, time, output).

    ``sites`` are (chain, draw, ...). Missing cells have no meaning.
    """
    model, inputs = fit.model, fit.inputs
    features: Features = fit.features
    if features.space is not None:  # states have no Woodbury: the same latents by features
        features = latent_features(
            model.covariances, inputs, names=model.latents, states=False, unknown=by_latents(model)
        )
    phi = jnp.asarray(features.phi(), fit.y.dtype)
    owner = features.layout.owner
    eye = jnp.eye(len(owner), dtype=fit.y.dtype)

    def of_draw(both: tuple[dict[str, Array], Array]) -> tuple[Cells, Cells]:
        draw, key = both
        basis = phi @ features.held_weights(eye, draw.get("points")).T
        A = (draw["gated"][:, owner] * basis[:, None]) * ~jnp.isnan(fit.y)[..., None]
        offset, variance = _given_others(jnp.nan_to_num(fit.y), A, *_noise(fit, draw))
        sd = jnp.sqrt(variance)
        return norm.logpdf(offset, 0.0, sd), fit.y - offset + sd * jax.random.normal(key, sd.shape, sd.dtype)

    flat = {name: jnp.asarray(values).reshape(-1, *values.shape[2:]) for name, values in sites.items()}
    draws = {"gated": model.gated_H(flat), "s2": model.noise_variances(flat)}
    draws |= {name: flat[name] for name in ("memory",) if name in flat}
    if model.unknown_scales:
        grids = zip(model.scale_sites, model.unknown_scales.values(), strict=True)
        draws["points"] = jnp.stack([one.grid.nearest(flat[site]) for site, one in grids], -1)
    keys = jax.random.split(rng_key, len(draws["s2"]))
    found = jax.jit(lambda both: jax.lax.map(of_draw, both))((draws, keys))
    return jax.tree.map(lambda part: part.reshape(*sites["H"].shape[:2], *fit.y.shape), found)


def _noise(fit: GibbsFit, draw: Mapping[str, Array]) -> tuple[Callable[[Array], Array], Cells]:
    """D^-1/2 as a function of (time, output, ...), of the observed cells, and the diagonal of D^-1."""
    sd, observed = jnp.sqrt(draw["s2"]), ~jnp.isnan(fit.y)
    if fit.model.private_memory is None:
        return lambda values: values / sd.reshape(-1, *[1] * (values.ndim - 2)), jnp.broadcast_to(
            1 / sd**2, fit.y.shape
        )
    memory: Any = fit.model.private_memory.at(draw["memory"])
    order = jnp.argsort(fit.inputs)
    back = jnp.argsort(order)
    filter_ = kalman(memory, fit.inputs[order], observed[order], fit.y.dtype)

    def whiten(values: Array) -> Array:
        lanes = values.reshape(*values.shape[:2], -1)[order] / sd[:, None]
        return jax.vmap(filter_.whiten, -1, -1)(lanes)[back].reshape(values.shape)

    _, variance = filter_.smooth(jnp.zeros_like(fit.y))
    white = 1 - jnp.asarray(memory.share, fit.y.dtype)
    return whiten, (1 - variance[back] / white) / (white * sd**2)


def _given_others(y: Cells, A: Array, whiten: Callable, diagonal: Cells) -> tuple[Cells, Cells]:
    """How far each cell lies above its mean given all others, and its variance; ``diagonal`` is that of D^-1."""
    white_y, white_A = whiten(y), whiten(A)
    cross = jnp.einsum("tir,tis->rs", white_A, white_A)
    tril = jnp.linalg.cholesky(jnp.eye(len(cross), dtype=y.dtype) + cross)
    V = solve_triangular(tril, white_A.reshape(-1, len(cross)).T, lower=True).T.reshape(A.shape)
    rest = white_y - jnp.einsum("tir,sjr,sj->ti", V, V, white_y, optimize="optimal")
    # D^-1/2 transposed: with memories it is triangular in time.
    columns = jnp.concatenate([rest[..., None], V], -1)
    (back,) = jax.linear_transpose(whiten, columns)(columns)
    precision = diagonal - (back[..., 1:] ** 2).sum(-1)
    precision = jnp.clip(precision, jnp.finfo(y.dtype).eps * diagonal)
    return back[..., 0] / precision, 1 / precision
