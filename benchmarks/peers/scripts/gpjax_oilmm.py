"""GPJax's OILMM by its L-BFGS on the evidence, 200 steps; the cosine kernel, which it hasn't, is written out.

It takes no missing cells: they are interpolated. Variances and lengthscales are learnt, periods aren't.
"""

import equinox as eqx
import gpjax as gpx
import jax
import jax.numpy as jnp
import numpy as np
from gpjax.kernels.base import AbstractKernel
from gpjax.models import OILMMModel

jax.config.update("jax_enable_x64", True)


class Cosine(AbstractKernel):
    """cos(2 pi (t - t') / period)."""

    period: float = eqx.field(static=True)

    def __init__(self, period):
        super().__init__()
        self.period = period

    def __call__(self, x, y):
        return jnp.cos(2 * jnp.pi * (x - y) / self.period).squeeze()


def fit(train_inputs, train_y, test_inputs, dictionary):
    """Means and sds of y."""
    kernels = [Cosine(period) for period in np.unique(dictionary["periods"]) for _ in range(dictionary["copies"])]
    kernels += [gpx.kernels.Matern12(lengthscale=scale) for scale in dictionary["memories"]]
    seen = ~np.isnan(train_y)
    columns = [np.interp(train_inputs, train_inputs[s], y[s]) for s, y in zip(seen.T, train_y.T, strict=True)]
    data = gpx.Dataset(X=jnp.asarray(train_inputs)[:, None], y=jnp.asarray(np.stack(columns, 1)))
    model = OILMMModel(train_y.shape[1], len(kernels), kernels, jax.random.key(0))
    model, _ = gpx.fit_scipy(
        model=model,
        objective=lambda m, d: -m.condition(d).log_marginal_likelihood,
        train_data=data,
        max_iters=200,
        verbose=False,
    )
    found = model.condition(data)(jnp.asarray(test_inputs)[:, None])
    mix, shape = model.mixing_matrix, (len(test_inputs), -1)
    noise = gpx.parameters.val(mix.obs_noise_variance) + mix.H_squared @ gpx.parameters.val(mix.latent_noise_variance)
    return found.mean.reshape(shape), jnp.sqrt(found.variance.reshape(shape) + noise)
