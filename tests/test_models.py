"""The model files: the paper's square wave gives the paper's answer for any seed, in both precisions."""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import alps_ppl as alps

pytestmark = pytest.mark.usefixtures("optimised")

MODELS = Path(__file__).parents[1] / "models"


def load(name):
    spec = importlib.util.spec_from_file_location(name, MODELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def square_wave_answers(seed):
    """Both engines' probabilities with the file's settings, and the gates' R-hat."""
    file = load("square_wave")
    data = file.data()
    model, keys = file.model(data), jax.random.split(jax.random.key(seed))
    fits = {
        engine: fit(model, data.train_inputs, data.train_y, rng_key=key, progress_bar=False, **settings)
        for engine, fit, key, settings in (
            ("svi", alps.fit_svi, keys[0], file.SVI),
            ("gibbs", alps.fit_gibbs, keys[1], file.GIBBS),
        )
    }
    table = alps.inclusion_table(fits)
    probability = table.pivot(index="latent", columns="engine", values="probability").loc[list(model.latents)]
    return probability, table[table.engine == "gibbs"].r_hat


def assert_the_papers_answer(probability, r_hat):
    odd, even = probability.iloc[::2], probability.iloc[1::2]
    assert (odd >= 0.9).all(axis=None), probability
    assert (even <= 0.1).all(axis=None), probability
    assert (abs(probability["svi"] - probability["gibbs"]) <= 0.1).all(), probability
    assert (r_hat <= 1.01).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_square_wave_over_seeds(seed):
    assert_the_papers_answer(*square_wave_answers(seed))


@pytest.mark.slow
def test_square_wave_in_float32():
    """JAX's default precision, in a process of its own: the same answer, without a NaN."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import jax; import test_models as m;"
        "jax.config.update('jax_enable_x64', False);"
        "p, r = m.square_wave_answers(1); assert not jax.config.jax_enable_x64;"
        "m.assert_the_papers_answer(p, r); print('right')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "right", done.stderr[-2000:]


def test_square_wave_has_the_papers_harmonics(oracle):
    """Fourier amplitudes and what the first four odd harmonics leave over, on the file's own grid."""
    expected = oracle("misc")["square_wave"]
    data = load("square_wave").data()
    y = data.y[:, 0]
    t = data.inputs + 0.25  # the samples stand for half-second bins; their middle is a quarter of a second later
    for harmonic, amplitude in expected["amplitudes"].items():
        measured = 2 * np.mean(y * np.sin(2 * np.pi * int(harmonic) * t / 20))
        assert measured == pytest.approx(amplitude, rel=0.06)
    for even in (2, 4, 6, 8):
        assert abs(np.mean(y * np.exp(2j * np.pi * even * t / 20))) < 1e-12


def test_noisy_mixture_is_the_papers():
    file = load("noisy_mixture")
    made = file.simulate(0, noise_sd=0.0)
    np.testing.assert_array_equal(made["H"][:3], np.eye(3))
    assert made["H"].shape == (9, 3)
    np.testing.assert_allclose(made["y"], made["f"])
    for x, period in zip(made["x"].T, file.TRUE_PERIODS, strict=True):
        assert np.mean(x[: 7 * 17] ** 2) == pytest.approx(1.0, abs=0.1)
        # A sine wave of this period: its second difference is that multiple of itself.
        second = x[2:] - 2 * x[1:-1] + x[:-2]
        np.testing.assert_allclose(second, 2 * (np.cos(2 * np.pi / period) - 1) * x[1:-1], atol=1e-9)


def test_noise_is_shared_unless_it_is_independent():
    for independent, rank in ((False, 3), (True, 9)):
        made = load("noisy_mixture").simulate(1, independent=independent)
        noise = made["y"] - made["f"]
        assert np.linalg.matrix_rank(noise) == rank
        # 200 draws: the sd of a sample sd is 5 %.
        np.testing.assert_allclose(noise.std(0), 0.5 * np.linalg.norm(made["H"], axis=1), rtol=0.25)


def test_new_york_weather_data():
    file = load("nyc_weather")
    data = file.data()
    model = file.model(data)
    assert data.y.shape == (744, 15)
    assert np.isnan(data.y).mean() == pytest.approx(0.026, abs=0.002)
    assert (data.split == "test").sum() == 144 * 15
    assert (data.split == "gap").sum() == 24
    assert len(data.train_inputs) == 600
    assert model.outputs[0] == "temp_ewr"


def test_new_york_weather_yardsticks():
    """The training mean and the hour-of-day mean score what the issue's yardsticks say: 1.282 and 1.200."""
    file = load("nyc_weather")
    data = file.data()
    file._gps = lambda data: (np.zeros(data.y.shape), np.ones(data.y.shape))
    test = (data.split == "test") & ~np.isnan(data.y)
    for name, rmse in {"training mean": 1.282, "hour-of-day mean": 1.200}.items():
        mean, _ = file.baselines(data)[name]
        errors = ((data.y - mean) / data.scale)[test]
        assert np.sqrt((errors**2).mean()) == pytest.approx(rmse, abs=0.002)


def test_data_files_are_the_ones_named():
    readme = (MODELS / "data" / "README.md").read_text()
    for path in (MODELS / "data").glob("*.csv"):
        assert path.name in readme
        assert hashlib.sha256(path.read_bytes()).hexdigest() in readme
