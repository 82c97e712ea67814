"""What a sine explains beside red noise at lacking stamps, by dense algebra, and by how it scatters under red noise."""

import numpy as np
import pytest

from alps_ppl.model.memory import private_memory
from alps_ppl.tables.red_noise import RedNoise

BUSINESS_DAYS = np.array([day for day in range(140) if day % 7 < 5], float)


def covariance(share, lengthscale, t):
    return share * np.exp(-np.abs(t[:, None] - t) / lengthscale) + (1 - share) * np.eye(len(t))


def left(C, y, X):
    """Generalised least squares by dense algebra: y^T C^-1 y less what the columns of X explain."""
    inverse = np.linalg.inv(C)
    beta = np.linalg.solve(X.T @ inverse @ X, X.T @ inverse @ y)
    return (y - X @ beta) @ inverse @ (y - X @ beta)


@pytest.mark.parametrize("periods", [[], [7.0]])
def test_power_by_dense_algebra(periods):
    """At the grid's most probable point, beside a line and other sines; a sine among those has no power left."""
    t, n = BUSINESS_DAYS, len(BUSINESS_DAYS)
    rng = np.random.default_rng(0)
    y = np.linalg.cholesky(covariance(0.7, 10.0, t)) @ rng.normal(size=n) + np.sin(2 * np.pi * t / 7) + 0.02 * t
    y = y - y.mean()

    def waves(period):
        return [np.cos(2 * np.pi * t / period), np.sin(2 * np.pi * t / period)]

    X = np.stack([np.ones(n), t, *(wave for period in periods for wave in waves(period))], 1)
    shares, lengthscales, _ = private_memory(t)
    points = [covariance(*point, t) for point in zip(shares, lengthscales, strict=True)]
    likelihood = [-0.5 * n * np.log(left(C, y, X)) - 0.5 * np.linalg.slogdet(C)[1] for C in points]
    C = points[int(np.argmax(likelihood))]
    found = RedNoise(t, y, np.array(periods))
    for period in (3.0, 11.0, 30.0):
        without, with_ = left(C, y, X), left(C, y, np.concatenate([X, np.stack(waves(period), 1)], 1))
        exact = 0.5 * (without - with_) / (without / (n - X.shape[1]))
        assert found.power(np.array([1 / period]))[0] == pytest.approx(exact, rel=1e-6)
    for period in periods:
        assert found.power(np.array([1 / period]))[0] == pytest.approx(0.0, abs=1e-6)


def test_red_noise_has_no_peaks_at_the_week():
    """Of 60 walks on business days, the power at a week: a plain periodogram repeats there what is slow."""
    rng = np.random.default_rng(1)
    walks = np.cumsum(rng.normal(size=(60, 140)), 1)[:, BUSINESS_DAYS.astype(int)]
    power = np.array([RedNoise(BUSINESS_DAYS, walk, np.zeros(0)).power(np.array([1 / 7]))[0] for walk in walks])
    assert power.mean() < 1 + 4 / np.sqrt(60)  # exponential of mean 1
    assert (power > np.log(1000)).mean() < 0.06
