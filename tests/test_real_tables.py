"""Tables that do what the paper's model can't say: the right processes are on, and no others."""

import numpy as np
import numpyro.distributions as dist
import pytest
import xarray as xr
from jax import random
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.app.report import sections
from alps_ppl.tables.data import Conversion
from experiments.real_tables import PRIVATE, row, table


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_table_is_what_it_says(kind):
    """Finite, of its seed alone, and with a shared memory in every other one."""
    t, y, shares_memory = table(kind, 1)
    assert (t.shape, y.shape, shares_memory) == ((300,), (300, 4), True)
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(y, table(kind, 1)[1])
    assert not table(kind, 2)[2]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), [("private_ou", 0), ("private_ou", 1), ("lags", 0)])
def test_what_is_there_is_on_and_nothing_else(kind, seed):
    """A cycle with memories of each output's own, without and with a shared one beside them, and with lags."""
    found = row(kind, seed, paper=False, num_warmup=200, num_samples=200)
    assert found["daily"] > 0.99
    assert found["decoy"] < 0.1
    assert (found["memory"] > 0.5) == (seed % 2 == 1)


@pytest.mark.slow
def test_a_sensor_that_is_late():
    """Three hourly sensors of one daily cycle, one 3 h late: no rough process, and the peaks to 15 minutes."""
    t, rng = np.arange(240.0), np.random.default_rng(0)
    late = np.array([0.0, 3.0, 0.0])
    y = np.sin(2 * np.pi * (t[:, None] - 9 - late) / 24) * [3.0, 1.5, 2.0] + 0.5 * rng.normal(size=(240, 3))
    latents = {"daily": alps.linear_periodic(24.0), "rough": kernels.Exp(scale=6.0)}
    for copies, rough in (({}, (0.9, 1.0)), ({"daily": 2}, (0.0, 0.1))):
        model = alps.ALPS(latents, 3, copies=copies, noise_variance=dist.InverseGamma(2.0, 0.5))
        lengths = {"num_warmup": 150, "num_samples": 150, "num_chains": 2}
        fit = alps.fit_gibbs(model, t, y, rng_key=random.key(0), progress_bar=False, **lengths)
        probability = alps.inclusion_table(fit).set_index("latent").probability
        assert probability["daily"] > 0.99
        assert rough[0] <= probability["rough"] <= rough[1]
    np.testing.assert_allclose(alps.cycles(fit).peak % 24, 15 + late, atol=0.25)


def test_cycles_are_a_loops(trees):
    """Amplitude and peak from every draw's contribution, on a grid of one period."""
    found = alps.cycles(trees["gibbs"])
    tree = trees["gibbs"]["posterior"].to_dataset()
    t = np.asarray(tree["time"])
    for line in found.itertuples():
        here = tree.sel(latent=line.process, output=line.output)
        on = here["b"].values == 1
        x, H = here["x"].transpose("chain", "draw", "time").values[on], here["H"].values[on]
        amplitudes = []
        for path, load in zip(x, H, strict=True):
            design = np.stack([np.cos(2 * np.pi * t / line.period), np.sin(2 * np.pi * t / line.period)], 1)
            A, B = np.linalg.lstsq(design, load * path, rcond=None)[0]
            amplitudes.append(np.abs(A + 1j * B))
        assert line.amplitude == pytest.approx(np.mean(amplitudes))
        assert t.min() <= line.peak < t.min() + line.period


def test_copies_are_turned_where_they_are_on():
    """Contributions stay; H of the largest output is all the first copy's; draws with the gate off stay as they are."""
    rng = np.random.default_rng(0)
    shape = {"x": ("chain", "draw", "latent", "time"), "H": ("chain", "draw", "output", "latent")}
    x, H, b = rng.normal(size=(2, 3, 3, 5)), rng.normal(size=(2, 3, 4, 3)), np.ones((2, 3, 3), int)
    H[..., 2, :] *= 10
    b[1] = 0
    variables = {"x": (shape["x"], x), "H": (shape["H"], H), "b": (("chain", "draw", "latent"), b)}
    names = {"latent": ["a 1", "a 2", "c"], "copy_of": ("latent", ["a", "a", "c"])}
    turned = alps.align_signs(xr.Dataset(variables, names))
    new_x, new_H = turned["x"].values, turned["H"].values
    for places in ([0, 1], [2]):
        before, after = (h[..., places] @ path[..., places, :] for h, path in ((H, x), (new_H, new_x)))
        np.testing.assert_allclose(after, before, atol=1e-12)
    np.testing.assert_allclose(new_H[0][..., 2, 1], 0.0, atol=1e-12)
    np.testing.assert_array_equal(np.abs(new_H[1]), np.abs(H[1]))


def test_errors_of_peaks_in_words():
    """59.7 minutes are an hour, not none."""
    conversion = Conversion([], np.ones(0), np.ones(0), {}, "t", ["t"], origin="2025-01-01", step="hours")
    assert [sections._error(hours, conversion) for hours in (0.12, 59.7 / 60, 26.0, 60.0)] == [
        "0:07", "1:00", "1.1 days", "2.5 days",
    ]  # fmt: skip
