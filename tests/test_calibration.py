"""The sampler is calibrated: what it says of sites drawn from the program is true as often as it says."""

import calibration
import pytest

from alps_ppl.gibbs.kernel import SETS


@pytest.mark.slow
@pytest.mark.parametrize("moves", ["marginal", "paper"])
def test_ranks_and_gates_are_calibrated(moves, key, tmp_path):
    """1,000 replications: ranks of H^2, the noise, f and the log likelihood; gates in bins; Brier score.

    The bounds fail a right sampler with a probability of at most 1e-4 over all of them.
    """
    result = calibration.calibrate(SETS[moves], key)
    values = calibration.p_values(result)
    print(moves, {name: round(float(value), 3) for name, value in values.items()}, calibration.brier(result))
    assert min(values.values()) > calibration.LEVEL / len(values)
    tree = result.tree
    assert set(tree["prior_sbc"].data_vars) == set(result.pit)  # continuous ones: no gate is ranked
    if moves == "marginal":
        calibration.draw(result, tmp_path / "calibration.png")
