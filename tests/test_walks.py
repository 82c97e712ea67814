"""Walks and steps: their covariances by integrals, forecasts that go on, and a step's time against enumeration."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import random
from scipy import integrate, stats

import alps_ppl as alps


@pytest.mark.parametrize("start", [0.0, 2.0, 7.0])
def test_covariances_of_walks(start):
    """By the Wiener process of either side: cov(W(a), W(b)) = min(a, b), and its integral's by quadrature."""
    span, times = 5.0, np.array([0.0, 1.0, 2.5, 4.0, 6.5])
    u = (times - start) / span

    def both(a, b):
        return min(abs(a), abs(b)) if a * b > 0 else 0.0

    def integral(a, b):
        return integrate.quad(lambda s: (abs(a) - s) * (abs(b) - s), 0, both(a, b))[0]

    walk = np.array([[0.5 + both(a, b) for a in u] for b in u])
    integrated = np.array([[1 / 3 + a * b + 4 * integral(a, b) for a in u] for b in u])
    np.testing.assert_allclose(alps.random_walk(start, span)(times, times), walk, rtol=1e-12)
    np.testing.assert_allclose(alps.integrated_walk(start, span)(times, times), integrated, rtol=1e-10)


@pytest.mark.parametrize("name", ["random_walk", "integrated_walk"])
def test_variance_is_one_on_average(name):
    times = np.linspace(3.0, 11.0, 4001)
    assert np.mean(getattr(alps, name)(3.0, 8.0)(times)) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("wrong", [(np.nan, 1.0), (0.0, 0.0), (0.0, np.inf)])
@pytest.mark.parametrize("name", ["random_walk", "integrated_walk"])
def test_other_arguments_of_walks(name, wrong):
    with pytest.raises(ValueError, match=f"{name}: expected a finite start"):
        getattr(alps, name)(*wrong)
    with pytest.raises(ValueError, match="step: expected a finite time"):
        alps.step(np.inf)


def test_a_forecast_goes_on_by_the_last_slope(key):
    """A line under an integrated walk with little noise: ahead of it, the line."""
    t = np.arange(60.0)
    y = 0.05 * (t - 30)[:, None] + 0.01 * np.random.default_rng(0).normal(size=(60, 1))
    model = alps.ALPS({"trend": alps.integrated_walk(0.0, 60.0)}, 1, noise_variance=1e-4, always_on=["trend"])
    fit = alps.fit_gibbs(model, t, y, rng_key=key, num_warmup=50, num_samples=100, num_chains=2)
    ahead = alps.predict(fit, np.array([65.0, 70.0]))
    line = 0.05 * (np.array([65.0, 70.0]) - 30)
    assert (np.abs(ahead["mean"].values[:, 0] - line) < 3 * ahead["sd"].values[:, 0]).all()
    assert (ahead["sd"].values[:, 0] < 0.5).all()


@pytest.mark.slow
def test_a_step_at_an_unknown_time(key):
    """Gate and time against the sum over both, the loading by quadrature: f = h w, normals w before and after."""
    t = np.arange(8.0)
    y = np.array([0.3, -0.2, 0.1, 0.2, 1.3, 0.6, 1.2, 0.9])
    times = np.linspace(0.5, 6.5, 7)
    model = alps.ALPS(
        {"shift": alps.step(3.0)}, 1, noise_variance=0.3, covariance_ranges={"shift": {"at": (0.5, 6.5, 7)}}
    )
    h = np.linspace(-8, 8, 4001)

    def evidence(at, h):
        alike = np.equal.outer(t > at, t > at)
        covariance = h**2 * alike + 0.3 * np.eye(8)
        return stats.multivariate_normal.pdf(y, np.zeros(8), covariance)

    of_on = np.array([np.trapezoid([evidence(at, one) * stats.norm.pdf(one) for one in h], h) for at in times]) / 7
    off = evidence(3.0, 0.0)
    fit = alps.fit_gibbs(model, t, y[:, None], rng_key=key, num_warmup=200, num_samples=4000, num_chains=4)
    chains = np.asarray(fit.sample_stats["gate_prob"])[..., 0].mean(1)
    exact = of_on.sum() / (of_on.sum() + off)
    assert abs(chains.mean() - exact) < 5 * max(chains.std(ddof=1) / 2, 1e-3)
    at, is_on = np.asarray(fit.sites["shift.at"]), np.asarray(fit.sites["b"])[..., 0] == 1
    for k, time in enumerate(times):
        of_chain = np.array([(at[c][is_on[c]] == time).mean() for c in range(4)])
        assert abs(of_chain.mean() - of_on[k] / of_on.sum()) < 6 * max(of_chain.std(ddof=1) / 2, 2e-3)


def test_a_steps_time_isnt_for_svi():
    model = alps.ALPS({"shift": alps.step(3.0)}, 1, noise_variance=0.3, covariance_ranges={"shift": {"at": (1, 6)}})
    with pytest.raises(ValueError, match="a step's time has none"):
        alps.fit_svi(model, np.arange(8.0), np.zeros((8, 1)), rng_key=random.key(0), num_steps=2)


def test_draws_of_the_program_have_a_step(key):
    """The prior predictive of the program: x is one number before the drawn time, and another after it."""
    model = alps.ALPS({"shift": alps.step(3.0)}, 1, noise_variance=0.3, covariance_ranges={"shift": {"at": (-2, 6)}})
    from numpyro.infer import Predictive

    drawn = Predictive(model, num_samples=20)(key, jnp.arange(-4.0, 8.0))
    for at, x in zip(drawn["shift.at"], drawn["x"][:, 0], strict=True):
        after = np.arange(-4.0, 8.0) > at
        for side in (after, ~after):
            np.testing.assert_allclose(x[side], x[side].mean(), atol=3e-3)
