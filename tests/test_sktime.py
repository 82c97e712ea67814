"""The forecaster for sktime: what it says is ``predict``'s, on every kind of index; and sktime's own checks."""

import doctest
import pickle
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import alps_ppl as alps
from alps_ppl.app.compose import compose
from alps_ppl.model.as_json import describe

pytest.importorskip("sktime")

from alps_ppl.sktime import AlpsForecaster

LATENTS = {"week": "linear_periodic(7)", "trend": "linear()"}
TIMES, AHEAD = 80, 20


def table(seed, index=None):
    """Two outputs with a wave of period 7 and white noise, 100 times."""
    rng = np.random.default_rng(seed)
    t = np.arange(TIMES + AHEAD)
    wave = np.stack([np.sin(2 * np.pi * t / 7), np.cos(2 * np.pi * t / 7)], -1) @ rng.normal(size=(2, 2))
    y = [10.0, -3.0] + [2.0, 30.0] * (wave + 0.7 * rng.normal(size=wave.shape))
    return pd.DataFrame(y, index, ["u", "v"])


def fitted(y, latents=LATENTS, **options):
    return AlpsForecaster(latents, engine="vb", **options).fit(y)


def test_intervals_hold_the_truth_at_their_probability():
    """The cells are nearly independent, for white noise leads: within five of a binomial's sds."""
    hits = {0.5: [], 0.9: []}
    for seed in range(5):
        y = table(seed)
        bands = fitted(y[:TIMES]).predict_interval(range(1, AHEAD + 1), coverage=list(hits))
        for coverage, held in hits.items():
            for name in y:
                band, truth = bands[name, coverage], y[name][TIMES:]
                held += ((band.lower < truth) & (truth < band.upper)).tolist()
    for coverage, held in hits.items():
        assert abs(np.mean(held) - coverage) < 5 * np.sqrt(coverage * (1 - coverage) / len(held))


def test_the_forecast_is_that_of_predict_at_the_same_times_and_of_the_command_s_model(tmp_path):
    """With missing cells, a missing row, in the sample and ahead."""
    y = table(0)[:TIMES]
    y.iloc[10, 0] = y.iloc[:5, 1] = y.iloc[20] = np.nan
    forecaster = fitted(y)
    horizon = [-(TIMES - 1 - 20), -1, 0, 1, 5]  # from the last row; the first of these is the missing row
    times = TIMES - 1 + np.array(horizon)
    for interval, levels in {0.9: (0.05, 0.95), 0.2: (0.4, 0.6)}.items():
        expected = forecaster.data_.to_units(alps.predict(forecaster.fit_, times.astype(float), interval=interval))
        found = forecaster.predict_quantiles(horizon, alpha=list(levels))
        assert list(found.index) == list(times)
        for level, end in zip(levels, ("lower", "upper"), strict=True):
            np.testing.assert_allclose(found.xs(level, axis=1, level=1), expected[end], rtol=1e-6)
    np.testing.assert_allclose(forecaster.predict(horizon), expected["mean"])
    np.testing.assert_allclose(forecaster.predict_var(horizon), expected["sd"] ** 2)
    assert list(forecaster.predict(horizon).columns) == ["u", "v"]
    assert forecaster.inclusion_.set_index("latent").probability["week"] > 0.9

    y.rename_axis("t").to_csv(tmp_path / "y.csv")
    texts = [f"{name} = {text}" for name, text in LATENTS.items()]
    problem, _ = compose(tmp_path / "y.csv", time="t", latents=texts, log="auto", drop_spikes=True)
    assert describe(forecaster.fit_.model) == describe(problem.model)


