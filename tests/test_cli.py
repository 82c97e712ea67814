"""The command line: its files, its overrides, and one plain line with status 2 for bad input."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from alps_ppl import runner
from alps_ppl.data import Data

MODEL_FILE = """
import numpy as np
import numpyro.distributions as dist
import alps_ppl as alps

def data():
    t = np.arange(36.0)
    rng = np.random.default_rng(0)
    y = 50 + 10 * (np.sin(2 * np.pi * t / 7)[:, None] * [1.0, -2.0] + 0.3 * rng.normal(size=(36, 2)))
    y[4, 0] = np.nan
    gap = np.zeros(y.shape, bool)
    gap[10:12, 1] = True
    return alps.Data(t, y, outputs=["u", "v"], held_out={"test": t >= 30, "gap": gap}, input_label="t [h]",
                     units={"u": "°F"})

def model(data):
    covariances = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0)}
    return alps.ALPS(covariances, data.outputs, noise_variance=dist.InverseGamma(2.0, 0.2))

SVI = {"num_inducing": 6, "num_steps": 1500}
GIBBS = {"num_warmup": 200, "num_samples": 300, "num_chains": 2}

def baselines(data):
    mean = np.broadcast_to(data.loc, data.y.shape)
    return {"mean": (mean, np.broadcast_to(data.scale, data.y.shape))}
