"""Small problems that several test modules share: models, and data of which the truth is known."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from tinygp import kernels, transforms
from tinygp.kernels import quasisep

import alps_ppl as alps

ORACLES = Path(__file__).parent / "oracles"


def oracle(name):
    """Numbers that another program computed."""
    return json.loads((ORACLES / f"oracle_{name}.json").read_text())


def periodic(period, lengthscale=1.0):
    """exp(-2 sin^2(pi d / period) / lengthscale^2), as the oracles write it."""
    return kernels.ExpSineSquared(scale=period, gamma=2.0 / lengthscale**2)


def exact_model():
    """The two-latent model of ``oracle_alps_exact.json``."""
    o = oracle("alps_exact")
    return alps.ALPS(
        {"rbf": kernels.ExpSquared(scale=0.8), "periodic": periodic(1.3)},
        inclusion_prob=o["theta"],
        mixing_variance=o["H_prior_var"],
        noise_variance=o["noise_var"],
    )


def rough_model():
    """Three full-rank latents of low condition number, two outputs, no jitter: exact in weight space."""
    covariances = {"a": kernels.Exp(scale=0.7), "b": kernels.Exp(scale=3.0), "c": kernels.Matern32(scale=0.5)}
    return alps.ALPS(
        covariances,
        ["u", "v"],
        inclusion_prob=[0.3, 0.5, 0.8],
        mixing_variance=[[1.0, 0.5, 2.0], [0.7, 1.5, 0.3]],
        noise_variance=dist.InverseGamma(3.0, 0.4),
        jitter=0.0,
    )


def rough_data():
    """Nine uneven times; scattered missing cells and one row of them."""
    rng = np.random.default_rng(3)
    t = np.sort(rng.uniform(0, 6, 9))
    y = rng.normal(size=(9, 2))
    y[2, 0] = y[5, 1] = np.nan
    y[7] = np.nan
    return t, y


def periods(outputs=2, *lengths, **settings):
    """A model of linear-periodic latents, T = 7 and T = 5 unless said otherwise, of noise sd .1."""
    latents = {f"T={period:g}": alps.linear_periodic(period) for period in lengths or (7.0, 5.0)}
    return alps.ALPS(latents, outputs, **({"noise_variance": 0.01} | settings))


def sines(n=40, p=2, *, noise=0.1, seed=0):
    """Times, noisy sines of period 7, and the sines themselves."""
    rng = np.random.default_rng(seed)
    t = np.arange(float(n))
    f = np.sin(2 * np.pi * t / 7)[:, None] * np.linspace(1.0, -0.8, p)
    return t, f + noise * rng.normal(size=(n, p)), f


def finite(prediction):
    """Whether all that ``predict`` returned is finite."""
    return all(np.isfinite(values).all() for values in prediction.data_vars.values())


def twins():
    """A period of 7 that two latents share, a decoy and a smooth latent: the model, times, y and f.

    Times are unsorted and one is there twice; cells are missing, and the third output was never observed.
    """
    rng = np.random.default_rng(1)
    t = np.r_[np.arange(32.0), 11.0][rng.permutation(33)]
    f = np.stack([np.sin(2 * np.pi * t / 7), np.cos(t / 8)], 1) @ [[1.0, -0.8, 0.5], [0.6, 0.9, 0.0]]
    y = f + 0.2 * rng.normal(size=f.shape)
    y[3, 1] = y[[5, 6], 0] = y[9] = y[:, 2] = np.nan
    covariances = {
        "T=7": alps.linear_periodic(7.0),
        "T=5": alps.linear_periodic(5.0),
        "T=7 again": alps.linear_periodic(7),
        "smooth": kernels.ExpSquared(scale=6.0),
    }
    return alps.ALPS(covariances, ["u", "v", "w"], noise_variance=dist.InverseGamma(2.0, 0.1)), t, y, f


# One covariance of each kind that tinygp has, of one input and of two columns.
COVARIANCES = {
    "exp": kernels.Exp(scale=2.0),
    "rbf": kernels.ExpSquared(scale=1 / 3),
    "matern": 0.3 * kernels.Matern32(scale=1.3) + 0.7 * kernels.Cosine(scale=7.0),
    "matern52": kernels.Matern52(scale=jnp.asarray(0.7)),
    "cosine": alps.linear_periodic(7.0),
    "periodic": kernels.ExpSineSquared(scale=5.0, gamma=0.3),
    "rational": kernels.RationalQuadratic(scale=2.0, alpha=0.4),
    "product": kernels.ExpSquared(scale=9.0) * kernels.Cosine(scale=3.0),
    "constant": kernels.Constant(2.0),
    "linear": kernels.DotProduct() * kernels.Constant(1e-3),
    "sho": quasisep.SHO(omega=1.0, quality=2.0),
    "quasisep": 2.0 * quasisep.Exp(scale=3.0) + quasisep.Matern32(scale=2.0),
    "celerite": quasisep.Celerite(1.0, 0.1, 1.0, 0.1),
    "carma": quasisep.CARMA.init(alpha=jnp.array([1.2, 0.5]), beta=jnp.array([1.0])),
    "euclid": kernels.Exp(scale=2.0, distance=kernels.L2Distance()),
}
OF_COLUMNS = {
    "first": alps.on_column(kernels.ExpSquared(scale=3.0), 0),
    "second": transforms.Subspace(1, kernels.Exp(scale=2.0)),
    "scaled": transforms.Linear(jnp.array([1.0, 1 / 3]), kernels.ExpSquared()),
    "cholesky": transforms.Cholesky(2.0 * jnp.eye(2), kernels.ExpSquared()),
    "polynomial": kernels.Polynomial(order=2.0, scale=20.0, sigma=0.1),
}
