"""What a long fit says of the time it takes."""

import logging

import pytest

from alps_ppl import progress
from alps_ppl.app.run import _said_messages


@pytest.mark.parametrize(
    ("step", "said"),
    [(0.01, []), (2.0, ["Gibbs: about 3 min for 90 more sweeps"]), (100.0, ["Gibbs: about 2.5 h for 90 more sweeps"])],
)
def test_an_estimate_is_said_once_where_it_is_long(step, said, monkeypatch, caplog):
    clock = iter([5.0, 5.0 + 10 * step])
    monkeypatch.setattr(progress, "perf_counter", lambda: next(clock))
    with caplog.at_level(logging.INFO, "alps_ppl"):
        estimate = progress.Estimate("Gibbs", "sweeps", 100)
        for _ in range(10):
            estimate.update(10)
    assert caplog.messages == said


def test_the_command_prints_what_the_package_logs(capsys):
    logging.getLogger("alps_ppl.progress").info("before")
    with _said_messages():
        logging.getLogger("alps_ppl.progress").info("SVI: about 40 s for 990 more steps")
    logging.getLogger("alps_ppl.progress").info("after")
    assert capsys.readouterr().out == "SVI: about 40 s for 990 more steps\n"