"""


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "seven.py"
    path.write_text(MODEL_FILE)
    return path


def test_run_writes_the_contract(call, model_file, tmp_path):
    out = tmp_path / "results"
    (out / "pruned").mkdir(parents=True)
    (out / "report.html").write_text("of an earlier run")
    status, printed, _ = call(
        "run", model_file, "--engine", "svi,gibbs", "--seed", 3, "--out", out, "--set", "GIBBS.num_samples=250",
        "--no-progress",
    )  # fmt: skip
    assert status == 0, printed
    assert not (out / "pruned").exists()
    assert not (out / "report.html").exists()
    assert re.search(r"prior +svi +gibbs +mcse +r_hat +ess\n", printed)
    assert "training sds" in printed
    assert "The most probable combinations (Gibbs): T=7 (" in printed
    inclusion = pd.read_csv(out / "inclusion.csv")
    assert list(inclusion.columns) == ["latent", "engine", "probability", "mcse", "prior"]
    assert set(zip(inclusion.latent, inclusion.engine, strict=True)) == {
        (latent, engine) for latent in ("T=7", "T=5") for engine in ("svi", "gibbs")
    }
    on = inclusion.set_index(["latent", "engine"]).sort_index().probability
    assert on["T=7"].min() > 0.9
    assert on["T=5"].max() < 0.2

    predictions = pd.read_csv(out / "predictions.csv")
    assert list(predictions.columns) == [
        "split", "input", "output", "engine", "observed", "mean", "sd", "lower", "upper",
    ]  # fmt: skip
    assert len(predictions) == 36 * 2 * 2
    assert set(predictions.split) == {"train", "test", "gap"}
    assert predictions["mean"].between(0, 100).all()

    summary = json.loads((out / "summary.json").read_text())
    assert summary["seed"] == 3
    assert summary["settings"]["gibbs"]["num_samples"] == 250
    assert {"seconds", "elbo", "rmse", "nlpd"} == set(summary["svi"])
    assert {"seconds", "max_rhat", "min_ess", "lp_rhat", "rmse", "nlpd"} == set(summary["gibbs"])
    assert {"numpyro", "jax", "python"} <= set(summary["versions"])
    # The scores again, by hand, from predictions.csv: errors over training sds, on the test cells.
    test = predictions[(predictions.split == "test") & (predictions.engine == "gibbs")]
    train = predictions[(predictions.split == "train") & (predictions.engine == "gibbs")]
    sd = train.groupby("output")["observed"].std(ddof=0)
    errors = (test["observed"] - test["mean"]) / test.output.map(sd)
    assert summary["gibbs"]["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)
    assert summary["scores"]["test"]["gibbs"]["rmse"] == summary["gibbs"]["rmse"]
    assert list(summary["scores"]) == ["train", "gap", "test"]
    scores = pd.read_csv(out / "scores.csv").set_index(["engine", "split", "output"]).sort_index()
    assert scores.unit["gibbs", "test"].to_dict() == {"u": "°F", "v": "as in the file"}
    u = test[test.output == "u"]
    assert scores.rmse["gibbs", "test", "u"] == pytest.approx(
        np.sqrt(((u["observed"] - u["mean"]) ** 2).mean()), rel=1e-6
    )
    assert scores.rmse["gibbs", "test"].max() < scores.rmse["mean", "test"].min()
    # A normal of the same mean and sd has nearly the mixture's density.
    normal = 0.5 * np.log(2 * np.pi * test.sd**2) + 0.5 * ((test["observed"] - test["mean"]) / test.sd) ** 2
    in_sds = (normal - np.log(test.output.map(sd))).mean()
    assert summary["gibbs"]["nlpd"] == pytest.approx(in_sds, abs=0.1)

    for engine in ("svi", "gibbs"):
        with xr.open_datatree(out / f"posterior_{engine}.nc", engine="h5netcdf") as tree:
            assert tree.attrs["engine"] == engine
            assert list(tree["posterior"]["output"].values) == ["u", "v"]
    with xr.open_datatree(out / "posterior_gibbs.nc", engine="h5netcdf") as tree:
        assert tree["posterior"].sizes["draw"] == 250
    assert set(summary["largest_differences"]) >= {"inclusion probability", "predictive mean", "predictive sd"}
    assert list(pd.read_csv(out / "comparison.csv").columns[:4]) == ["quantity", "of", "svi", "gibbs"]
    for name in ("reconstruction", "inclusion", "mixing", "training", "latents", "engines"):
        assert matplotlib.image.imread(out / "figures" / f"{name}.png").shape[0] > 200


def test_the_same_seed_gives_the_same_answer(call, model_file, tmp_path):
    frames = []
    for name in ("a", "b"):
        status, _, _ = call(
            "run", model_file, "--engine", "gibbs", "--out", tmp_path / name, "--no-progress",
            "--set", "GIBBS.num_samples=50", "--set", "GIBBS.num_warmup=10",
        )  # fmt: skip
        assert status == 0
        frames.append(pd.read_csv(tmp_path / name / "predictions.csv"))
    pd.testing.assert_frame_equal(*frames)


@pytest.mark.slow
def test_a_short_report(call, model_file, tmp_path):
    """One chain, no test split, engines the other way round: dashes, notes and nulls."""
    model_file.write_text(MODEL_FILE.replace('"test": t >= 30', '"future": t > 99').replace("1500", "20"))
    status, printed, _ = call(
        "run", model_file, "--engine", "gibbs,svi", "--out", tmp_path, "--no-progress",
        "--set", "GIBBS.num_chains=1", "--set", "GIBBS.num_samples=20", "--set", "GIBBS.num_warmup=100",
    )  # fmt: skip
    assert status == 0
    assert re.search(r"prior +gibbs +svi +mcse +r_hat +ess\n", printed)
    assert re.search(r"T=7 .* -\n", printed)
    assert "-: a gate that has the same value in every draw has no ess" in printed
    assert "One chain can't tell whether it has converged" in printed
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [summary["gibbs"][name] for name in ("max_rhat", "lp_rhat", "rmse", "nlpd")] == [None] * 4
    assert set(summary["scores"]) == {"train", "gap"}


def test_dates_stay_in_the_predictions():
    stamps = pd.date_range("2013-07-01", periods=3, freq="h")
    data = Data(stamps, np.arange(6.0).reshape(3, 2), outputs=["u", "v"])
    values = {name: (("time", "output"), np.zeros((3, 2))) for name in ("mean", "sd", "lower", "upper")}
    frame = runner._prediction_frame(data, "svi", xr.Dataset(values, coords={"output": ["u", "v"]}))
    assert list(frame.columns[:3]) == ["split", "date", "input"]
    assert list(frame.date) == list(np.repeat(stamps, 2))
    assert list(frame.input) == [0, 0, 1, 1, 2, 2]


@pytest.mark.slow
def test_the_readmes_model_file_runs(call, tmp_path):
    """The template, as it stands, on a file of 48 hours."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    template = re.search(r"```python\n(import.*?)```", readme, re.DOTALL)[1]
    (tmp_path / "my_series.py").write_text(template)
    hours = pd.date_range("2026-01-01", periods=48, freq="h", name="date")
    wave = np.sin(2 * np.pi * np.arange(48) / 24) + 0.1 * np.random.default_rng(0).normal(size=48)
    pd.DataFrame({"u": 20 + wave, "v": 5 - 3 * wave}, index=hours).to_csv(tmp_path / "my_series.csv")
    small = ["SVI.num_steps=20", "GIBBS.num_warmup=20", "GIBBS.num_samples=20"]
    status, _, error = call(
        "run", tmp_path / "my_series.py", "--out", tmp_path / "out", "--no-progress",
        *(word for setting in small for word in ("--set", setting)),
    )  # fmt: skip
    assert status == 0, error
    inclusion = pd.read_csv(tmp_path / "out" / "inclusion.csv").set_index(["latent", "engine"]).probability
    assert inclusion["daily", "gibbs"] > 0.9


