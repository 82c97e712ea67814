"""A run that is killed and goes on gives what an uninterrupted one gives, to the bit; and ``alps-ppl predict``."""

import signal
import subprocess
import sys

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from numpyro.infer import MCMC

import alps_ppl as alps
from alps_ppl.chains import run_chains
from alps_ppl.checkpoints import Checkpoints, fingerprint

MODEL_FILE = """
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import alps_ppl as alps

def data():
    days = pd.date_range("2026-01-05", periods=30, freq="D", name="date")
    y = np.sin(2 * np.pi * np.arange(30) / 7)[:, None] * [1.0, -2.0]
    y += 0.1 * np.random.default_rng(0).normal(size=y.shape)
    return alps.Data(days, pd.DataFrame(50 + 10 * y, columns=["u", "v"]), units={"u": "m"})

def model(data):
    named = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0)}
    return alps.ALPS(named, data.outputs, noise_variance=dist.InverseGamma(2.0, 0.1))

SVI = {"num_inducing": 4, "num_steps": 20}
GIBBS = {"num_warmup": 5, "num_samples": 21, "num_chains": 2, "thinning": 2}
"""
# The command in a process that kills itself as kill -9 would, right after the given number of checkpoints.
KILLED = """
import os, signal, sys
import numpyro
numpyro.enable_x64()
import alps_ppl.checkpoints as c, alps_ppl.cli as cli, alps_ppl.runner as runner
runner._figures = lambda *_: None  # most of the time, and nothing to compare
write, left = c.Checkpoint.write, [int(sys.argv.pop(1))]
def counted(self, step, state):
    write(self, step, state)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
c.Checkpoint.write = counted
cli.main()
"""


