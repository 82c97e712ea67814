"""Rolling origins: windows by hand, no look ahead, one compilation, calibrated where the model is right, resumable."""

import json
import sys
from types import ModuleType

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.stats import norm
from test_compilation import COMPILED

import alps_ppl as alps
from alps_ppl.app import backtest as module
from alps_ppl.app import baselines
from alps_ppl.app.backtest import windows

SHORT = {"num_warmup": 60, "num_samples": 60, "num_chains": 2}
ALONE = {"others": False, "progress_bar": False}


def wave(num=120, seed=0, noise=0.3):
    """Two outputs of one cycle of 12, by day."""
    rng = np.random.default_rng(seed)
    cycle = np.sin(2 * np.pi * np.arange(num) / 12)
    index = pd.date_range("2024-01-01", periods=num, freq="D", name="date")
    return pd.DataFrame({"a": 10 + 2 * cycle, "b": 5 - cycle}, index) + noise * rng.normal(size=(num, 2))


def model(data):
    latents = {"wave": alps.linear_periodic(12.0), "other": alps.linear_periodic(9.0)}
    return alps.ALPS(latents, data.outputs, noise_variance=dist.InverseGamma(2.0, 0.2), copies={"wave": 2, "other": 2})


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("backtest")
    return alps.backtest(
        wave(), model, "10d", origins=4, rng_key=jax.random.key(0), folder=folder, **ALONE, **SHORT
    ), folder


def test_windows_end_where_the_next_begins():
    table = wave()
    assert windows(table, "10d", 3) == [(90, 100), (100, 110), (110, 120)]
    months = pd.DataFrame({"a": range(40)}, pd.date_range("2020-01-31", periods=40, freq="ME"), dtype=float)
    assert windows(months, "1y", 2) == [(16, 28), (28, 40)]
    numbers = pd.DataFrame({"a": np.arange(50.0)}, pd.Index(np.arange(50.0) / 2))
    assert windows(numbers, 5.0, 2) == [(30, 40), (40, 50)]
    with pytest.raises(ValueError, match=r"origins: expected at most 11 of a horizon of '10d'.*got 20"):
        windows(table, "10d", 20)


def test_cells_and_gates(found):
    """Every observed cell after the first origin once for each forecast, in the table's units; the gates by origin."""
    (cells, gates), _ = found
    table = wave()
    ours = cells[cells.forecast == "alps_ppl"]
    assert len(ours) == 80
    np.testing.assert_allclose(ours.observed, table.iloc[80:].to_numpy().ravel())
    assert ours.time.tolist() == np.repeat(table.index[80:].astype(str), 2).tolist()
    assert ours.origin.unique().tolist() == table.index[[79, 89, 99, 109]].astype(str).tolist()
    assert set(cells.forecast) >= {"alps_ppl", "the last value", "12 d before"}
    wide = gates.pivot_table(index="process", columns="origin", values="probability", sort=False)
    assert (wide.loc["wave"] > 0.9).all()
    assert (wide.loc["other"] < 0.2).all()


