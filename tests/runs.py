"""The command as tests call it, and a model file that has a bit of everything.

Its sizes and names are those of ``test_fit``'s table, too, so that one process compiles them once.
"""

import contextlib
import io
import sys

from alps_ppl.app.cli import main

MODEL_FILE = r"""
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import alps_ppl as alps

def data():
    days = pd.date_range("2026-01-05", periods=36, freq="D", name="date")
    rng = np.random.default_rng(0)
    y = 50 + 10 * (np.sin(2 * np.pi * np.arange(36) / 7)[:, None] * [1.0, -2.0] + 0.3 * rng.normal(size=(36, 2)))
    y[4, 0] = np.nan
    gap = np.zeros(y.shape, bool)
    gap[10:12, 1] = True
    held_out = {"test": np.arange(36) >= 30, "gap": gap}
    return alps.Data(days, y, outputs=["u", "v"], held_out=held_out, units={"u": "°F $\\frac$"})

def model(data):
    named = {"week": alps.linear_periodic(6.8), "5 d": alps.linear_periodic(5.0)}
    noise = dist.InverseGamma(2.0, 0.2)
    return alps.ALPS(named, data.outputs, noise_variance=noise, covariance_bounds={"week": {"scale": (6.0, 8.0)}})

SVI = {"num_inducing": 6, "num_steps": 1500}
GIBBS = {"num_warmup": 200, "num_samples": 300, "num_chains": 2}

def baselines(data):
    mean = np.broadcast_to(data.loc, data.y.shape)
    return {"mean": (mean, np.broadcast_to(data.scale, data.y.shape))}
"""
# Options of ``finished_run``.
FINISHED = [
    "--seed", 3, "--set", "GIBBS.num_samples=251", "--set", "GIBBS.thinning=2", "--no-progress",
]  # fmt: skip


def command(*arguments):
    """``alps-ppl`` with these arguments, in this process: (status, stdout, stderr)."""
    out, error, status, argv = io.StringIO(), io.StringIO(), 0, sys.argv
    sys.argv = ["alps-ppl", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            main()
    except SystemExit as exit_:
        status = exit_.code or 0
    finally:
        sys.argv = argv
    return status, out.getvalue(), error.getvalue()
