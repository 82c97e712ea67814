"""Data: what is held out, the standardisation and its undoing, dates."""

import datetime as dt

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import alps_ppl as alps

T = np.arange(6.0)
Y = np.array([[1.0, 10], [2, np.nan], [3, 10], [4, 10], [100, 10], [200, 10]])


def test_train_cells_are_standardised_by_themselves():
    data = alps.Data(T, Y, outputs=["a", "b"], held_out={"test": T >= 4})
    np.testing.assert_allclose(data.loc, [2.5, 10.0])
    np.testing.assert_allclose(data.scale, [np.std([1, 2, 3, 4]), 1.0])  # a constant output: 1, not 0
    np.testing.assert_array_equal(data.train_inputs, T[:4])
    assert np.isnan(data.train_y[1, 1])
    np.testing.assert_allclose(data.standardised * data.scale + data.loc, Y)


def test_a_block_of_one_output_can_be_held_out():
    gap = np.zeros(Y.shape, bool)
    gap[2:4, 0] = True
    data = alps.Data(T, pd.DataFrame(Y, columns=["a", "b"]), held_out={"test": T >= 5, "gap": gap})
    assert data.outputs == ["a", "b"]
    assert (data.split[2:4, 0] == "gap").all()
    assert data.split[2, 1] == "train"
    assert np.isnan(data.train_y[2, 0])
    assert len(data.train_inputs) == 5


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("factor", [1e8, 1e-8])
def test_scales_and_offsets(offset, factor):
    y = np.array([[0.1], [0.1], [0.5]]) * factor + offset * factor
    data = alps.Data(np.arange(3), y)
    assert data.train_y.std() == pytest.approx(1.0, rel=1e-3)
    constant = alps.Data(np.arange(3), np.full((3, 1), 0.1) * factor)
    np.testing.assert_allclose(constant.train_y, 0.0, atol=1e-8)


def test_an_output_without_a_training_cell():
    data = alps.Data(T, np.column_stack([Y[:, 0], np.full(6, np.nan)]))
    assert (data.loc[1], data.scale[1]) == (0.0, 1.0)


def test_predictions_of_other_outputs_have_no_units_here():
    data = alps.Data(np.arange(4.0), np.arange(8.0).reshape(4, 2), outputs=["a", "b"])
    other = xr.Dataset({"mean": (("time", "output"), np.ones((1, 2)))}, coords={"output": ["a", "c"]})
    with pytest.raises(ValueError, match=r"prediction: .*data\.outputs"):
        data.to_units(other)


def test_predictions_go_back_to_units():
    data = alps.Data(T, Y, outputs=["a", "b"])
    ones = xr.DataArray(np.ones((6, 2)), dims=("time", "output"), coords={"output": ["a", "b"], "time": T})
    units = data.to_units(xr.Dataset({"mean": ones, "sd": ones, "lower": 0 * ones, "upper": ones}))
    np.testing.assert_allclose(units["mean"], np.tile(data.loc + data.scale, (6, 1)))
    np.testing.assert_allclose(units["sd"], np.tile(data.scale, (6, 1)))
    np.testing.assert_allclose(units["lower"], np.tile(data.loc, (6, 1)))


@pytest.mark.parametrize(
    ("dates", "expected", "label"),
    [
        (pd.date_range("2024-01-01", periods=3, freq="h"), [0, 1, 2], "hours since 2024-01-01 00:00"),
        (pd.date_range("2024-01-01", periods=3, freq="2D"), [0, 2, 4], "days since 2024-01-01 00:00"),
        (pd.Series(["2024-01-01", "2024-01-03", "2024-01-02"]), [0, 2, 1], "days since 2024-01-01 00:00"),
        (
            pd.date_range("2024-03-30 23:00", periods=3, freq="h", tz="Europe/Paris"),
            [0, 1, 2],
            "hours since 2024-03-30 22:00",
        ),
        (np.array(["2024-01-01T06", "2024-01-01T00"], "M8[h]"), [6, 0], "hours since 2024-01-01 00:00"),
        ([dt.date(2024, 1, 1), dt.date(2024, 1, 3)], [0, 2], "days since 2024-01-01 00:00"),
        (["2020", "2021"], [0, 366], "days since 2020-01-01 00:00"),
    ],
)
def test_dates_become_hours_or_days(dates, expected, label):
    data = alps.Data(dates, np.zeros(len(expected)))
    np.testing.assert_allclose(data.inputs, expected)
    assert data.input_label == label
    np.testing.assert_array_equal(data.dates, np.asarray(dates))


@pytest.mark.parametrize(
    ("durations", "expected", "label"),
    [
        (pd.to_timedelta([1, 2, 4], "h"), [1, 2, 4], "hours"),
        (np.array([0, 48, 24], "m8[h]"), [0, 2, 1], "days"),
        ([dt.timedelta(hours=1), dt.timedelta(minutes=30)], [1, 0.5], "hours"),
    ],
)
def test_durations_become_hours_or_days(durations, expected, label):
    data = alps.Data(durations, np.zeros(len(expected)))
    np.testing.assert_allclose(data.inputs, expected)
    assert data.input_label == label
    assert data.dates is None


@pytest.mark.parametrize(
    "inputs", [np.array([1, 2.5, 4], object), pd.array([1, 2.5, 4], "Float64"), pd.Series([1, 2.5, 4]), (1, 2.5, 4)]
)
def test_numbers_of_any_dtype(inputs):
    frame = pd.DataFrame({"a": pd.array([1, pd.NA, 3], "Int64"), "b": np.array([None, 0.5, 2], object)})
    data = alps.Data(inputs, frame)
    np.testing.assert_array_equal(data.inputs, [1, 2.5, 4])
    np.testing.assert_array_equal(data.y, [[1, np.nan], [np.nan, 0.5], [3, 2]])
    assert data.dates is None


