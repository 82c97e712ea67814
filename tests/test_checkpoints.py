"""A run that is killed and goes on gives what an uninterrupted one gives, to the bit; and ``alps-ppl predict``."""

import io
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from numpyro.infer import MCMC
from runs import FINISHED, MODEL_FILE, command

import alps_ppl as alps
from alps_ppl.app import figures
from alps_ppl.app.run import fingerprint
from alps_ppl.checkpoints import Checkpoint, Checkpoints

# The command in a process that is killed right after the given number of checkpoints.
KILLED = """
import os, signal, sys
from alps_ppl import checkpoints
from alps_ppl.app import cli
write, left = checkpoints.Checkpoint.write, [int(sys.argv.pop(1))]
def counted(self, step, state):
    write(self, step, state)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoints.Checkpoint.write = counted
cli.main()
"""


class Killed(BaseException):
    """Nothing catches it."""


def arguments(folder):
    """``finished_run``'s, so that nothing is compiled again, without its smaller model."""
    (folder / "seven.py").write_text(MODEL_FILE)
    return ["run", folder / "seven.py", "--out", folder / "out", *FINISHED, "--checkpoint-seconds", 0]


def stopped(folder, error, after):
    """The command, with an error right after that many checkpoints, as a signal would raise it there."""
    write, left = Checkpoint.write, [after]

    def counted(self, step, state):
        write(self, step, state)
        left[0] -= 1
        if left[0] == 0:
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "write", counted)
        patch.setattr(figures, "draw", lambda *_: None)  # most of the time, and nothing to compare
        return command(*arguments(folder))


def assert_same(out, other):
    """Posteriors and tables are the same to the bit; the files' attributes say when they were made."""
    for engine in ("svi", "gibbs"):
        trees = [xr.open_datatree(folder / f"posterior_{engine}.nc", engine="h5netcdf") for folder in (out, other)]
        assert trees[0].equals(trees[1])
        for tree in trees:
            tree.close()
    for name in ("predictions.csv", "inclusion.csv", "variance_shares.csv"):
        assert (out / name).read_text() == (other / name).read_text()


@pytest.mark.slow
def test_a_killed_run_goes_on_and_gives_the_same(finished_run, tmp_path):
    """Killed in SVI, interrupted in Gibbs, and finished: what an uninterrupted run gives."""
    out = tmp_path / "out"
    with pytest.raises(Killed):
        stopped(tmp_path, Killed, 7)
    status, printed, error = stopped(tmp_path, KeyboardInterrupt, 93 + 60)
    assert "svi_0.npz: going on after 105 steps" in printed
    assert (status, error) == (
        130,
        f"alps-ppl: interrupted; written to {out} so far: posterior_svi.nc; "
        "the same command goes on from its checkpoints\n",
    )
    status, printed, error = stopped(tmp_path, Killed, 10_000)
    assert status == 0, error
    assert "svi_0.npz: going on after 1500 steps" in printed  # finished before: nothing is lost
    assert "gibbs.npz: going on after 240 sweeps" in printed
    assert_same(out, finished_run[0])
    assert not (out / "checkpoints").exists()


