"""What a sine explains of a series beside a line, other sines and red noise, at whatever stamps there are.

Stamps that lack regularly, weekends or nights, repeat all that is slow at other frequencies of a plain periodogram.
Here the noise is white and an exponential memory, of the share and lengthscale under which the series is the most
probable; its Kalman filter whitens the series and the sines, and then the stamps don't matter.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from alps_ppl.model.memory import Filter, PrivateMemory, kalman, private_memory

# Frequencies whitened at a time.
BLOCK = 512


class RedNoise:
    """The red noise of one series, beside a line and sines of ``periods``, and what another sine explains of it.

    ``t`` (time,) sorted, and ``values`` there, all observed.
    """

    def __init__(self, t: Float[np.ndarray, " time"], values: Float[np.ndarray, " time"], periods: np.ndarray):
        with jax.enable_x64(True):
            self._t = jnp.asarray(t - t[0], jnp.float64)
            line = (t - t.mean()) / (np.ptp(t) or 1.0)
            columns = [values / values.std(), np.ones(len(t)), line]
            columns += [wave(2 * np.pi * t / period) for period in periods for wave in (np.cos, np.sin)]
            grid = PrivateMemory(*(jnp.asarray(part) for part in private_memory(t)))
            white, half_log_det = _whitened(grid, self._t, jnp.asarray(np.stack(columns, 1)))
            left = [_left(np.asarray(of_point)) for of_point in white]
            log_likelihood = [
                -0.5 * len(t) * np.log((rest**2).mean()) - log_det
                for (_, rest), log_det in zip(left, np.asarray(half_log_det), strict=True)
            ]
            best = int(np.argmax(log_likelihood))
            self._basis, self._rest = left[best]
            self._filter = _filter(grid.at(jnp.asarray(best)), self._t)

    def power(self, frequencies: Float[np.ndarray, " frequency"]) -> Float[np.ndarray, " frequency"]:
        """Half of what a sine and a cosine explain, in variances of the noise: exponential of mean 1 for red noise."""
        parts = [self._power(block) for block in np.array_split(frequencies, -(-len(frequencies) // BLOCK))]
        return np.concatenate(parts)

    def _power(self, frequencies: np.ndarray) -> np.ndarray:
        padded = np.resize(frequencies, BLOCK)  # of one shape, which compiles once
        with jax.enable_x64(True):
            waves = np.asarray(_waves(self._filter, self._t, jnp.asarray(padded)))[..., : len(frequencies)]
        basis, rest = self._basis, self._rest
        before = (waves**2).sum(1).prod(0)
        cos, sin = (wave - basis @ (basis.T @ wave) for wave in waves)
        cc, ss, cs = (cos**2).sum(0), (sin**2).sum(0), (cos * sin).sum(0)
        a, b = cos.T @ rest, sin.T @ rest
        determinant = cc * ss - cs**2
        valid = determinant > 1e-9 * before  # else the sine is the cosine, or in the basis
        explained = (ss * a**2 - 2 * cs * a * b + cc * b**2) / np.where(valid, determinant, 1.0)
        variance = (rest**2).sum() / max(len(rest) - basis.shape[1], 1)
        return np.where(valid, 0.5 * explained / variance, 0.0)


def _left(white: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An orthonormal basis of all columns but the first, and what it leaves of that."""
    basis = np.linalg.qr(white[:, 1:])[0]
    return basis, white[:, 0] - basis @ (basis.T @ white[:, 0])


def _filter(point: PrivateMemory, t) -> Filter:
    return kalman(point, t, jnp.ones(len(t), bool))


@jax.jit
def _whitened(grid: PrivateMemory, t, columns):
    def of_point(point):
        filter_ = _filter(point, t)
        wide = Filter(*(part[:, None] for part in filter_))
        return wide.whiten(columns), filter_.half_log_det

    return jax.lax.map(of_point, grid)


@jax.jit
def _waves(filter_: Filter, t, frequencies):
    phase = 2 * jnp.pi * t[:, None] * frequencies
    wide = Filter(*(part[:, None] for part in filter_))
    return jnp.stack([wide.whiten(jnp.cos(phase)), wide.whiten(jnp.sin(phase))])