def test_periods_and_dates_of_one_calendar_have_one_answer():
    latents = {"week": "linear_periodic(1w)", "trend": "linear()"}
    days = pd.date_range("2024-02-25", periods=TIMES + AHEAD, freq="D")
    by_date, by_period = (table(1, index) for index in (days, days.to_period()))
    found = [fitted(y[:TIMES], latents).predict(range(1, AHEAD + 1)) for y in (by_date, by_period)]
    assert found[0].index.equals(by_date.index[TIMES:])
    assert found[1].index.equals(by_period.index[TIMES:])
    np.testing.assert_array_equal(*found)
    by_number = fitted(table(1)[:TIMES]).predict(range(1, AHEAD + 1))
    np.testing.assert_allclose(found[0], by_number, rtol=1e-8)


def test_covariances_are_taken_as_they_are_too():
    y = table(2)[:TIMES]
    as_text = fitted(y)
    as_they_are = fitted(y, LATENTS | {"week": alps.linear_periodic(7.0)})
    assert describe(as_text.fit_.model) == describe(as_they_are.fit_.model)
    pd.testing.assert_frame_equal(as_text.predict([1]), as_they_are.predict([1]))


def test_sales_that_grow_are_modelled_by_their_logarithm():
    t = np.arange(TIMES)
    noise = np.random.default_rng(0).normal(scale=0.2, size=TIMES)
    sales = pd.DataFrame({"sales": np.exp(2 + t / 20 + 0.5 * np.sin(2 * np.pi * t / 7) + noise), "noise": noise})
    forecaster = fitted(sales)
    assert forecaster.data_.log == ["sales"]
    found = forecaster.predict_quantiles([1, 2], alpha=[0.001, 0.5])["sales"]
    assert (found > 0).all(axis=None)
    # Of a log-normal the mean lies above the median.
    assert (forecaster.predict([1, 2]).sales > found[0.5]).all()
    assert fitted(sales, log="none").data_.log == []


def test_an_update_fits_all_rows_and_a_pickle_says_the_same():
    """In JAX's 32-bit mode the forecaster works in 64 bits."""
    y = table(3)
    with jax.enable_x64(False):
        forecaster = fitted(y[: TIMES - 1]).update(y[TIMES - 1 : TIMES])
        assert forecaster.fit_.y.dtype == np.float64
        expected = fitted(y[:TIMES]).predict([1, 2])
        pd.testing.assert_frame_equal(forecaster.predict([1, 2]), expected)
        again = pickle.loads(pickle.dumps(forecaster))
        pd.testing.assert_frame_equal(again.predict([1, 2]), expected, rtol=1e-12)


def test_errors_say_what_was_expected(monkeypatch):
    y = table(4)[:TIMES]
    with pytest.raises(ValueError, match=r"engine: expected one of .*gibbs.* got 'nuts'"):
        AlpsForecaster(engine="nuts").fit(y)
    with pytest.raises(TypeError, match=r"latents: expected 'auto', or a dict .* got \[\]"):
        AlpsForecaster([]).fit(y)
    with pytest.raises(TypeError, match=r"latents.'week'.: expected a covariance"):
        AlpsForecaster({"week": 7}).fit(y)
    with pytest.raises(ValueError, match=r"latent 'week': .*7d"):
        AlpsForecaster({"week": "linear_periodic(7d)"}).fit(y)
    with pytest.raises(ValueError, match="y: expected at least two times"):
        fitted(y[:1])
    with pytest.raises(NotImplementedError, match="covariances"):
        fitted(y).predict_var([1], cov=True)
    monkeypatch.delitem(sys.modules, "alps_ppl.sktime")
    monkeypatch.setitem(sys.modules, "sktime.forecasting.base", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs sktime: pip install "alps-ppl\[sktime\]"'):
        import alps_ppl.sktime  # noqa: F401


def test_the_page_s_example():
    page = Path(__file__).parents[1] / "docs" / "sktime.md"
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testfile(str(page), module_relative=False, optionflags=options).failed == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_sktime_s_own_checks():
    from sktime.utils.estimator_checks import check_estimator

    check_estimator(AlpsForecaster, raise_exceptions=True, verbose=False)
