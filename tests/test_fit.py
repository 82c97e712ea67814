"""``alps-ppl fit``: what it writes is what a model file of its own would write, and errors are one line."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from arviz_stats.base import array_stats
from tinygp import kernels

import alps_ppl as alps
from alps_ppl import runner
from alps_ppl.chains import run_chains
from alps_ppl.cli import load_model_file
from alps_ppl.compose import compose, gibbs_settings, noise_prior, svi_settings
from alps_ppl.grammar import parse

ROOT = Path(__file__).parents[1]
SHORT = [
    "--set", "SVI.num_steps=300", "--set", "GIBBS.num_warmup=50", "--set", "GIBBS.num_samples=50",
    "--set", "GIBBS.num_chains=2", "--no-progress",
]  # fmt: skip


@pytest.fixture
def csv(tmp_path):
    """Four days of two stations every two hours, with a 24 h cycle; rows shuffled, a text column, missing cells."""
    rng = np.random.default_rng(0)
    hours = np.arange(0, 96, 2)
    cycle = np.sin(2 * np.pi * hours / 24)
    table = pd.DataFrame(
        {
            "date": pd.Timestamp("2024-05-01") + pd.to_timedelta(hours, unit="h"),
            "north": 10 + 4 * cycle + rng.normal(size=48),
            "south": 20 - 3 * cycle + rng.normal(size=48),
            "weather": "fair",
        }
    )
    table.loc[5:9, "south"] = np.nan
    path = tmp_path / "stations.csv"
    table.sample(frac=1, random_state=0).to_csv(path, index=False)
    return path


LATENTS = ["--latent", "daily = linear_periodic(24h)", "--latent", "slow = 0.5 * matern12(2d)"]


@pytest.mark.slow
def test_fit_writes_what_its_model_file_writes(call, csv, tmp_path):
    out, again, saved = tmp_path / "out", tmp_path / "again", tmp_path / "models" / "stations.py"
    status, printed, error = call(
        "fit", csv, "--time", "date", *LATENTS, "--decoys", 1, "--forecast", "6h", "--hold-out", "10%",
        "--out", out, "--save-model-file", saved, *SHORT,
    )  # fmt: skip
    assert status == 0, error
    assert "Column 'weather' is left out: it holds no numbers." in printed
    assert "Process 'decoy 17 h', linear_periodic(17h): no harmonic" in printed
    assert (out / "model.py").read_text() == saved.read_text()
    assert {path.name for path in out.iterdir()} >= {
        "inclusion.csv", "predictions.csv", "scores.csv", "summary.json", "comparison.csv", "posterior_svi.nc",
        "posterior_gibbs.nc", "figures",
    }  # fmt: skip
    assert (out / "figures" / "reconstruction.png").stat().st_size > 0

    predictions = pd.read_csv(out / "predictions.csv")
    forecast = predictions[(predictions.split == "forecast") & (predictions.engine == "gibbs")]
    assert list(forecast.date.unique()) == ["2024-05-05 00:00:00", "2024-05-05 02:00:00", "2024-05-05 04:00:00"]
    assert forecast.observed.isna().all()
    assert np.isfinite(forecast[["mean", "sd", "lower", "upper"]]).all(axis=None)
    assert (predictions.split == "test").sum() == 2 * 2 * 4
    on = pd.read_csv(out / "inclusion.csv").set_index(["latent", "engine"]).probability
    assert on["daily", "gibbs"] > 0.9

    status, _, error = call("run", saved, "--engine", "gibbs", "--out", again, *SHORT)
    assert status == 0, error
    for name in ("inclusion.csv", "predictions.csv", "scores.csv"):
        both = pd.read_csv(out / name)
        gibbs = both[both.engine == "gibbs"].reset_index(drop=True)
        pd.testing.assert_frame_equal(pd.read_csv(again / name), gibbs, check_dtype=False)


def test_the_model_file_is_the_one_a_person_would_write(csv, tmp_path):
    source, _ = compose(csv, latents=["daily = linear_periodic(1d)", "slow=matern12(2d) + linear()"], noise="0.2")
    path = tmp_path / "model.py"
    path.write_text(source)
    module = load_model_file(path)
    data = module.data()
    model = module.model(data)
    assert data.outputs == ["north", "south"]
    assert model.latents == ("daily", "slow")
    t = data.inputs
    z = (t - t.mean()) / t.std()
    np.testing.assert_allclose(model.covariances[0](t, t), alps.linear_periodic(24.0)(t, t))
    np.testing.assert_allclose(model.covariances[1](t, t), kernels.Exp(scale=48.0)(t, t) + np.outer(z, z), atol=1e-9)
    assert (model.noise_variance == 0.2).all()
    assert (model.inclusion_prob == 0.5).all()
    assert "# linear_periodic(1d)" in source

    source, _ = compose(csv, latents=["a = rbf(1d)", "b = rbf(2d)", "c = rbf(3d)", "d = rbf(4d)"], expected_active=1)
    path.write_text(source)
    model = load_model_file(path).model(data)
    assert (model.inclusion_prob == 0.25).all()
    assert isinstance(model.noise_variance, dist.InverseGamma)


def test_parameters_to_learn_are_in_the_model_file(csv, tmp_path):
    latents = ["daily = linear_periodic(1d)", "slow = 2 * matern12(2d)"]
    source, _ = compose(csv, latents=latents, learn=["daily.scale = 20h..1.2d", "slow.kernel2.scale=1d..10d"])
    path = tmp_path / "model.py"
    path.write_text(source)
    module = load_model_file(path)
    bounds = module.model(module.data()).covariance_bounds
    assert bounds == {"daily": {"scale": (20.0, 28.8)}, "slow": {"kernel2.scale": (24.0, 240.0)}}


def test_no_file_is_overwritten(call, csv, tmp_path, monkeypatch):
    """Not the data, and not a model file that was changed since."""
    monkeypatch.setattr(runner, "run", lambda *_, **__: None)
    before = csv.read_bytes()
    status, _, error = call("fit", csv, *LATENTS, "--save-model-file", csv, "--out", tmp_path / "out")
    assert (status, csv.read_bytes()) == (2, before)
    assert "--save-model-file: expected the name of a Python file (.py)" in error
    assert not (tmp_path / "out").exists()
    mine = tmp_path / "mine.py"
    mine.write_text("# mine")
    call("fit", csv, *LATENTS, "--save-model-file", mine, "--out", tmp_path / "out")
    assert (tmp_path / "mine.before.py").read_text() == "# mine"
    assert "alps.read_table" in mine.read_text()
    mine.write_text("# mine again")
    call("fit", csv, *LATENTS, "--save-model-file", mine, "--out", tmp_path / "out")
    assert (tmp_path / "mine.before2.py").read_text() == "# mine again"
    assert (tmp_path / "mine.before.py").read_text() == "# mine"


def test_the_model_file_has_the_settings_that_run(call, csv, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(runner, "run", lambda module, **_: ran.append((module.SVI, module.GIBBS)))
    settings = ["--set", "SVI.num_steps=30", "--set", "SVI.num_restarts=2", "--set", "GIBBS.blocks=paper"]
    status, _, error = call("fit", csv, *LATENTS, "--out", tmp_path / "out", *settings)
    assert status == 0, error
    written = load_model_file(tmp_path / "out" / "model.py")
    assert ran == [(written.SVI, written.GIBBS)]
    assert (written.SVI["num_steps"], written.SVI["num_restarts"], written.GIBBS["blocks"]) == (30, 2, "paper")


def test_constant_columns_and_one_row(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("t,u,k\n" + "".join(f"{t},{t % 3},{4}\n" for t in range(12)))
    source, notes = compose(path, latents=["slow = rbf(4)"])
    assert "Column 'k' is left out: it is constant." in notes
    assert 'OUTPUTS = ["u"]' in source
    source, notes = compose(path, latents=["slow = rbf(4)"], outputs=["u", "k"])
    assert notes == ["Column 'k' has no two different values to fit: it says nothing on the processes."]
    assert 'OUTPUTS = ["u", "k"]' in source
    path.write_text("t,u\n1,2\n")
    with pytest.raises(ValueError, match="expected a table of at least two rows, got one"):
        compose(path, latents=["slow = rbf(4)"])


def test_settings_are_sized_to_the_rows():
    rough, smooth = parse("matern12(10)"), parse("linear_periodic(3)")

    def settings(num_rows, *covariances):
        data = alps.Data(np.arange(float(num_rows)), np.zeros((num_rows, 1)))
        return svi_settings(data, covariances), gibbs_settings(data)

    assert settings(100, rough, smooth)[0] == {"num_inducing": 30, "num_steps": 4_000}
    assert settings(100, smooth)[0]["num_inducing"] == 15
    assert settings(9, rough)[0]["num_inducing"] == 9
    assert settings(200, rough)[0]["num_inducing"] == 60
    assert settings(1_000, rough)[0] == {"num_inducing": 40, "num_steps": 4_000, "batch_size": 256}
    svi, gibbs = settings(3_000, rough)
    assert svi == {"num_inducing": 40, "num_steps": 3_000, "batch_size": 128}
    assert gibbs == {"num_warmup": 150, "num_samples": 150, "num_chains": 4}


def test_auto_says_what_it_chose(csv):
    source, notes = compose(csv, latents=["auto"])
    assert any(note.startswith("Process '24 h', linear_periodic(24h): its peak is") for note in notes)
    assert '"24 h": alps.linear_periodic(24.0)' in source
    source, notes = compose(csv, latents=["auto", "daily = linear_periodic(1d)"])
    assert "Process '24 h', linear_periodic(24h), is left out: 'daily' is the same." in notes
    assert source.count("alps.linear_periodic(24.0)") == 1


@pytest.mark.slow
def test_a_notebook_gets_the_same_from_three_calls(csv):
    table = pd.read_csv(csv, index_col="date")[["north", "south"]].sort_index()
    data = alps.Data(table.index, table)
    daily = alps.covariance("linear_periodic(24h)", unit=data.input_unit)
    n = len(data.train_y)
    noise = dist.InverseGamma(2 + n / 20, 0.1 * (1 + n / 20))
    model = alps.ALPS({"daily": daily}, data.outputs, noise_variance=noise)
    fit = alps.fit_svi(
        model, data.train_inputs, data.train_y, num_steps=300, rng_key=jax.random.key(0), progress_bar=False
    )
    assert fit.inclusion_prob.shape == (1,)
    read = alps.read_table(csv)
    pd.testing.assert_frame_equal(read, table.set_index(read.index), check_exact=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "latent: expected at least one"),
        (["--latent", "daily"], "expected NAME = COVARIANCE"),
        (
            ["--latent", "daily = rbf(4q) + foo"],
            "latent 'daily': covariance 'rbf(4q) + foo': at character 5: unknown unit 'q' of time; known are s, min",
        ),
        (["--latent", "a = rbf(1d)", "--latent", "a = rbf(2d)"], "names that differ, got a more than once"),
        ([*LATENTS, "--time", "when"], "the column of times, 'when', among its columns date, north, south, weather"),
        ([*LATENTS, "--outputs", "north,weather"], "numbers in column 'weather', got 'fair' in row 1"),
        ([*LATENTS, "--noise", "-1"], "noise: expected 'learnt', or a positive variance"),
        ([*LATENTS, "--expected-active", "7"], "from 0 to the number of processes, 2, got 7.0"),
        ([*LATENTS, "--learn", "daily.scale"], "learn 'daily.scale': expected NAME.PARAMETER = LOW..HIGH"),
        (
            [*LATENTS, "--learn", "daily.scale = 20h-28h"],
            "'..' is missing between the bounds; expected e.g. 20h..28h, got '20h-28h'",
        ),
        ([*LATENTS, "--learn", "day.scale = 20h..28h"], "with a name of daily, slow"),
        ([*LATENTS, "--learn", "daily.period = 20h..28h"], "expected one of the covariance's parameters ['scale']"),
        ([*LATENTS, "--learn", "daily.scale = 25h..28h"], "the covariance's own 24.0, where learning starts"),
        ([*LATENTS, "--decoys", "40"], "decoys: expected at most"),
        ([*LATENTS, "--forecast", "1h"], "forecast: expected from one step, 2 here, to 100,000 of them, got '1h'"),
        ([*LATENTS, "--forecast", "-2d"], "forecast: expected a positive duration, got '-2d'"),
        ([*LATENTS, "--hold-out", "-10%"], "hold_out: expected a positive duration, got '-10%'"),
        ([*LATENTS, "--hold-out", "9d"], "hold_out: expected some of the 48 rows, but not all"),
        ([*LATENTS, "--time-unit", "years"], "time-unit: the times are dates, read as hours"),
        (
            [*LATENTS, "--encoding", "klingon"],
            "encoding: expected the name of one, e.g. utf-8 or cp1252, got 'klingon'",
        ),
        ([*LATENTS, "--engine", "nuts"], "--engine: expected svi, gibbs or svi,gibbs"),
        ([*LATENTS, "--set", "SVI.steps=3"], "SVI: unknown setting(s) steps"),
        ([*LATENTS, "--set", "steps=3"], "--set: expected SVI.KEY=VALUE or GIBBS.KEY=VALUE, got 'steps=3'"),
        ([*LATENTS, "--set", "SVI.num_steps=abc"], "num_steps: expected a positive whole number, got 'abc'"),
        ([*LATENTS, "--set", "SVI.num_steps=-3"], "num_steps: expected a positive whole number, got -3"),
        ([*LATENTS, "--set", "SVI.batch_size=49"], "batch_size: expected at most the 48 times there are, got 49"),
        ([*LATENTS, "--set", "SVI.learning_rate=0"], "learning_rate: expected a positive number, got 0"),
        ([*LATENTS, "--set", "GIBBS.num_chains=0"], "GIBBS.num_chains: expected a positive whole number, got 0"),
        ([*LATENTS, "--set", "GIBBS.chain_method=fast"], "GIBBS.chain_method: expected one of vectorized, parallel"),
        ([*LATENTS, "--set", "GIBBS.blocks=fast"], "blocks: expected the name of a set"),
        ([*LATENTS, "--learn", "daily.scale=20h..28h", "--engine", "gibbs"], "--learn: only SVI learns parameters"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(call, csv, tmp_path, arguments, message):
    status, _, error = call("fit", csv, "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()
    assert status == 2
    assert error.count("\n") == 1
    assert error.startswith("alps-ppl: ")
    assert message in error


def test_no_such_file(call, tmp_path):
    status, _, error = call("fit", tmp_path / "none.csv", "--out", tmp_path / "out", "--latent", "auto")
    assert (status, error.count("\n")) == (2, 1)
    assert "FILE: expected a CSV or Parquet file, got" in error
    assert "none.csv': No such file or directory" in error


def test_out_is_a_file(call, csv):
    status, _, error = call("fit", csv, "--out", csv, *LATENTS)
    assert (status, error) == (2, f"alps-ppl: --out: expected a folder, got {str(csv)!r}: File exists\n")


def test_plain_numbers_refuse_durations(call, tmp_path):
    path = tmp_path / "numbers.csv"
    path.write_text("t,u\n" + "".join(f"{t},{t % 3}\n" for t in range(30)))
    status, _, error = call("fit", path, "--out", tmp_path / "out", "--latent", "slow = rbf(4d)")
    assert status == 2
    assert "'4d' is a duration, but the inputs are plain numbers; give a number in their own unit" in error


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["the command's", "one that counts for nothing"])
def test_chains_agree_under_a_noise_prior_that_counts(prior):
    """Ten currencies, 24 chains: the log joint's R-hat is below 1.1 only where the noise can't fall to nothing."""
    table = alps.read_table(ROOT / "models" / "data" / "fed_fx_monthly_1994_2010.csv", time="date")
    data = alps.split_table(table, hold_out="10%")
    latents = {"slow": kernels.Exp(scale=jnp.asarray(3_650.0)), "rough": kernels.Exp(scale=jnp.asarray(365.0))}
    prior = eval(noise_prior(data), {"dist": dist}) if prior == "the command's" else dist.InverseGamma(2.0, 0.1)
    model = alps.ALPS(latents, data.outputs, noise_variance=prior)
    kernel = alps.ALPSGibbs(model, keep_latents=False)
    lengths = {"num_warmup": 300, "num_samples": 100, "num_chains": 24, "progress_bar": False}
    fit = run_chains(kernel, jax.random.key(0), data.train_inputs, data.train_y, **lengths)
    r_hat = array_stats.rhat(np.asarray(fit.get_extra_fields(True)["potential_energy"]), chain_axis=0, draw_axis=1)
    assert (r_hat < 1.1) == (prior.concentration > 2)
