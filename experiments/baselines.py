"""Other people's forecasts, of one output at a time, to compare GP-ALPS's with."""

import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, StationaryKernelMixin, WhiteKernel
from tinygp import GaussianProcess
from tinygp.kernels import quasisep

import alps_ppl as alps


class Cosine(StationaryKernelMixin, Kernel):
    """The linear-periodic covariance for scikit-learn, of a fixed period."""

    def __init__(self, period: float = 1.0):
        self.period = period

    def __call__(self, X, Y=None, eval_gradient=False):
        """The Gram matrix, and an empty gradient: nothing here is learnt."""
        K = np.cos(2 * np.pi * (X - (X if Y is None else Y).T) / self.period)
        return (K, np.empty((*K.shape, 0))) if eval_gradient else K

    def diag(self, X):
        """The variances."""
        return np.ones(len(X))


def periodic_gp_per_output(data: alps.Data, periods: Sequence[float]) -> np.ndarray:
    """(time, output) standardised means of scikit-learn's GP for each output, a sum of linear-periodic covariances.

    Their variances and the noise have the highest likelihood.
    """
    covariance = sum((ConstantKernel(0.3, (1e-6, 1e2)) * Cosine(T) for T in periods), WhiteKernel(0.3, (1e-4, 1e1)))
    with warnings.catch_warnings():
        # A variance at its lower bound: the likelihood drops that period, as it should a decoy.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = [GaussianProcessRegressor(covariance).fit(data.train_inputs[:, None], y) for y in data.train_y.T]
    return np.stack([fit.predict(data.inputs[:, None]) for fit in fits], axis=1)


def seasonal_gp(t: np.ndarray, y: np.ndarray, new: np.ndarray, season: int) -> tuple[np.ndarray, np.ndarray]:
    """Means and sds, noise included, of a GP: a slow and a rough process and a season's first two harmonics.

    Variances, scales and noise are by maximum likelihood; the GP is in state-space form.

    Parameters
    ----------
    t, y
        (time,) times, about evenly spaced, and the standardised output at them.
    new
        Times ahead.
    season
        Its length in steps; 1: there is none.
    """
    step = float(np.ptp(t) / (len(t) - 1))

    def process(log_params):
        slow, rough, first, second, noise, slow_scale, rough_scale = jnp.exp(log_params)
        covariance = slow * quasisep.Exp(scale=slow_scale) + rough * quasisep.Matern32(scale=rough_scale)
        if season > 1:
            covariance += first * quasisep.Cosine(scale=season * step)
            covariance += second * quasisep.Cosine(scale=season * step / 2)
        return GaussianProcess(covariance, jnp.asarray(t), diag=noise)

    loss = jax.jit(jax.value_and_grad(lambda log_params: -process(log_params).log_probability(jnp.asarray(y))))
    start = np.log([0.5, 0.2, 0.2, 0.05, 0.1, 30 * step, 3 * step])
    limits = [(-12.0, 4.0)] * 5 + [(np.log(step), np.log(300 * step))] * 2
    best = scipy.optimize.minimize(lambda v: [np.asarray(x, float) for x in loss(v)], start, jac=True, bounds=limits)
    ahead = process(jnp.asarray(best.x)).condition(jnp.asarray(y), jnp.asarray(new)).gp
    return np.asarray(ahead.mean), np.sqrt(np.asarray(ahead.variance) + np.exp(best.x[4]))
