"""The sampler is calibrated: what it says of sites drawn from the program is true as often as it says."""

import calibration
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("blocks", ["default", "paper", "all"])
def test_ranks_and_gates_are_calibrated(blocks, key, tmp_path):
    """1,000 replications: ranks of H^2, the noise, f and the log likelihood; gates in bins; Brier score. 15 to 50 s.

    The bounds fail a right sampler with a probability of at most 1e-4 over all of them.
    """
    result = calibration.calibrate(blocks, key)
    values = calibration.p_values(result)
    print(blocks, {name: round(float(value), 3) for name, value in values.items()}, calibration.brier(result))
    assert min(values.values()) > calibration.LEVEL / len(values)
    if blocks == "default":
        calibration.draw(result, tmp_path / "calibration.png")
