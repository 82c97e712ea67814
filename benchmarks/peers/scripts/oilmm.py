"""oilmm, the paper's authors' own: orthogonal mixing, exact, by maximum likelihood; the README's calls.

A covariance's variance and noise per latent are learnt, as there; periods and lengthscales are the dictionary's.
At most as many latents as outputs: all fit, but that a period isn't offered twice.
"""

import sys

import jax
import jax.numpy as jnp
import lab.jax as B
import numpy as np
import plum._parametric

sys.modules["plum.parametric"] = plum._parametric  # where probmods looks for it
from oilmm.jax import OILMM  # noqa: E402
from stheno import GP, Linear, Matern12  # noqa: E402

jax.config.update("jax_enable_x64", True)


def cosine(period):
    """cos(2 pi (t - t') / period), the linear kernel on the circle."""
    angle = 2 * np.pi / period
    return Linear().transform(lambda t: B.concat(B.cos(angle * t), B.sin(angle * t), axis=1))


def fit(train_inputs, train_y, test_inputs, dictionary):
    """Means and sds of y."""
    kernels = [cosine(period) for period in np.unique(dictionary["periods"]) for _ in range(dictionary["copies"])]
    kernels += [Matern12().stretch(scale) for scale in dictionary["memories"]]

    def latents(ps):
        return [(p.variance.positive(1) * GP(k), p.noise.positive(1e-2)) for p, k in zip(ps, kernels, strict=False)]

    prior = OILMM(jnp.float64, latents, num_outputs=train_y.shape[1])
    prior.fit(train_inputs, train_y, jit=True)
    mean, variance = prior.condition(train_inputs, train_y).predict(test_inputs)
    return np.asarray(mean), np.sqrt(np.asarray(variance))