def command(folder, checkpoints, *extra):
    code = [sys.executable, "-c", KILLED, str(checkpoints), "run", str(folder / "model.py"), "--no-progress"]
    return subprocess.run(
        [*code, "--out", str(folder / "out"), "--checkpoint-seconds", "0", *extra], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One folder with an uninterrupted run, one with a run killed in SVI, then in Gibbs, and then resumed."""
    whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    for folder in (whole, killed):
        (folder / "model.py").write_text(MODEL_FILE)
    printed = [command(killed, 7), command(killed, 22), command(killed, 0)]
    return whole, killed, [command(whole, 0), *printed]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_gives_the_same(runs):
    whole, killed, (uninterrupted, first, second, third) = runs
    assert uninterrupted.returncode == 0, uninterrupted.stderr
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, -signal.SIGKILL)
    assert "svi_0.npz: going on after 7 steps" in second.stdout
    assert third.returncode == 0, third.stderr
    assert "svi_0.npz: going on after 20 steps" in third.stdout  # finished before: nothing is lost
    assert "gibbs.npz: going on after 9 sweeps" in third.stdout  # 13 more steps of SVI, then these
    assert "going on" not in uninterrupted.stdout
    for engine in ("svi", "gibbs"):
        trees = [xr.open_datatree(f / "out" / f"posterior_{engine}.nc", engine="h5netcdf") for f in (whole, killed)]
        assert trees[0].equals(trees[1])  # their attributes say when they were made
        for tree in trees:
            tree.close()
    assert trees[0]["posterior"].sizes["draw"] == 10
    for name in ("predictions.csv", "inclusion.csv"):
        assert (whole / "out" / name).read_text() == (killed / "out" / name).read_text()
    assert not (killed / "out" / "checkpoints").exists()


@pytest.mark.slow
def test_predict_writes_the_files_units(runs, tmp_path):
    """Dates of training give what predictions.csv has; the dates after it are a forecast."""
    folder = runs[0] / "out"
    known = pd.read_csv(folder / "predictions.csv").query("engine == 'gibbs'").reset_index(drop=True)
    dates = [*known.date.unique(), "2026-02-04", "2026-02-05T12:00"]
    pd.DataFrame({"date": dates[::-1], "note": "x"}).to_csv(tmp_path / "at.csv", index=False)
    arguments = ["predict", folder, "--at", tmp_path / "at.csv", "--out", tmp_path / "new.csv"]
    code = [sys.executable, "-c", "import alps_ppl.cli as c; c.main()"]
    done = subprocess.run([*code, *map(str, arguments)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    new = pd.read_csv(tmp_path / "new.csv")
    assert list(new.columns) == ["date", "input", "output", "mean", "sd", "lower", "upper"]
    assert new.input.unique().tolist()[:2] == [31.5, 30.0]
    back = new.iloc[4:].set_index(["input", "output"]).loc[list(zip(known.input, known.output, strict=True))]
    for name in ("mean", "sd", "lower", "upper"):
        np.testing.assert_array_equal(back[name].to_numpy(), known[name].to_numpy())
    assert new["mean"].between(20, 80).all()


BAD_TIMES = [
    ("date,a\n1,2\n", [], "times: expected dates, as those that were fitted, got '1.0'"),
    ("date,a\nsoon,2\n", [], "times: expected numbers or ISO 8601 dates, got 'soon'"),
    ("date,a\n2026-01-05,2\n,3\n", [], "times: expected a time in every row, got nan in row 1; drop that row"),
    ("day,a\n2026-01-05,2\n", [], "expected a column for the times, date, got day, a"),
    ("2026-01-05\n2026-01-06\n", [], "expected a line with the columns' names first, e.g. date, got 2026-01-05"),
    ("", [], "--at: expected a CSV file with a column of times"),
    (None, [], "--at: expected a CSV file with a column of times"),
    ("date\n2026-01-05\n", ["--interval", "1"], "interval: expected a probability strictly between 0 and 1, got 1"),
    ("date\n2026-01-05\n", ["--engine", "nuts"], "'nuts' is not one of 'svi', 'gibbs'"),
]


@pytest.mark.slow
def test_bad_times(runs, tmp_path, monkeypatch, capsys):
    """One plain line for each; one test, since the run behind it takes a minute."""
    for table, extra, message in BAD_TIMES:
        path = tmp_path / "at.csv"
        path.unlink(missing_ok=True)
        if table is not None:
            path.write_text(table)
        assert message in predict_error(monkeypatch, capsys, [runs[0] / "out", "--at", path, *extra])


def test_predict_without_results(tmp_path, monkeypatch, capsys):
    expected = "DIR: expected results of alps-ppl run, with posterior_gibbs.nc, got"
    assert expected in predict_error(monkeypatch, capsys, [tmp_path, "--at", tmp_path / "at.csv"])
    (tmp_path / "posterior_svi.nc").write_text("cut off")
    (tmp_path / "at.csv").write_text("t\n1\n")
    expected = "posterior_svi.nc: expected a file that alps.save or alps-ppl run wrote, but it can't be read as netCDF"
    assert expected in predict_error(monkeypatch, capsys, [tmp_path, "--at", tmp_path / "at.csv"])


def predict_error(monkeypatch, capsys, arguments):
    from alps_ppl.cli import main

    monkeypatch.setattr(sys, "argv", ["alps-ppl", "predict", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert len(error.strip().splitlines()) == 1
    return error


@pytest.fixture(scope="module")
def problem():
    t = np.arange(20.0)
    model = alps.ALPS({"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0)}, 2, noise_variance=0.1)
    return model, t, np.sin(t)[:, None] * [1.0, 2.0]


@pytest.mark.parametrize(("num_chains", "thinning"), [(1, 1), (2, 3)])
def test_chains_are_numpyros(problem, num_chains, thinning):
    """The same keys, the same sweeps, the same thinning as MCMC's vectorized chains."""
    model, t, y = problem
    lengths = {"num_warmup": 4, "num_samples": 10, "num_chains": num_chains, "thinning": thinning}
    mcmc = MCMC(alps.ALPSGibbs(model), **lengths, chain_method="vectorized", progress_bar=False)
    mcmc.run(jax.random.key(0), t, y)
    fit = run_chains(alps.ALPSGibbs(model), jax.random.key(0), t, y, **lengths, progress_bar=False)
    for mine, theirs in (
        (fit.get_samples(group_by_chain=True), mcmc.get_samples(group_by_chain=True)),
        (fit.get_extra_fields(), mcmc.get_extra_fields()),
    ):
        assert set(mine) == set(theirs)
        for name in mine:
            np.testing.assert_allclose(mine[name], theirs[name], atol=1e-8)


def test_another_run_starts_anew(problem, tmp_path):
    """Another fingerprint or a broken file: said, and not used."""
    model, t, y = problem
    said = []
    settings = {"num_inducing": 4, "num_steps": 30, "rng_key": jax.random.key(0), "progress_bar": False}

    def fit(mark):
        return alps.fit_svi(model, t, y, **settings, checkpoints=Checkpoints(tmp_path, mark, 0.0, said.append))

    expected = fit("a").losses
    assert said == []
    fit("b")
    assert "of another model, data, settings, seed or version; starting anew" in said.pop()
    np.testing.assert_array_equal(fit("b").losses, expected)
    assert "going on after 30 steps" in said.pop()
    (tmp_path / "svi_0.npz").write_bytes(b"PK cut off")
    np.testing.assert_array_equal(fit("b").losses, expected)
    assert "can't be read as a checkpoint; starting anew" in said.pop()


def test_a_fingerprint_tells_runs_apart(problem):
    model, t, y = problem
    other = alps.ALPS({"T=7": alps.linear_periodic(7.5), "T=5": alps.linear_periodic(5.0)}, 2, noise_variance=0.1)
    prior = alps.ALPS(
        {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0)},
        2,
        noise_variance=dist.InverseGamma(2.0, 0.1),
    )
    key, settings, found = jax.random.key(0), {"num_steps": 5}, {"jax": "1"}
    runs = [
        (model, t, y, settings, key, found),
        (other, t, y, settings, key, found),
        (prior, t, y, settings, key, found),
        (model, t + 1, y, settings, key, found),
        (model, t, 2 * y, settings, key, found),
        (model, t, y, {"num_steps": 6}, key, found),
        (model, t, y, settings, jax.random.key(1), found),
        (model, t, y, settings, key, {"jax": "2"}),
        (model, t, y, {"temperature": abs}, key, found, "a"),
        (model, t, y, {"temperature": abs}, key, found, "b"),
    ]
    marks = [fingerprint(*run) for run in runs]
    assert len(set(marks)) == len(runs)
    assert marks == [fingerprint(*run) for run in runs]
    assert fingerprint(*runs[0], "a") == marks[0]  # the text counts only where settings aren't plain data
