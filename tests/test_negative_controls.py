"""Mistakes put into the sampler, and the tests that catch them; ``pytest -s`` prints the table that
docs/negative_controls.md keeps.

"block" is test_conditionals.py's identity (its largest violation, right: 1e-9), "Geweke" test_geweke.py's (the largest
|z|, right: below 5), "calibration" test_calibration.py's at 1,000 replications (the smallest p-value).
"""

import calibration
import pytest
import simulation
import test_geweke as geweke
from test_conditionals import block_of, differences, log_joint, point  # noqa: F401


@pytest.fixture(scope="module")
def table():
    """Rows of text by mistake, printed at the end."""
    rows = {}
    yield rows
    print("\n\n| mistake | moves | block | Geweke | calibration |\n|---|---|---|---|---|")
    for mistake, cells in rows.items():
        print("|", " | ".join([mistake, *cells]), "|")


@pytest.mark.slow
@pytest.mark.parametrize("mistake", simulation.MISTAKES)
def test_a_mistake_is_caught(mistake, table, monkeypatch, rough_model, point, log_joint, key):  # noqa: F811
    """By Geweke's test, and by the identity if it is a block; the table says what else does. 35 s on busy cores."""
    *_, blocks, block = simulation.MISTAKES[mistake]
    simulation.put_in(mistake, monkeypatch)
    violation = None
    if block:
        # A small H leaves the gates undecided: where one is surely off, the printed formula is right too.
        phi, stats, weights, z = point
        H = 0.1 * z["H"]
        wrong, sites = block_of(block, rough_model, (phi, stats, weights, z | {"H": H}))
        violation = differences(wrong, lambda value: {"H": H} | sites(value), log_joint)
    scores = geweke.z_scores(geweke.chain_means(simulation.Simulation(blocks), key, num_sweeps=1_000))
    z, of = geweke.largest(scores)
    values = calibration.p_values(calibration.calibrate(blocks, key))
    smallest = min(values, key=values.get)
    table[mistake] = [
        blocks if isinstance(blocks, str) else ", ".join(blocks),
        "-" if violation is None else f"{violation:.1g}",
        f"{z:.0f} ({of})",
        f"{values[smallest]:.0e} ({smallest})"
        + ("" if values[smallest] < calibration.LEVEL / len(values) else ": missed"),
    ]
    assert z > geweke.bound(scores)
    assert violation is None or violation > 1e-3
