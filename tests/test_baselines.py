"""The simple forecasts that every held-out split is scored beside."""

import numpy as np
import pytest

import alps_ppl as alps
from alps_ppl.app.baselines import simple_forecasts

T = np.arange(60.0)


def problem(y, held_out, period=12.0):
    data = alps.Data(T, y, outputs=["a"], held_out={"test": held_out} if held_out is not None else None)
    return data, alps.ALPS({"wave": alps.linear_periodic(period)}, ["a"], noise_variance=0.1)


def test_the_last_value_and_the_value_a_cycle_before():
    y = (T % 12)[:, None] + 0.01 * np.arange(60)[:, None]
    y[47] = np.nan  # the last before what is held out
    held_out = T >= 48
    data, model = problem(y, held_out)
    found = simple_forecasts(data, model)
    assert list(found) == ["the last value", "12 before"]
    found = {name: (data.loc + data.scale * mean, data.scale * sd) for name, (mean, sd) in found.items()}
    np.testing.assert_allclose(found["the last value"][0][held_out, 0], y[46, 0])
    np.testing.assert_allclose(found["12 before"][0][48:59, 0], y[36:47, 0])
    assert found["12 before"][0][59, 0] == pytest.approx(y[35, 0])  # a cycle before is missing, so two
    np.testing.assert_allclose(found["12 before"][1][12:], 0.0, atol=0.13)
    np.testing.assert_allclose(found["12 before"][0][:12, 0], data.loc[0])  # no cycle before: the mean, and its sd
    np.testing.assert_allclose(found["12 before"][1][:12, 0], data.scale[0])


def test_a_decoy_is_no_season():
    data, _ = problem((T % 12)[:, None], T >= 48)
    model = alps.ALPS(
        {"wave": alps.linear_periodic(12.0), "decoy 9": alps.linear_periodic(9.0)}, ["a"], noise_variance=0.1
    )
    assert list(simple_forecasts(data, model)) == ["the last value", "12 before"]


def test_cycles_further_ahead_look_back_as_many():
    y = np.sin(2 * np.pi * T / 12)[:, None]
    held_out = T >= 30
    data, model = problem(y, held_out)
    mean, _ = simple_forecasts(data, model)["12 before"]
    np.testing.assert_allclose(mean[held_out], data.standardised[held_out], atol=1e-9)


def test_nothing_held_out_or_no_cycle_that_fits():
    y = np.random.default_rng(0).normal(size=(60, 1))
    assert simple_forecasts(*problem(y, None)) == {}
    assert list(simple_forecasts(*problem(y, T >= 50, period=300.0))) == ["the last value"]
