"""Paths, ticks and shaded stretches of the report's charts."""

import re

import numpy as np
import pandas as pd
import pytest

from alps_ppl.app.report import charts, figures
from alps_ppl.app.report.charts import Axis, Span
from alps_ppl.results.gaps import with_gaps


def test_axis():
    axis = Axis([2.0, np.nan], [4.0], margin=0.5)
    np.testing.assert_allclose(axis([1.0, 3.0, 5.0, np.nan]), [0, 0.5, 1, np.nan])
    assert Axis([np.nan]).low == 0.0
    np.testing.assert_allclose(Axis([3.0, 3.0], margin=0.1)([3.0]), 0.5)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 100, ["0", "50", "100"]),
        (-1, 1, ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        (990, 1031, ["1,000", "1,020"]),
        (0, 2e-5, ["0", "1e-05", "2e-05"]),
    ],
)
def test_number_ticks(low, high, labels):
    ticks, shared = Axis([low, high]).ticks(4)
    assert [text for _, text in ticks] == labels
    assert shared == ""
    values = [float(text.replace("−", "-").replace(",", "")) for _, text in ticks]
    np.testing.assert_allclose([place for place, _ in ticks], 100 * Axis([low, high])(values))


def test_date_ticks():
    from matplotlib.dates import date2num

    days = date2num(pd.to_datetime(["2013-07-01", "2013-07-31"]))
    ticks, shared = Axis(days, dates=True).ticks(8)
    assert shared == "2013-Jul"
    assert ticks[0] == (0.0, "Jul")
    assert dict((text, place) for place, text in ticks)["15"] == pytest.approx(100 * 14 / 30)


def test_times_of_dates_with_a_zone_are_in_utc():
    from matplotlib.dates import num2date

    dates = ["2026-01-01T02:00+02:00", "2026-01-01T03:00+02:00"]
    rows = pd.DataFrame({"engine": "svi", "output": "u", "date": dates, "input": [0.0, 1.0]})
    times = figures.times_of(rows, {})
    assert (times.dates, times.label) == (True, "UTC")
    assert [stamp.hour for stamp in num2date(times.places)] == [0, 1]
    naive = figures.times_of(rows.assign(date=["2026-01-01", "2026-01-02"]), {})
    assert (naive.dates, naive.label) == (True, "")
    assert figures.times_of(rows.drop(columns="date"), {"data": {"input_label": "t [s]"}}).label == "t [s]"
    assert figures.times_of(rows.drop(columns=["date", "input"]), {}) is None


def test_paths():
    """1,000 units each way, downwards; NaN breaks a line, leaves a dot out and ends a band."""
    x, y = np.array([0.0, 0.25, 0.5, 0.75, 1.0]), np.array([0.0, 1.0, np.nan, 0.5, 0.25])
    assert charts.line(x, y) == "M0 1000L250 0M750 500L1000 750"
    assert charts.dots(x, y) == "M0 1000h0M250 0h0M750 500h0M1000 750h0"
    assert charts.band(x[:2], np.zeros(2), y[:2]) == "M0 1000L250 0L250 1000L0 1000Z"
    assert charts.line(x[:0], y[:0]) == ""


def test_spans():
    x = np.linspace(0, 1, 11)
    split = ["train"] * 3 + ["gap"] * 2 + ["train"] * 4 + ["test"] * 2
    observed = np.ones(11, bool)
    observed[[1, 6, 7]] = False
    assert charts.spans(x, split, observed) == [
        Span(25.0, 20.0, "gap", "held-out", 0, 35.0),
        Span(55.0, 20.0, "not observed", "missing", 0, 65.0),
        Span(85.0, 15.0, "test", "held-out", 0, 92.5),
    ]
    # What isn't observed at the end is a forecast too; another split's end keeps its name.
    assert charts.spans(x, ["train"] * 11, x < 0.75)[-1].label == "forecast"
    assert charts.spans(x, ["train"] * 9 + ["winter"] * 2, observed)[-1].label == "winter"
    assert charts.spans(x, ["test"] * 11, observed)[0].label == "test"
    assert charts.spans(x, ["train"] * 9 + ["not observed"] * 2, observed)[-1].kind == "held-out"


def test_many_spans_have_no_room_for_labels():
    x = np.linspace(0, 1, 101)
    split = np.where((np.arange(101) % 20 == 5) | (np.arange(101) > 70), "test", "train")
    found = charts.spans(x, split.tolist(), np.ones(101, bool))
    assert [span.row for span in found] == [None] * 4 + [0]


@pytest.mark.parametrize("ahead", [2, 10, 40])
def test_a_test_and_a_forecast_have_labels_beside_each_other(ahead):
    """However short they are: labels of one row don't meet, by the widths that they have on a phone."""
    split = ["train"] * 400 + ["test"] * ahead + ["forecast"] * ahead
    found = charts.spans(np.linspace(0, 1, len(split)), split, np.array([name == "train" for name in split]))
    test, forecast = found
    assert (test.label, test.kind, forecast.label, forecast.kind) == ("test", "held-out", "forecast", "ahead")
    assert forecast.left == pytest.approx(test.left + test.width, abs=0.02)
    assert test.row != forecast.row
    assert test.anchor == "centre" or test.at == pytest.approx(forecast.left, abs=0.02)
    assert None not in (test.row, forecast.row)


def test_a_line_ends_at_an_outage():
    """Two days without a row in a table of hours are a gap; a night without three rows isn't."""
    hours = np.r_[0:50, 53:100, 148:200].astype(float)
    layers = {"band": (hours - 1, hours + 1), "mean": hours, "dots": hours}
    chart = charts.draw(Axis(hours), hours, layers, [], "t", "text")
    assert [layer.path.count("M") for layer in chart.layers] == [2, 2, len(hours)]
    whole = charts.draw(Axis(hours), hours, {"mean": hours}, [], "t", "text", over_time=False)
    assert whole.layers[0].path.count("M") == 1


@pytest.mark.parametrize(
    ("times", "gaps"),
    [
        (np.arange(30.0), []),
        (np.r_[0:5, 7:12, 14:19].astype(float), []),  # weekdays
        (np.r_[0:20, 40:60].astype(float), [29.5]),
        (np.r_[np.zeros(3), 1.0, 2.0], []),  # times that occur more than once
        (np.zeros(1), []),
        (np.arange("2025-01", "2026-01", dtype="datetime64[M]").astype("datetime64[ns]"), []),
    ],
)
def test_gaps(times, gaps):
    found, values = with_gaps(times, np.ones(len(times)))
    assert found[np.isnan(values)].tolist() == gaps
    np.testing.assert_array_equal(found[~np.isnan(values)], times)


def test_lines_of_many_points_are_thinned():
    places = np.arange(4000.0)
    chart = charts.draw(Axis(places), places, {"mean": places, "dots": places}, [], "t", "text")
    assert chart.every == 3
    assert [len(re.findall("[ML]", layer.path)) for layer in chart.layers] == [1334, 1334]


def test_a_thinned_cycle_keeps_its_size():
    """A wave of eight rows, of which one is missing: every second row would be larger before it than after."""
    t = np.delete(np.arange(2920.0), 1460)
    rows = charts.thinned(len(t), 2)
    wave = np.cos(2 * np.pi * t[rows] / 8)
    assert abs(wave[rows < 1460].max() - wave[rows >= 1460].max()) < 1e-9
    assert np.array_equal(rows // 2, np.arange(1460))
    assert np.array_equal(charts.thinned(7, 1), np.arange(7))
    assert charts.thinned(0, 1).size == 0