def test_interrupt(model_file, tmp_path):
    """Ctrl-C during the second fit: one line that says what the first one left, and status 130."""
    # A shell's background job ignores the signal, and what it starts inherits that.
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import alps_ppl.cli as c; c.main()"
    )
    command = [sys.executable, "-c", start, "run", model_file, "--out", tmp_path / "out", "--no-progress"]
    settings = ["--set", "SVI.num_steps=20", "--set", "GIBBS.num_samples=100_000"]
    process = subprocess.Popen(
        [*command, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if line.startswith("Gibbs:"):
            break
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert error == (
        f"alps-ppl: interrupted; written to {tmp_path / 'out'} so far: posterior_svi.nc; "
        "the same command goes on from its checkpoints\n"
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--engine", "nuts"], "--engine: expected svi, gibbs or svi,gibbs, got 'nuts'"),
        (["--set", "GIBBS.num_sample=5"], "GIBBS: unknown setting(s) num_sample; known are"),
        (["--set", "num_samples=5"], "--set: expected SVI.KEY=VALUE or GIBBS.KEY=VALUE, got 'num_samples=5'"),
        (["--set", "SVI[3]=1"], "--set: expected SVI.KEY=VALUE or GIBBS.KEY=VALUE, got 'SVI[3]=1'"),
        (["--set", "SVI.num_steps=many"], "num_steps: expected a positive whole number, got 'many'"),
        (["--set", "GIBBS.blocks=fast", "--engine", "gibbs"], "blocks: expected the name of a set"),
        (["--seed", "one"], "'one' is not a valid integer"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_options(call, model_file, tmp_path, extra, message):
    status, _, error = call("run", model_file, "--out", tmp_path / "out", "--no-progress", *extra)
    assert status == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("def model(data)", "def modle(data)"), "expected it to define model, a function"),
        (("import numpy as np", "import numpyy"), "can't be loaded: ModuleNotFoundError: No module named 'numpyy'"),
        (("import numpy as np", "raise SystemExit"), "can't be loaded: SystemExit"),
        (("    t = np.arange(36.0)", "    raise SystemExit(1)"), "seven.py, line 7, in data(): SystemExit: 1"),
        (("def model(data)", "def model()"), "seven.py: expected the function model(data), got model()"),
        (("def data()", "def data(path)"), "seven.py: expected the function data(), got data(path)"),
        (('{"mean": (mean,', '{"mean": (3, "x",'), "baselines(): 'mean': expected (mean, sd), (36, 2) each"),
        (("def data():", "def data()"), "can't be loaded: SyntaxError"),
        (("y[4, 0] = np.nan", "y[4, 0] = np.inf"), "got inf in row 4, output 'u'"),
        (("y[4, 0] = np.nan", "y[:] = np.nan"), "nothing to fit"),
        (("noise_variance=dist.InverseGamma(2.0, 0.2)", "noise_variance=-1.0"), "expected positive, finite variances"),
        (("return alps.Data(t", "return (t"), "can't be loaded"),
        (("    t = np.arange(36.0)", "    t = {}['x']"), "seven.py, line 7, in data(): KeyError: 'x'"),
        (("    t = np.arange(36.0)", "    return 3"), "data(): expected it to return an alps.Data, got int"),
        (('data.outputs, noise', '["v", "u"], noise'), "aren't the data's"),
    ],
)  # fmt: skip
def test_bad_model_files(call, model_file, tmp_path, change, message):
    text = MODEL_FILE.replace(*change)
    assert text != MODEL_FILE
    model_file.write_text(text)
    status, _, error = call("run", model_file, "--out", tmp_path / "out", "--no-progress")
    assert status == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1


def test_missing_file_and_missing_out(call, tmp_path, model_file):
    status, _, error = call("run", tmp_path / "none.py", "--out", tmp_path / "out")
    assert (status, error.count("\n")) == (2, 1)
    assert "expected a Python file" in error
    status, _, error = call("run", model_file)
    assert status == 2
    assert "--out" in error
    (tmp_path / "file").write_text("")
    status, _, error = call("run", model_file, "--out", tmp_path / "file")
    assert status == 2
    assert "can't make the folder" in error


def test_a_broken_pipe_is_quiet(tmp_path):
    """``alps-ppl predict ... | head`` has nothing on stderr."""
    (tmp_path / "posterior_gibbs.nc").touch()
    (tmp_path / "times.csv").write_text("t,u\n1,2\n")
    code = (
        "import pandas; from alps_ppl import cli, runner, storage; storage.precision = lambda path: 64; "
        "runner.predict_table = lambda *_, **__: pandas.DataFrame({'t': range(10**5)}); cli.main()"
    )
    command = [sys.executable, "-c", code, "predict", tmp_path, "--at", tmp_path / "times.csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_the_library_leaves_precision_alone_and_stays_light():
    """Importing the package neither switches 64-bit on nor loads plotting, pandas or ArviZ."""
    code = (
        "import alps_ppl, jax, sys; assert not jax.config.jax_enable_x64; "
        "heavy = ('matplotlib', 'pandas', 'xarray', 'arviz_base', 'arviz_stats', 'sklearn');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_prune_and_learnt_covariances(call, tmp_path):
    """Gibbs takes over the period that SVI learns; the smaller model is fitted to the same cells, its loss written."""
    learning = MODEL_FILE.replace(
        "noise_variance=dist", "covariance_bounds={'T=7': {'scale': (6.0, 8.0)}}, noise_variance=dist"
    ).replace("linear_periodic(7.0)", "linear_periodic(6.8)")
    path, out = tmp_path / "learning.py", tmp_path / "out"
    path.write_text(learning)
    status, printed, _ = call("run", path, "--out", out, "--prune", 0.5, "--no-progress", "--engine", "gibbs,svi")
    assert status == 0, printed
    summary = json.loads((out / "summary.json").read_text())
    learnt = summary["svi"]["learnt"]["T=7.scale"]
    assert abs(learnt - 7) < 0.15
    assert f"Learnt: T=7.scale {learnt:.4g}" in printed
    assert "Without T=5, fitted again:" in printed
    smaller = pd.read_csv(out / "pruned" / "inclusion.csv")
    assert set(smaller.latent) == {"T=7"}
    lost = pd.read_csv(out / "pruned" / "lost.csv").set_index(["engine", "split"])
    scores = {
        folder: json.loads((folder / "summary.json").read_text())["scores"]["test"] for folder in (out, out / "pruned")
    }
    for engine in ("svi", "gibbs"):
        difference = scores[out / "pruned"][engine]["nlpd"] - scores[out][engine]["nlpd"]
        assert lost.lost[engine, "test"] == pytest.approx(difference, abs=1e-9)
    assert "nats of log predictive density lost per cell" in printed


def test_learnt_covariances_need_svi(call, tmp_path):
    path = tmp_path / "learning.py"
    path.write_text(
        MODEL_FILE.replace("noise_variance=dist", "covariance_bounds={'T=7': {'scale': (6, 8)}}, noise_variance=dist")
    )
    status, _, error = call("run", path, "--out", tmp_path / "out", "--engine", "gibbs", "--no-progress")
    assert status == 2
    assert "--engine svi,gibbs" in error


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("GIBBS.num_samples=0", "GIBBS.num_samples: expected a positive whole number, got 0"),
        ("GIBBS.num_chains=-1", "GIBBS.num_chains: expected a positive whole number, got -1"),
        ("GIBBS.num_warmup=abc", "GIBBS.num_warmup: expected a positive whole number, got 'abc'"),
        ("GIBBS.thinning=400", "GIBBS.thinning: expected at most num_samples, 300, got 400"),
    ],
)
def test_run_lengths_are_checked_before_any_fit(call, model_file, tmp_path, setting, message):
    status, _, error = call("run", model_file, "--out", tmp_path / "out", "--set", setting, "--no-progress")
    assert status == 2
    assert message in error
    assert not list((tmp_path / "out").glob("*.nc"))
