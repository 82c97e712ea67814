"""The schedule against the oracle's numbers."""

import pytest

from alps_ppl import annealed_temperature


@pytest.mark.parametrize("num_steps", [1000, 10_000])
def test_schedule(oracle, num_steps):
    for case in oracle("misc")["temperature_schedule"]:
        temperature = float(annealed_temperature(case["n_over_N"] * num_steps, num_steps))
        assert temperature == pytest.approx(case["T"], rel=1e-6)
