"""App. B.2, the expected log likelihood, in closed form given the gates; the paper draws it."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float
from numpyro import handlers

from alps_ppl.model.alps import ALPS

LIKELIHOODS = ("sampled", "analytic")


def analytic_likelihood(program: Callable, family: Callable) -> tuple[Callable, Callable]:
    """The two, their ELBO's Monte Carlo mean over x, H and the noise replaced by ``expected_log_likelihood``.

    ``y`` leaves the program, and the term comes in as a factor of the guide, whose log an ELBO subtracts: hence the
    minus.
    """

    def guide(model, inducing_inputs, inputs, y, *, temperature, num_times=None):
        with handlers.trace() as q:
            family(model, inducing_inputs, inputs, y, temperature=temperature, num_times=num_times)
        scale = (num_times or len(inputs)) / len(inputs)
        numpyro.factor("expected_log_likelihood", -scale * expected_log_likelihood(model, q, y))

    return handlers.block(program, hide=["y"]), guide


def expected_log_likelihood(model: ALPS, q: Mapping[str, dict], y: Float[Array, "time output"]) -> Float[Array, ""]:
    """E_q[log p(Y | X, H, b, sigma^2)] over x, H and sigma^2, given b; a missing cell, NaN, counts for nothing.

    q's x_j(t) and H_ij are independent, so that f_i(t) = sum_j b_j H_ij x_j(t) has variance
    sum_j b_j^2 (Var[H_ij] E[x_j(t)^2] + E[H_ij]^2 Var[x_j(t)]), and E[(y - f)^2] = (y - E[f])^2 + Var[f].

    Parameters
    ----------
    model
        Of normal noise, without a private memory.
    q
        The guide's trace: of ``x``, ``H`` and ``noise_variance`` the distributions, of ``b`` the draw.
    y
        (time, output).
    """
    x_mean, x_variance = q["x"]["fn"].marginals()  # (latent, time)
    b, H = model.gates(q["b"]["value"]), q["H"]["fn"]
    gated_mean, gated_variance = b * H.mean, b**2 * H.variance  # (output, latent)
    f_mean = (gated_mean @ x_mean).mT
    f_variance = (gated_variance @ (x_variance + x_mean**2) + gated_mean**2 @ x_variance).mT
    precision, log_variance = _noise(model, q, y)
    observed = ~jnp.isnan(y)
    square = (jnp.where(observed, y, 0.0) - f_mean) ** 2 + f_variance
    return -0.5 * jnp.where(observed, jnp.log(2 * jnp.pi) + log_variance + precision * square, 0.0).sum()


def _noise(model: ALPS, q: Mapping[str, dict], y: Array) -> tuple[Array, Array]:
    """E[1 / sigma^2] and E[log sigma^2] of each output; q(sigma^2) is log-normal where it is learnt."""
    if not model.learns_noise:
        variance = jnp.asarray(model.noise_variance, y.dtype)
        return 1 / variance, jnp.log(variance)
    noise = q["noise_variance"]["fn"]
    return jnp.exp(-noise.loc + 0.5 * noise.scale**2), noise.loc
