"""The command line: its files, its overrides, and one plain line with status 2 for bad input."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from runs import FINISHED, MODEL_FILE

import alps_ppl as alps
from alps_ppl.app import outputs, printed, run, scores
from alps_ppl.app.cli import main
from alps_ppl.app.problem import Fitted, Outcome, Problem


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "seven.py"
    path.write_text(MODEL_FILE)
    return path


def test_run_writes_the_contract(finished_run):
    out, printed = finished_run
    assert re.search(r"prior +svi +gibbs +mcse +r_hat +ess\n", printed)
    assert "The most probable combinations (Gibbs): week (" in printed
    assert not any((out / name).exists() for name in ("report.html", "pruned", "checkpoints"))
    inclusion = pd.read_csv(out / "inclusion.csv")
    assert list(inclusion.columns) == ["latent", "engine", "probability", "mcse", "prior"]
    on = inclusion.set_index(["latent", "engine"]).sort_index().probability
    assert set(on.index) == {(latent, engine) for latent in ("week", "5 d") for engine in ("svi", "gibbs")}
    assert on["week"].min() > 0.9
    assert on["5 d"].max() < 0.2
    predictions = pd.read_csv(out / "predictions.csv")
    assert list(predictions.columns) == [
        "split", "date", "input", "output", "engine", "observed", "mean", "sd", "lower", "upper",
    ]  # fmt: skip
    assert len(predictions) == 36 * 2 * 2
    assert set(predictions.split) == {"train", "test", "gap"}
    assert predictions["mean"].between(0, 100).all()
    assert list(predictions.date[:3]) == ["2026-01-05", "2026-01-05", "2026-01-06"]
    assert list(predictions.input[:3]) == [0, 0, 1]
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["seed"], summary["settings"]["gibbs"]["num_samples"]) == (3, 251)
    assert {"seconds", "learnt", "elbo", "rmse", "nlpd"} == set(summary["svi"])
    of_gibbs = {"seconds", "max_rhat", "min_ess", "lp_rhat", "rmse", "nlpd", "suspicious_innovations"}
    assert of_gibbs == set(summary["gibbs"])
    assert {"numpyro", "jax", "python"} <= set(summary["versions"])
    assert set(summary["largest_differences"]) >= {"inclusion probability", "predictive mean", "predictive sd"}
    assert list(pd.read_csv(out / "comparison.csv").columns[:4]) == ["quantity", "of", "svi", "gibbs"]
    shares = pd.read_csv(out / "variance_shares.csv", keep_default_na=False)
    assert list(shares.columns) == ["engine", "output", "part", "latent", "share", "lower", "upper"]
    assert shares[shares.latent == "week"].share.between(0.7, 1.1).all()
    for engine in ("svi", "gibbs"):
        with xr.open_datatree(out / f"posterior_{engine}.nc", engine="h5netcdf") as tree:
            assert tree.attrs["engine"] == engine
            assert list(tree["posterior"]["output"].values) == ["u", "v"]
            assert tree["posterior"].sizes["draw"] == {"svi": 1000, "gibbs": 125}[engine]
    for name in ("reconstruction", "inclusion", "mixing", "training", "latents", "engines"):
        assert matplotlib.image.imread(out / "figures" / f"{name}.png").shape[0] > 200


def test_the_scores_are_those_of_the_predictions(finished_run):
    """Again, by hand, from predictions.csv: errors over training sds, on the test cells."""
    out, _ = finished_run
    predictions, summary = pd.read_csv(out / "predictions.csv"), json.loads((out / "summary.json").read_text())
    test = predictions[(predictions.split == "test") & (predictions.engine == "gibbs")]
    train = predictions[(predictions.split == "train") & (predictions.engine == "gibbs")]
    sd = train.groupby("output")["observed"].std(ddof=0)
    errors = (test["observed"] - test["mean"]) / test.output.map(sd)
    assert summary["gibbs"]["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)
    assert summary["scores"]["test"]["gibbs"]["rmse"] == summary["gibbs"]["rmse"]
    assert list(summary["scores"]) == ["train", "gap", "test"]
    # A normal of the same mean and sd has nearly the mixture's density.
    normal = 0.5 * np.log(2 * np.pi * test.sd**2) + 0.5 * ((test["observed"] - test["mean"]) / test.sd) ** 2
    assert summary["gibbs"]["nlpd"] == pytest.approx((normal - np.log(test.output.map(sd))).mean(), abs=0.1)
    scores = pd.read_csv(out / "scores.csv").set_index(["engine", "split", "output"]).sort_index()
    assert scores.unit["gibbs", "test"].to_dict() == {"u": "°F $\\frac$", "v": "as in the file"}
    u = test[test.output == "u"]
    by_hand = np.sqrt(((u["observed"] - u["mean"]) ** 2).mean())
    assert scores.rmse["gibbs", "test", "u"] == pytest.approx(by_hand, rel=1e-6)
    assert scores.rmse["gibbs", "test"].max() < scores.rmse["mean", "test"].min()


def test_learnt_covariances_are_said(finished_run):
    out, printed = finished_run
    learnt = json.loads((out / "summary.json").read_text())["svi"]["learnt"]["week.scale"]
    assert abs(learnt - 7) < 0.15
    assert f"Learnt: week.scale {learnt:.4g}" in printed


@pytest.mark.slow
def test_prune(call, model_file, tmp_path):
    """The smaller model, of the learnt covariances, is fitted to the same cells, and what it loses is written."""
    out = tmp_path / "out"
    status, printed, error = call("run", model_file, "--out", out, "--prune", 0.5, *FINISHED)
    assert status == 0, error
    assert printed.count("Learnt: week.scale") == 1
    assert "Without 5 d, fitted again:" in printed
    assert set(pd.read_csv(out / "pruned" / "inclusion.csv").latent) == {"week"}
    lost = pd.read_csv(out / "pruned" / "lost.csv").set_index(["engine", "split"])
    scores = [json.loads((f / "summary.json").read_text())["scores"]["test"] for f in (out, out / "pruned")]
    for engine in ("svi", "gibbs"):
        difference = scores[1][engine]["nlpd"] - scores[0][engine]["nlpd"]
        assert lost.lost[engine, "test"] == pytest.approx(difference, abs=1e-9)
    assert "nats of log predictive density lost per cell" in printed


def test_nothing_to_prune(capsys, monkeypatch):
    outcome = made_up(["gibbs"], 2)
    monkeypatch.setattr(run, "prune", lambda fit, threshold: outcome.problem.model)
    assert run._smaller(outcome, 0.0) is None
    assert "Nothing to prune" in capsys.readouterr().out


def made_up(engines, num_chains):
    """An outcome that nobody sampled: 12 times, 1 output, no test split, an output that is only predicted."""
    import alps_ppl as alps

    t, rng, latents = np.arange(12.0), np.random.default_rng(0), ["a", "b"]
    y = np.where(t < 9, t, np.nan)
    data = alps.Data(t, y, outputs=["u"], held_out={"gap": (t > 2) & (t < 5), "forecast": t > 8})
    model = alps.ALPS({"a": alps.linear_periodic(3.0), "b": alps.linear_periodic(5.0)}, ["u"], noise_variance=0.1)
    coords = {"latent": latents, "output": ["u"]}
    fitted = {}
    for engine in engines:
        b = np.ones((num_chains, 8, 2))
        b[..., 1] = rng.integers(0, 2, b.shape[:2])
        constant = {"prior_inclusion_prob": ("latent", [0.5, 0.5]), "covariance_group": ("latent", [0, 1])}
        constant |= {"prior_of_group": ("latent", [0.5, 0.5]), "gate": ("latent", [0, 1])}
        dims = ("chain", "draw", "latent")
        stats = {"gate_prob": (dims, b), "lp": (dims[:2], rng.normal(size=b.shape[:2]))}
        draws = xr.Dataset({"b": (dims, b)}, coords)
        groups = {"posterior": draws, "sample_stats": xr.Dataset(stats), "constant_data": xr.Dataset(constant)}
        moments = {name: (("time", "output"), np.zeros((12, 1))) for name in ("mean", "sd", "lower", "upper")}
        prediction = xr.Dataset(moments, {"output": ["u"]}, {"interval": 0.9})
        tree = xr.DataTree.from_dict(groups)
        fitted[engine] = Fitted(SimpleNamespace(elbo=-3.0), tree, 1.25, prediction, np.zeros((12, 1)))
    return Outcome(Problem("made_up.py", data, model, {}, {"num_samples": 8}), 7, fitted, {})


def show(outcome, out):
    summary = outputs._summary(outcome, scores.of_fits(outcome), {})
    printed.findings(outcome, summary, out)
    return outputs._plain(summary)


def test_one_chain_and_no_test_split(capsys):
    """Engines the other way round: dashes, notes and nulls; and the command to copy is quoted for a shell."""
    summary = show(made_up(["gibbs", "svi"], 1), Path("my results; touch x"))
    shown = capsys.readouterr().out
    assert re.search(r"prior +gibbs +svi +mcse +r_hat +ess\n", shown)
    assert re.search(r"\na .* -\n", shown)
    assert "-: a gate that has the same value in every draw has no ess" in shown
    assert "One chain can't tell whether it has converged" in shown
    assert [summary["gibbs"][name] for name in ("max_rhat", "lp_rhat", "rmse", "nlpd")] == [None] * 4
    assert summary["scores"]["forecast"]["svi"]["rmse"] is None
    assert list(summary["scores"]) == ["train", "gap", "forecast"]
    assert shown.endswith("as a page: alps-ppl report 'my results; touch x'\n")


def test_chains_that_disagree(capsys):
    outcome = made_up(["gibbs"], 2)
    outcome.trees["gibbs"]["posterior"]["b"][0, :, 1] = 0
    outcome.trees["gibbs"]["sample_stats"]["gate_prob"][0, :, 1] = 0
    outcome.trees["gibbs"]["sample_stats"]["lp"][0] += 100
    show(outcome, Path("out"))
    shown = capsys.readouterr().out
    assert "The chains disagree about" in shown
    assert "the largest R-hat of a gate is" in shown
    assert "The chains sit in different modes: the R-hat of the log joint is" in shown


@pytest.mark.slow
def test_the_model_file_of_the_docs_runs(call, tmp_path):
    """The template, as it stands, on a file of 48 hours."""
    root = Path(__file__).parents[1]
    texts = [path.read_text() for path in (root / "README.md", *sorted((root / "docs").glob("*.md")))]
    templates = [code for text in texts for code in re.findall(r"```python\n(import.*?)```", text, re.DOTALL)]
    template = next(code for code in templates if "def data()" in code)
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


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            ["--engine", "nuts"],
            "--engine: expected one or more of svi, vb and gibbs with commas, e.g. svi,gibbs, got 'nuts'",
        ),
        (["--set", "GIBBS.num_sample=5"], "GIBBS: unknown setting(s) num_sample; known are"),
        (["--set", "GIBBS.chain_method=parallel"], "GIBBS: unknown setting(s) chain_method; known are"),
        (["--set", "num_samples=5"], "--set: expected SVI.KEY=VALUE"),
        (["--set", "SVI[3]=1"], "--set: expected SVI.KEY=VALUE"),
        (["--set", "SVI.num_steps=many"], "num_steps: expected a positive whole number, got 'many'"),
        (["--set", "GIBBS.moves=fast"], "moves: expected"),
        (["--set", "GIBBS.num_warmup=abc"], "num_warmup: expected a whole number"),
        (["--set", "GIBBS.thinning=400"], "thinning: expected at most num_samples, 300"),
        (["--engine", "gibbs"], "--engine svi,gibbs"),  # only SVI learns the period
        (["--seed", "one"], "'one' is not a valid integer"),
        (["--nonsense"], "No such option"),
        (["--out", __file__], "can't make the folder"),
    ],
)
def test_bad_options(call, model_file, tmp_path, extra, message):
    """Found before anything is written or cleared."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "inclusion.csv").write_text("of an earlier run")
    status, _, error = call("run", model_file, "--out", tmp_path / "out", "--no-progress", *extra)
    assert (status, len(error.strip().splitlines())) == (2, 1)
    assert message in error
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["inclusion.csv"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("def model(data)", "def modle(data)"), "expected it to define model, a function"),
        (("SVI = {", "SVI = [3] or {"), "expected it to define SVI, a dict"),
        (("import numpy as np", "import numpyy"), "can't be loaded: ModuleNotFoundError: No module named 'numpyy'"),
        (("import numpy as np", "raise SystemExit"), "can't be loaded: SystemExit"),
        (("def data():", "def data()"), "can't be loaded: SyntaxError"),
        (("    days =", "    raise SystemExit(1)\n    days ="), "seven.py, line 8, in data(): SystemExit: 1"),
        (("    days =", "    days = {}['x']\n    days ="), "seven.py, line 8, in data(): KeyError: 'x'"),
        (("    days =", "    return 3\n    days ="), "data(): expected it to return an alps.Data, got int"),
        (("def model(data)", "def model()"), "expected the function model(data), got model()"),
        (("def data()", "def data(path)"), "expected the function data(), got data(path)"),
        (('{"mean": (mean,', '{"mean": (3, "x",'), "baselines(): 'mean': expected (mean, sd), (36, 2) each"),
        (("y[4, 0] = np.nan", "y[4, 0] = np.inf"), "got inf in row 4, output 'u'"),
        (("y[4, 0] = np.nan", "y[:] = np.nan"), "nothing to fit"),
        (("noise_variance=noise", "noise_variance=-1.0"), "noise_variance: expected positive"),
        (("data.outputs, noise", '["v", "u"], noise'), "aren't the data's"),
    ],
)  # fmt: skip
def test_bad_model_files(call, model_file, tmp_path, change, message):
    text = MODEL_FILE.replace(*change)
    assert text != MODEL_FILE
    model_file.write_text(text)
    status, _, error = call("run", model_file, "--out", tmp_path / "out", "--no-progress")
    assert (status, len(error.strip().splitlines())) == (2, 1)
    assert message in error


