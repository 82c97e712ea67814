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
from runs import MODEL_FILE, command

import alps_ppl as alps
from alps_ppl.app import figures
from alps_ppl.app.run import fingerprint
from alps_ppl.checkpoints import Checkpoints

TINY = [
    "--set", "SVI.num_steps=20", "--set", "GIBBS.num_warmup=5", "--set", "GIBBS.num_samples=21", "--set",
    "GIBBS.thinning=2", "--no-progress", "--checkpoint-seconds", 0,
]  # fmt: skip
# The command in a process that gets a signal right after the given number of checkpoints.
STOPPED = """
import os, signal, sys
from alps_ppl import checkpoints
from alps_ppl.app import cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
write, left, how = checkpoints.Checkpoint.write, [int(sys.argv.pop(1))], int(sys.argv.pop(1))
def counted(self, step, state):
    write(self, step, state)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), how)
checkpoints.Checkpoint.write = counted
cli.main()
"""


def arguments(folder):
    return ["run", folder / "model.py", "--out", folder / "out", *TINY]


def stopped(folder, checkpoints, how):
    words = [STOPPED, checkpoints, int(how), *arguments(folder)]
    return subprocess.run([sys.executable, "-c", *map(str, words)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One folder with an uninterrupted run; one with a run killed in SVI, interrupted in Gibbs, and then finished."""
    whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    for folder in (whole, killed):
        (folder / "model.py").write_text(MODEL_FILE)
    printed = [stopped(killed, 7, signal.SIGKILL), stopped(killed, 22, signal.SIGINT)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", lambda *_: None)  # most of the time, and nothing to compare
        return whole, killed, [*printed, command(*arguments(killed)), command(*arguments(whole))]


def test_a_killed_run_goes_on_and_gives_the_same(runs):
    whole, killed, (first, second, third, uninterrupted) = runs
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert second.returncode == 130, second.stderr
    assert (third[0], uninterrupted[0]) == (0, 0), third[2] + uninterrupted[2]
    assert "svi_0.npz: going on after 7 steps" in second.stdout
    assert "svi_0.npz: going on after 20 steps" in third[1]  # finished before: nothing is lost
    assert "gibbs.npz: going on after 9 sweeps" in third[1]  # 13 more steps of SVI, then these
    assert "going on" not in uninterrupted[1]
    for engine in ("svi", "gibbs"):
        trees = [xr.open_datatree(f / "out" / f"posterior_{engine}.nc", engine="h5netcdf") for f in (whole, killed)]
        assert trees[0].equals(trees[1])  # their attributes say when they were made
        for tree in trees:
            tree.close()
    assert trees[0]["posterior"].sizes["draw"] == 10
    for name in ("predictions.csv", "inclusion.csv"):
        assert (whole / "out" / name).read_text() == (killed / "out" / name).read_text()
    assert not (killed / "out" / "checkpoints").exists()


def test_an_interrupt_says_what_is_there(runs):
    _, killed, (_, interrupted, *_) = runs
    assert interrupted.stderr == (
        f"alps-ppl: interrupted; written to {killed / 'out'} so far: posterior_svi.nc; "
        "the same command goes on from its checkpoints\n"
    )


def test_predict_writes_the_files_units(call, finished_run, tmp_path):
    """Dates of training give what predictions.csv has; the dates after it are a forecast."""
    folder, _ = finished_run
    known = pd.read_csv(folder / "predictions.csv").query("engine == 'gibbs'").reset_index(drop=True)
    dates = [*known.date.unique(), "2026-02-10", "2026-02-11T12:00"]
    pd.DataFrame({"date": dates[::-1], "note": "x"}).to_csv(tmp_path / "at.csv", index=False)
    done = call("predict", folder, "--at", tmp_path / "at.csv", "--out", tmp_path / "new.csv")
    assert done == (0, "", "")
    new = pd.read_csv(tmp_path / "new.csv")
    assert list(new.columns) == ["date", "input", "output", "mean", "sd", "lower", "upper"]
    assert new.input.unique().tolist()[:2] == [37.5, 36.0]
    back = new.iloc[4:].set_index(["input", "output"]).loc[list(zip(known.input, known.output, strict=True))]
    for name in ("mean", "sd", "lower", "upper"):
        np.testing.assert_allclose(back[name].to_numpy(), known[name].to_numpy(), rtol=1e-9)
    assert new["mean"].between(20, 80).all()


@pytest.mark.parametrize(
    ("table", "extra", "message"),
    [
        ("date,a\n1,2\n", [], "times: expected dates"),
        ("date,a\nsoon,2\n", [], "times: expected"),
        ("date,a\n2026-01-05,2\n,3\n", [], "a time in every row"),
        ("day,a\n2026-01-05,2\n", [], "a column for the times, date, got day, a"),
        ("2026-01-05\n2026-01-06\n", [], "a line with the columns' names first"),
        ("date\n", [], "--at: expected at least one time"),
        ("", [], "--at: expected a CSV file"),
        (None, [], "--at: expected a CSV file"),
        ("date\n2026-01-05\n", ["--interval", "1"], "interval: expected a probability"),
        ("date\n2026-01-05\n", ["--engine", "nuts"], "'nuts' is not one of 'svi', 'gibbs'"),
        ("date\n2026-01-05\n", ["--out", "no/such/folder.csv"], "--out: can't write"),
    ],
)
def test_bad_times(call, finished_run, tmp_path, table, extra, message):
    if table is not None:
        (tmp_path / "at.csv").write_text(table)
    status, _, error = call("predict", finished_run[0], "--at", tmp_path / "at.csv", *extra)
    assert (status, error.count("\n")) == (2, 1)
    assert message in error


def test_predict_without_results(call, tmp_path):
    (tmp_path / "at.csv").write_text("t\n1\n")
    arguments = ["predict", tmp_path, "--at", tmp_path / "at.csv"]
    assert "DIR: expected results of alps-ppl run, with posterior_gibbs.nc" in call(*arguments)[2]
    (tmp_path / "posterior_svi.nc").write_text("cut off")
    assert "posterior_svi.nc: expected a file that alps.save or alps-ppl run wrote" in call(*arguments)[2]


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
    theirs = alps.from_mcmc(mcmc)
    mine = alps.fit_gibbs(model, t, y, rng_key=jax.random.key(0), **lengths, progress_bar=False)
    for name in ("b", "H", "x"):
        np.testing.assert_allclose(mine.samples[name], theirs.samples[name], atol=1e-8)
    for name in ("gate_prob", "lp"):
        np.testing.assert_allclose(mine.sample_stats[name], theirs.sample_stats[name], atol=1e-8)


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
    named = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0)}
    other = alps.ALPS(named | {"T=7": alps.linear_periodic(7.5)}, 2, noise_variance=0.1)
    prior = alps.ALPS(named, 2, noise_variance=dist.InverseGamma(2.0, 0.1))
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