@pytest.mark.slow
def test_a_kill_9_leaves_what_goes_on(finished_run, tmp_path):
    """The same with a real process; it runs optimised code, as this one does among the slow tests."""
    words = [KILLED, 20, *arguments(tmp_path)]
    done = subprocess.run([sys.executable, "-c", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    status, printed, error = stopped(tmp_path, Killed, 10_000)
    assert status == 0, error
    assert "svi_0.npz: going on after 300 steps" in printed
    assert_same(tmp_path / "out", finished_run[0])


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


def test_predictions_up_to_a_horizon_go_on_from_the_fitted_times(call, finished_run, tmp_path):
    folder = finished_run[0]
    last = pd.read_csv(folder / "predictions.csv").query("split == 'train'")
    status, long, error = call("predict", folder, "--horizon", "3d")
    assert status == 0, error
    frame = pd.read_csv(io.StringIO(long))
    assert len(frame) == 3 * frame.output.nunique()
    assert frame.input.min() == last.input.max() + 1
    times = frame[["date"]].drop_duplicates().to_csv(index=False)
    (tmp_path / "at.csv").write_text(times)
    assert call("predict", folder, "--at", tmp_path / "at.csv")[1] == long
    _, wide, _ = call("predict", folder, "--horizon", "3d", "--wide")
    by_time = pd.read_csv(io.StringIO(wide))
    assert len(by_time) == 3
    for output, rows in frame.groupby("output"):
        np.testing.assert_array_equal(by_time[f"{output} mean"], rows["mean"])
        np.testing.assert_array_equal(by_time[f"{output} upper"], rows["upper"])
    for wrong in ([], ["--horizon", "3d", "--at", tmp_path / "at.csv"]):
        status, _, error = call("predict", folder, *wrong)
        assert (status, error) == (2, "alps-ppl: expected --at FILE or --horizon DURATION, and not both\n")


@pytest.mark.parametrize(
    ("table", "extra", "message"),
    [
        ("date,a\n1,2\n", [], "times: expected dates"),
        ("date,a\nsoon,2\n", [], "times: expected"),
        ("date,a\n2026-01-05,2\n,3\n", [], "a finite time in every row"),
        ("day,a\n2026-01-05,2\n", [], "a column for the times, date, got day, a"),
        ("2026-01-05\n2026-01-06\n", [], "a line with the columns' names first"),
        ("date\n", [], "--at: expected at least one time"),
        ("", [], "--at: expected a CSV file"),
        (None, [], "--at: expected a CSV file"),
        ("date\n2026-01-05\n", ["--interval", "1"], "interval: expected a number strictly between 0 and 1"),
        ("date\n2026-01-05\n", ["--engine", "nuts"], "'nuts' is not one of 'svi', 'vb', 'gibbs'"),
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


def test_a_checkpoint_holds_any_state(tmp_path):
    """Arrays of any kind and keys come back to the bit; another run's file or a broken one is said, and not used."""
    said = []
    state = (jax.random.split(jax.random.key(3), 2), {"x": jnp.arange(3.0) / 3, "n": jnp.int32(7)}, jax.random.key(1))

    def part(mark="a", seconds=0.0):
        return Checkpoints(tmp_path, mark, seconds, said.append).part("svi_0", "steps")

    def resumed(mark="a"):
        step, found = part(mark).resume(jax.tree.map(lambda leaf: leaf, state))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(state), strict=True):
            assert one.dtype == other.dtype
            assert jnp.array_equal(one, other)
        return step

    assert (resumed(), said) == (0, [])
    part().write(30, state)
    assert resumed() == 30
    assert "going on after 30 steps" in said.pop()
    assert resumed("b") == 0
    assert "of another model, data, settings, seed or version; starting anew" in said.pop()
    with pytest.MonkeyPatch.context() as patch:

        def broken(file, **_):
            file.write(b"PK cut off")
            raise Killed

        patch.setattr(np, "savez", broken)
        with pytest.raises(Killed):
            part().write(60, state)
    assert resumed() == 30  # the file before is whole
    assert [path.name for path in tmp_path.iterdir()] == ["svi_0.npz"]
    (tmp_path / "svi_0.npz").write_bytes(b"PK cut off")
    assert resumed() == 0
    assert "can't be read as a checkpoint; starting anew" in said.pop()
    assert part().is_due()
    assert not part(seconds=60.0).is_due()
    assert part(seconds=60.0).is_due(last=True)


@pytest.mark.slow
def test_a_single_chain_is_numpyros():
    """The same key, sweeps and thinning as MCMC's; those of several chains are ``test_gibbs``'s."""
    model, t, y = problem()
    lengths = {"num_warmup": 4, "num_samples": 10, "thinning": 3}
    mcmc = MCMC(alps.ALPSGibbs(model), **lengths, progress_bar=False)
    mcmc.run(jax.random.key(0), t, y)
    theirs = alps.from_mcmc(mcmc)
    mine = alps.fit_gibbs(model, t, y, rng_key=jax.random.key(0), num_chains=1, **lengths, progress_bar=False)
    for name in ("b", "H", "x"):
        np.testing.assert_allclose(mine.samples[name], theirs.samples[name], atol=1e-8)
    np.testing.assert_allclose(mine.sample_stats["lp"], theirs.sample_stats["lp"], atol=1e-8)


def problem():
    t = np.arange(20.0)
    model = alps.ALPS({"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0)}, 2, noise_variance=0.1)
    return model, t, np.sin(t)[:, None] * [1.0, 2.0]


def test_a_fingerprint_tells_runs_apart():
    model, t, y = problem()
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