def test_repr_counts_observed_cells():
    data = alps.Data(T, Y, held_out={"test": T >= 4})
    assert repr(data) == "Data(6 times, 2 outputs, observed cells by split {'test': 4, 'train': 7})"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": T[:4]}, r"= \(4, 2\) for inputs of shape \(4,\), got \(6, 2\); rows are times"),
        ({"y": Y.T}, r"= \(6, 6\) .*got \(2, 6\); .*its transpose: pass y.T"),
        ({"outputs": ["a"]}, "expected 2 names"),
        ({"outputs": ["a", "a"]}, "no name twice"),
        ({"outputs": 2.0}, "outputs: expected their number or a list of names, got 2.0"),
        ({"y": np.where(Y == 3, np.inf, Y)}, "got inf in row 2, output '1'"),
        ({"held_out": {"test": [0, 1, 2, 3, 4, 5]}}, "expected a boolean array.*got int64"),
        ({"held_out": {"test": T[:3] > 1}}, r"held_out\['test'\]: expected a boolean array of shape"),
        ({"inputs": ["a", "b", "c", "d", "e", "f"]}, "expected numbers or ISO 8601 dates, got 'a'"),
        ({"inputs": pd.DatetimeIndex([*["2024-01-01"] * 4, None, "2024-01-02"])}, "got NaT in row 4; drop that row"),
        ({"inputs": pd.to_timedelta([0, 1, None, 3, 4, 5], "h")}, "got NaT in row 2; drop that row"),
        ({"inputs": np.where(T == 5, np.nan, T)}, "got nan in row 5; drop that row"),
        ({"inputs": pd.array([0, 1, 2, pd.NA, 4, 5], "Int64")}, "in row 3; drop that row"),
        ({"inputs": [[1.0], [2.0, 3.0]]}, "inhomogeneous shape"),
        ({"inputs": 3.0}, r"expected shape \(time,\) or \(time, column\) .*got shape \(\)"),
        ({"inputs": pd.date_range("2024", periods=4)}, r"= \(4, 2\) .*got \(6, 2\); rows are times"),
        ({"inputs": [1, "2024-01-01", 3, 4, 5, 6]}, "inputs: expected"),
        ({"y": Y * [1.0, 1e200]}, "got up to 1e.201 in output '2'; rescale it, e.g. divide it by 1e.201$"),
        ({"y": Y * [1e-200, 1.0]}, "got up to 2e-198 in output '1'; rescale it"),
        (
            {"y": pd.DataFrame({"a": Y[:, 0], "site": [*"123", "x", *"56"]})},
            "y: expected numbers in column 'site', got 'x'; turn it into numbers or leave it out",
        ),
        ({"y": [["a", "b"]] * 6}, "y: expected a number or a rectangular array of numbers"),
        (
            {"y": pd.DataFrame(Y, columns=["a", "b"]), "outputs": ["c", "d"]},
            r"columns of y in their order, \['a', 'b'\]",
        ),
        ({"y": pd.DataFrame(Y, columns=["a", "b"]), "outputs": ["b", "a"]}, "got .'b', 'a'.; leave outputs out"),
        ({"held_out": {"test": T >= 4, "gap": T == 4}}, r"held_out\['gap'\].*row 4 of output '1' is in 'test' too"),
    ],
)
def test_bad_data(arguments, message):
    with np.errstate(all="raise"), pytest.raises((ValueError, TypeError), match=message):
        alps.Data(**({"inputs": T, "y": Y} | arguments))


def test_nothing_left_to_fit():
    with pytest.raises(ValueError, match="nothing to fit"):
        _ = alps.Data(T, Y, held_out={"test": T >= 0}).train_inputs


@pytest.mark.parametrize(
    ("inputs", "new", "expected"),
    [
        (np.arange(3.0), [5, 0.5], [5.0, 0.5]),
        (pd.date_range("2026-01-05", periods=3, freq="D"), ["2026-01-04", "2026-01-06T12:00"], [-1.0, 1.5]),
        (pd.date_range("2026-01-05", periods=3, freq="3h"), ["2026-01-05T01:00+00:00"], [1.0]),
        (pd.to_timedelta(["1h", "2h", "3h"]), ["1 days 02:00:00"], [26.0]),
        (pd.to_timedelta(["1D", "2D", "3D"]), ["36h"], [1.5]),
        (np.arange(6.0).reshape(3, 2), [[1.0, 2.0]], [[1.0, 2.0]]),
    ],
)
def test_later_times_by_the_same_origin_and_unit(inputs, new, expected):
    """A forecast's times, and the fitted ones again."""
    data = alps.Data(inputs, np.ones(3))
    np.testing.assert_array_equal(data.conversion.to_inputs(new), expected)
    np.testing.assert_array_equal(data.conversion.to_inputs(inputs), data.inputs)


def test_times_of_another_kind_are_an_error():
    dates = alps.Data(pd.date_range("2026-01-05", periods=3), np.ones(3)).conversion
    with pytest.raises(TypeError, match="times: expected dates, as those that were fitted, got '5'"):
        dates.to_inputs([5, 6])
    with pytest.raises(TypeError, match="times: expected numbers or ISO 8601 dates, got 'soon'"):
        dates.to_inputs(["soon"])
    with pytest.raises(TypeError, match="times: expected a number or a rectangular array of numbers, got"):
        alps.Data(np.arange(3.0), np.ones(3)).conversion.to_inputs(["2026-01-05"])
    with pytest.raises(ValueError, match="times: expected a finite time in every row, got nan in row 1; drop that row"):
        alps.Data(np.arange(3.0), np.ones(3)).conversion.to_inputs([1.0, np.nan])