def test_scores_by_hand(found):
    (cells, _), _ = found
    rows = cells[cells.forecast == "the last value"]
    table = wave()
    for origin, of_origin in rows.groupby("origin"):
        past = table.loc[:origin]
        expected = np.tile(past.iloc[-1], len(of_origin) // 2)
        np.testing.assert_allclose(of_origin["mean"], expected)
        sds = np.tile(past.std(ddof=0), len(of_origin) // 2)
        np.testing.assert_allclose(of_origin.error, (of_origin.observed - expected) / sds)
    scores = found[0].scores
    assert scores.rmse["the last value"] == pytest.approx(np.sqrt((rows.error**2).mean()))
    assert scores.loc["alps_ppl", "in 90 %"] == pytest.approx(
        cells[cells.forecast == "alps_ppl"].eval("lower <= observed <= upper").mean(), abs=0.02
    )
    assert scores.index[0] == "alps_ppl"  # of these data it is the truth


def test_right_forecasts_are_calibrated(found):
    """Of the true model, 80 cells: the part in the 90 % band within four binomial sds of .9."""
    scores = found[0].scores.loc["alps_ppl"]
    assert abs(scores["in 90 %"] - 0.9) < 4 * np.sqrt(0.09 / 80) + 0.02
    assert abs(scores["in 50 %"] - 0.5) < 4 * np.sqrt(0.25 / 80)


def test_nothing_after_an_origin_is_seen(found):
    """Other values after the second origin leave the first two forecasts as they are, to the bit."""
    table = wave()
    table.iloc[100:] = 1e3
    key = jax.random.key(0)
    before = len(COMPILED)
    other = alps.backtest(table, model, "10d", origins=4, rng_key=key, **ALONE, **SHORT)
    assert len(COMPILED) == before  # and all fits are of one shape
    first = found[0].cells.origin.unique()[:2]
    columns = ["mean", "sd", "lower", "upper"]
    pd.testing.assert_frame_equal(*(c[c.origin.isin(first)][columns] for c in (found[0].cells, other.cells)))


def test_a_killed_run_goes_on(found, monkeypatch):
    """What is there isn't fitted again, unless it is of another run."""
    complete, folder = found
    (folder / "origin_3_of_4.json").unlink()
    (folder / "origin_4_of_4.json").write_text(json.dumps({"identity": ["another"]}))
    calls = []
    fit = module.fit_gibbs
    monkeypatch.setattr(module, "fit_gibbs", lambda *args, **more: calls.append(1) or fit(*args, **more))
    key = jax.random.key(0)
    again = alps.backtest(wave(), model, "10d", origins=4, rng_key=key, folder=folder, **ALONE, **SHORT)
    assert len(calls) == 2
    pd.testing.assert_frame_equal(again.cells, complete.cells)
    pd.testing.assert_frame_equal(again.gates, complete.gates)


def test_logarithms_come_back_in_units():
    table = np.exp(wave(noise=0.1) / 4)
    found = alps.backtest(table, model, "10d", origins=1, rng_key=jax.random.key(1), log=["a"], **ALONE, **SHORT)
    ours = found.cells[(found.cells.forecast == "alps_ppl") & (found.cells.output == "a")]
    assert np.sqrt(((ours["mean"] - ours.observed) ** 2).mean()) < 0.1 * ours.observed.mean()


def test_the_command(call, tmp_path):
    """Tables, figures and, in a run's folder, a section of the page; bad input is one plain line."""
    wave().to_csv(tmp_path / "wave.csv")
    out = tmp_path / "out"
    fixed = ["--latent", "wave = linear_periodic(12d)", "--paper-model", "--no-progress", "--out", out]
    short = [text for name, value in SHORT.items() for text in ("--set", f"GIBBS.{name}={value}")]
    assert call("fit", tmp_path / "wave.csv", *fixed, "--engine", "gibbs", *short)[0] == 0
    arguments = ("backtest", tmp_path / "wave.csv", *fixed, "--horizon", "10d", "--origins", "2", "--no-others", *short)
    status, printed, error = call(*arguments)
    assert status == 0, error
    assert "alps_ppl" in printed
    for name in ("backtest_scores.csv", "backtest_gates.csv", "backtest_cells.csv", "figures/backtest_gates.png"):
        assert (out / name).is_file()
    assert "Forecasts from earlier ends" in (out / "report.html").read_text()
    status, _, error = call(*arguments, "--origins", "50")
    assert status == 2
    assert "origins: expected at most 11" in error


def test_statsforecasts_models_see_one_output_at_a_time(monkeypatch):
    """Where it is installed: what is missing is interpolated, the season is in rows, the rest is put in its place."""
    seen = []

    class Model:
        def __init__(self, season_length):
            self.season = season_length

        def forecast(self, y, horizon, level):
            seen.append((self.season, y))
            mean = np.full(horizon, y[-1])
            return {"mean": mean, "lo-90": mean - norm.isf(0.05), "hi-90": mean + norm.isf(0.05)}

    models = ModuleType("statsforecast.models")
    models.AutoARIMA = models.AutoETS = type("AutoARIMA", (Model,), {})
    monkeypatch.setitem(sys.modules, "statsforecast", ModuleType("statsforecast"))
    monkeypatch.setitem(sys.modules, "statsforecast.models", models)
    monkeypatch.setattr(baselines, "find_spec", lambda name: True)
    table = wave(60)
    table.iloc[30, 0] = np.nan
    data = alps.Data(table.index, table, held_out={"test": np.arange(60) >= 50})
    ((name, (mean, sd)),) = baselines.other_forecasts(data, model(data)).items()
    assert name == "AutoARIMA"
    assert seen[0][0] == 9  # the shortest period that the model names
    assert seen[0][1][30] == pytest.approx((seen[0][1][29] + seen[0][1][31]) / 2)
    np.testing.assert_allclose(mean[50:], np.tile(data.standardised[49], (10, 1)))
    np.testing.assert_allclose(sd[50:], 1.0)


def test_spikes_are_scored_and_not_fitted():
    """A spike before the origin is missing in its fit; one after it is a cell like any other."""
    table = wave()
    table.iloc[50, 0] = table.iloc[115, 0] = 200.0
    key = jax.random.key(0)
    found = alps.backtest(table, model, "10d", origins=1, rng_key=key, drop_spikes=True, **ALONE, **SHORT)
    ours = found.cells[found.cells.forecast == "alps_ppl"]
    assert len(ours) == 20
    assert ours.observed.max() == 200
    assert ours["mean"].max() < 20
    assert ours.sd.max() < 3


def test_an_output_without_a_past_isnt_scored():
    table = wave()
    table.iloc[:110, 1] = np.nan
    found = alps.backtest(table, model, "10d", origins=1, rng_key=jax.random.key(0), **ALONE, **SHORT)
    assert set(found.cells.output) == {"a"}


def test_kept_origins_are_of_the_same_logarithms(tmp_path):
    table = np.exp(wave(noise=0.1) / 4)
    options = {"origins": 1, "rng_key": jax.random.key(1), "folder": tmp_path, **ALONE, **SHORT}
    with_log, without = (alps.backtest(table, model, "10d", log=log, **options) for log in ("a", []))
    assert not np.allclose(with_log.cells["mean"], without.cells["mean"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((wave().to_numpy(), model, "10d"), "table: expected a pandas.DataFrame"),
        ((wave(), "m", "10d"), "model: expected an alps_ppl.ALPS, or a function"),
        ((wave(), model, "200d"), "horizon: expected a part of the table's 120 rows"),
        ((wave(), model, "0d"), "horizon: expected a part of the table's 120 rows"),
        ((wave(), model, "-3d"), "horizon"),
    ],
)
def test_what_a_backtest_refuses(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        alps.backtest(*arguments, rng_key=jax.random.key(0), **ALONE)