def test_missing_file_and_missing_out(call, tmp_path, model_file):
    for arguments, message in (
        (["run", tmp_path / "none.py", "--out", tmp_path / "out"], "expected a Python file"),
        (["run", model_file], "--out"),
    ):
        status, _, error = call(*arguments)
        assert (status, error.count("\n")) == (2, 1)
        assert message in error


def test_names_of_bytes_that_arent_text_are_printed(tmp_path):
    """An error about such a file is one line, too; by ``python -m alps_ppl``, which is the command."""
    arguments = [b"run", os.fsencode(tmp_path) + b"/caf\xe9.py", b"--out", b"out"]
    done = subprocess.run([sys.executable, "-m", "alps_ppl", *arguments], capture_output=True)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
    assert b"MODEL_FILE: expected a Python file" in done.stderr


def test_a_broken_pipe_is_quiet(tmp_path):
    """``alps-ppl predict ... | head`` has nothing on stderr."""
    (tmp_path / "posterior_gibbs.nc").touch()
    (tmp_path / "times.csv").write_text("t,u\n1,2\n")
    code = (
        "import pandas; from alps_ppl.app import at_times, cli; from alps_ppl.results import files; "
        "files.precision = lambda path: 64; "
        "at_times.predict_table = lambda *_, **__: pandas.DataFrame({'t': range(10**5)}); cli.main()"
    )
    command = [sys.executable, "-c", code, "predict", tmp_path, "--at", tmp_path / "times.csv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_the_library_leaves_precision_alone_and_stays_light():
    """Importing the package or the command neither switches 64-bit on nor loads plotting, pandas or ArviZ."""
    code = (
        "import alps_ppl.app.cli, jax, sys; assert not jax.config.jax_enable_x64; "
        "heavy = ('matplotlib', 'pandas', 'xarray', 'arviz_base', 'arviz_stats', 'sklearn', 'alps_ppl.app.run');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_alone_prints_its_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["alps-ppl"])
    main()
    said = capsys.readouterr()
    assert said.out.startswith("Usage: alps-ppl [OPTIONS] COMMAND [ARGS]...\n")
    assert re.search(r"\n  fit +Fit a CSV", said.out)
    assert not said.err


def test_the_version_is_the_packages():
    assert alps.__version__ == version("alps-ppl")
