"""The reader of tables: whatever order, gaps and repeats a file has, and errors that name the place."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

import alps_ppl as alps
from alps_ppl.tables.spikes import spikes

CELL = st.one_of(st.none(), st.floats(-1e6, 1e6, width=32), st.integers(-1000, 1000).map(float))


@st.composite
def tables(draw):
    """Rows of (time, cells), sorted by time, with repeated stamps and missing cells; dates or numbers."""
    num_outputs = draw(st.integers(1, 3))
    stamps = sorted(draw(st.lists(st.integers(0, 400), min_size=1, max_size=12)))
    cells = draw(st.lists(st.lists(CELL, min_size=num_outputs, max_size=num_outputs), min_size=len(stamps),
                          max_size=len(stamps)))  # fmt: skip
    values = np.array([[np.nan if cell is None else cell for cell in row] for row in cells], float)
    dates = draw(st.booleans())
    index = pd.Timestamp("2020-02-28") + pd.to_timedelta(stamps, unit="h") if dates else np.array(stamps) / 4
    return pd.DataFrame(values, index=pd.Index(index, name="when"), columns=[f"o{i}" for i in range(num_outputs)])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.randoms(use_true_random=False), st.sampled_from([(",", "."), (";", ","), ("\t", ".")]))
def test_a_table_comes_back(tmp_path_factory, table, random, signs):
    separator, decimal = signs
    path = tmp_path_factory.mktemp("tables") / "table.csv"
    order = list(range(len(table)))
    random.shuffle(order)
    # Missing cells in the ways that files write them; blank lines and a byte-order mark change nothing.
    text = table.iloc[order].reset_index().astype(object).map(
        lambda v: random.choice(["", "NA", "-", "."]) if pd.isna(v) else str(v).replace(".", decimal)
        if isinstance(v, float) else str(v)
    )  # fmt: skip
    lines = [separator.join(row) for row in [list(text.columns), *text.to_numpy().tolist()]]
    path.write_text("\ufeff" + "\n".join(line + "\n" * random.randint(0, 3) for line in lines), encoding="utf-8")
    read = alps.read_table(path, time="when", outputs=list(table.columns), decimal=decimal)
    assert read.index.name == "when"
    # But for rows that are there twice, with any cell.
    table = table[~(table.reset_index().duplicated().to_numpy() & table.notna().any(axis=1).to_numpy())]
    assert list(read.index) == list(table.index)
    # Rows of one time may come in any order among themselves.
    for stamp in set(table.index):
        assert _rows(read.loc[[stamp]]) == _rows(table.loc[[stamp]])


def _rows(table):
    """As text, since NaN equals nothing; -0 is 0: of two equal rows either may be the one that is kept."""
    return sorted(map(repr, (table.to_numpy() + 0.0).tolist()))


def write(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "series.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_defaults(tmp_path):
    path = write(
        tmp_path,
        "site,day, t ,u,v,empty,k\nA,2020-01-02,1,1.5,NA,,7\nB,2020-01-01,0,2,-,,\n,,,,,,\n"
        "C,2020-01-03,2,?,4,,7\nD,2020-01-05,4,3,3,,7\n",
    )
    table = alps.read_table(path)
    assert table.index.name == "day"
    assert list(table.columns) == ["u", "v"]
    np.testing.assert_array_equal(table.to_numpy(), [[2, np.nan], [1.5, np.nan], [np.nan, 4], [3, 3]])
    assert table.attrs["left_out"] == {
        "site": "most of its cells are no numbers, such as 'A' in row 1",
        "t": "it is the time once more",
        "empty": "it is empty",
        "k": "it is constant",
    }
    assert list(alps.read_table(path, outputs=["t", "k"]).columns) == ["t", "k"]


def test_separators_and_decimals_are_found(tmp_path):
    expected = [[1.5, -0.25], [2.0, 1e3]]
    for text in (
        "t;u;v\n1;1,5;-,25\n2;2;1e3\n",
        "t|u|v\n1|1.5|-.25\n2|2|1e3",
        '"t"\tu\tv\n1\t1.5\t-0.25\n2\t2\t1000\n',
    ):
        np.testing.assert_array_equal(alps.read_table(write(tmp_path, text)).to_numpy(), expected)
    text = "t,u,v\n1,1.5,-0.25\n2,2,1e3\n"
    np.testing.assert_array_equal(alps.read_table(write(tmp_path, text, "utf-8-sig")).to_numpy(), expected)
    blank = "\n" * 5_000
    np.testing.assert_array_equal(
        alps.read_table(write(tmp_path, blank + text.replace("\n", blank))).to_numpy(), expected
    )
    broken = alps.read_table(write(tmp_path, 't,"u\nv"\n1,2\n2,4.5\n'))  # a line break within a name
    assert list(broken.columns) == ["u v"]
    latin = alps.read_table(write(tmp_path, "t,é\n1,2\n2,4.5\n", "cp1252"), encoding="cp1252")
    assert list(latin.columns) == ["é"]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", {}, "got an empty file"),
        ("\n\n", {}, "got an empty file"),
        ("t,u\n", {}, "got no rows"),
        ("t,u\n,\n", {}, "got no rows"),
        ("t,u,u\n1,2,3\n", {}, "names that differ, got .'u'. more than once"),
        ("t,u,,\n1,2,,\n", {}, "names that differ, got .''. more than once; name or delete them"),
        ("1,2\n3,4\n", {}, "a line with the columns' names first"),
        ("t\n1\n", {}, "expected columns separated by ',', got one"),
        ("t,u\n1,2\n2,3,4\n", {}, "as many cells in every row as in the header"),
        ("t,u\n1,2\n2,x3\n3,5\n", {}, r"numbers in column 'u', got 'x3' in row 2 \(time 2.0\)"),
        ("t,u\n1,2\n2,inf\n3,5\n", {}, "got 'inf' in row 2"),
        ('t,u\n1,2.5\n2,"3,5"\n3,4.5\n', {}, "got '3,5' in row 2 .*; a decimal comma?"),
        ("t,u\n1,a\n2,b\n", {"outputs": ["u"]}, "numbers in column 'u', got 'a' in row 1"),
        (
            "t,u\n1,a\n2,b\n",
            {},
            "beside the times, got none: column 'u': most of its cells are no numbers, such as 'a' in row 1$",
        ),
        ("t,u,v\n1,3,\n2,3,\n", {}, "got none: column 'u': it is constant; column 'v': it is empty$"),
        ("t,u\n1,2\n,3\n", {}, "expected a time in every row, got none in row 2"),
        (
            "t,u\n02/01/2020,2\n01/02/2020,3\n",
            {},
            "day can be told from the month in column 't', got '02/01/2020'; give",
        ),
        ("t,u\n31/01/2020,2\n01/13/2020,3\n", {}, "expected dates in column 't', got '01/13/2020' in row 2"),
        (
            "t,u\n2020-01-31,2\n",
            {"date_format": "%d.%m.%Y"},
            "format '%d.%m.%Y' in column 't', got '2020-01-31' in row 1",
        ),
        ("t,u\n2020-01-31,2\n2020-02-01,3\n", {"time_zone": "Europe/London"}, "without an offset"),
        ("t,u\n2020-01-31T00Z,2\n2020-02-01T00Z,3\n", {"time_zone": "Mars"}, "such as Europe/London, got 'Mars'"),
        (
            "t,u\n2020-W01,2\n2020-W54,3\n",
            {},
            "weeks, months or quarters of a year in column 't', got '2020-W54' in row 2",
        ),
        ("t;u\n1;1,185\n2;2,300\n", {}, "column 'u': is '1,185' a thousand and more, or a number with three decimals"),
        ("t;u\n1;1.185\n2;2.300\n", {}, "column 'u': is '1.185' a thousand and more"),
        (
            "t,station,u\n1,a,2\n",
            {"id": "staton", "target": "u"},
            "among t, station, u, got 'staton'; did you mean 'station'",
        ),
        ("t,station,u\n1,a,2\n", {"id": "station"}, "target: expected the column of a long table's values"),
        ("t,u\n1,2\n2,3\n", {"time": "T2"}, "the column of times"),
        ("date,sales\n1,2\n2,3\n", {"outputs": ["sale"]}, "did you mean 'sales'"),
        ('t,u\n1,950\n2,"1,250"\n3,"1,100"\n4,"1,300"\n5,"1,18"\n', {}, "group thousands, but not that of '1,18'"),
        (
            "t,who,v\n1,a,2\n2,b,3\n",
            {"id": "who", "target": "v", "outputs": ["a", "zz"]},
            "columns among a, b, got .'zz'.",
        ),
        ("t,who,v\n1,t,2\n2,b,3\n", {"id": "who", "target": "v"}, "names other than that of the times, 't'"),
        ("t,who,v\n1,a,2\n2,b,3\n", {"id": "who", "target": "who"}, "two columns beside that of the times"),
        (
            "t,u\n202001,2\n202002,3\n202003,4\n202004,4\n202005,4\n202013,4\n",
            {},
            "months of a year .* got 202013 in row 6",
        ),
        ("t,u\n1704067200,2\n1704067200000,3\n", {}, "Unix times of one unit .* in row 1 and 1704067200000 in row 2"),
        ("t,u\n2024-01-01T00:00Z,2\n2024-01-01T01:00,3\n", {}, "offset in every stamp .* in row 2"),
        ("t,u\n1,2\n2,3\n", {"thousands": "x"}, "got '.' and 'x'"),
        ("t,u\n1,2\n2,3\n", {"thousands": ",", "decimal": ","}, "another sign between thousands"),
        ("t,u\n01/02,2\n02/02,3\n", {"date_format": "%d/%m"}, "date_format: expected one with a year"),
        ("t,u\n2010Q1,2\n2010Q5,3\n", {}, "got '2010Q5' in row 2"),
        ("t,u\n2020-01-01,2\nsoon,3\n", {}, "got 'soon' in row 2"),
        ("a,b\n1,2\n2,3\n", {}, "which column holds the times. Name one of a, b"),
        ("a,b\n1,2\n2,3\n", {"time": "c"}, "the column of times, 'c', among its columns a, b"),
        ("t,b\n1,2\n2,3\n", {"outputs": ["c"]}, "outputs: .*among b, got .'c'."),
        ("t,b\n1,2\n2,3\n", {"outputs": ["b", "b"]}, "no name twice"),
    ],
)
def test_errors_name_the_place(tmp_path, text, arguments, message):
    with pytest.raises(ValueError, match=message):
        alps.read_table(write(tmp_path, text), **arguments)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError):
        alps.read_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match=r"can't decode byte .*; save it as UTF-8, or name its encoding"):
        alps.read_table(write(tmp_path, "t,é\n1,2\n", "cp1252"))


@pytest.mark.parametrize("factor", ["e200", "e-200"])
def test_values_whose_squares_are_no_numbers(tmp_path, factor):
    path = write(tmp_path, "t,u\n" + "".join(f"{t},{t % 3 + 1}{factor}\n" for t in range(9)))
    with np.errstate(all="raise"), pytest.raises(ValueError, match=r"got up to 3e.200 in output 'u'; rescale it"):
        alps.split_table(alps.read_table(path))


def test_parquet(tmp_path, monkeypatch):
    """What pandas reads from Parquet has types of its own: dates, integers with missing cells, booleans, text."""
    frame = pd.DataFrame(
        {
            "u": pd.array([3, None, 1], dtype="Int64"),
            "on": [True, False, True],
            "site": ["a", "b", "c"],
        },
        index=pd.DatetimeIndex(["2020-01-03", "2020-01-01", "2020-01-02"], name="when"),
    )
    monkeypatch.setattr(pd, "read_parquet", lambda path: frame)
    table = alps.read_table(tmp_path / "series.parquet")
    assert table.index.name == "when"
    np.testing.assert_array_equal(table["u"], [np.nan, 1, 3])
    assert set(table.attrs["left_out"]) == {"on", "site"}

    def missing(path):
        raise ImportError("no pyarrow")

    monkeypatch.setattr(pd, "read_parquet", missing)
    with pytest.raises(ValueError, match="reading Parquet needs pyarrow; install it, or save the table as CSV"):
        alps.read_table(tmp_path / "series.parquet")


def test_dates_with_offsets(tmp_path):
    path = write(tmp_path, "date,u\n2020-03-29T00:30+01:00,1\n2020-03-29T03:30+02:00,3\n")
    data = alps.split_table(alps.read_table(path))
    np.testing.assert_allclose(data.inputs, [0, 2])
    assert data.input_unit == "hours"


def test_the_last_stretch_and_the_future():
    index = pd.date_range("2020-01-01", periods=10, freq="6h", name="date")
    table = pd.DataFrame({"u": np.arange(10.0)}, index=index).iloc[::-1]
    data = alps.split_table(table, hold_out="12h", forecast="1d")
    assert list(data.split[:, 0]) == ["train"] * 8 + ["test"] * 2 + ["forecast"] * 4
    np.testing.assert_allclose(data.inputs, 6 * np.arange(14))
    assert data.dates[-1] == np.datetime64("2020-01-04T06:00")
    assert np.isnan(data.y[10:]).all()
    np.testing.assert_array_equal(data.y[:10, 0], np.arange(10))
    assert list(alps.split_table(table, hold_out="25%").split[:, 0]) == ["train"] * 8 + ["test"] * 2
    numbers = pd.DataFrame({"u": np.arange(5.0)}, index=np.arange(5.0))
    assert alps.split_table(numbers, forecast=2).inputs.tolist() == [0, 1, 2, 3, 4, 5, 6]
    yearly = alps.split_table(numbers, forecast="2y", hold_out=1, time_unit="years")
    assert yearly.inputs.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert yearly.input_label == "t [years]"
    assert (yearly.split[:, 0] == "test").sum() == 1


@pytest.mark.parametrize("frequency", ["ME", "BME"])
@pytest.mark.parametrize("last", ["2024-02-29", "2024-04-30", "2024-06-28", "2024-12-31"])
def test_months_of_month_ends_are_rows(frequency, last):
    """February's end and two months is April's end: two rows ahead, and two held out."""
    index = pd.date_range(end=last, periods=30, freq=frequency)
    table = pd.DataFrame({"u": np.arange(30.0)}, index=index)
    data = alps.split_table(table, hold_out="2mo", forecast="2mo")
    assert (data.split == "test").sum() == (data.split == "forecast").sum() == 2


@pytest.mark.parametrize(("forecast", "last"), [("1mo", "2025-01-01"), ("2mo", "2025-02-01"), ("1y", "2025-12-01")])
def test_months_ahead_are_months(forecast, last):
    """Not 31 days each: the calendar's own step goes on."""
    index = pd.date_range("2024-01-01", periods=12, freq="MS", name="date")
    data = alps.split_table(pd.DataFrame({"u": np.arange(12.0)}, index=index), forecast=forecast)
    assert data.dates[-1] == np.datetime64(last)
    assert all(stamp.astype("M8[D]").astype(str).endswith("-01") for stamp in data.dates)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hold_out": "1d"}, "hold_out: '1d' is a duration, but the inputs are plain numbers"),
        ({"hold_out": "100%"}, "hold_out: expected some of the 5 rows, but not all"),
        ({"hold_out": -1}, "hold_out: expected a duration such as 24h or 4d, or a finite number, got -1"),
        ({"hold_out": 0}, "hold_out: expected some of the 5 rows, but not all, got 0, 0 rows"),
        ({"forecast": 0}, "forecast: expected from one step, 1 here, to 100,000 of them, got 0"),
        ({"hold_out": "soon"}, "hold_out: expected a duration such as 24h or 4d, or a finite number, got 'soon'"),
        ({"forecast": 0.5}, "forecast: expected from one step, 1 here, to 100,000 of them, got 0.5"),
        ({"forecast": 1e9}, "forecast: expected from one step, 1 here, to 100,000 of them, got 1000000000.0"),
    ],
)
def test_stretches_that_cannot_be(arguments, message):
    table = pd.DataFrame({"u": np.arange(5.0)}, index=np.arange(5.0))
    with pytest.raises(ValueError, match=message):
        alps.split_table(table, **arguments)


def written(tmp_path, text, **arguments):
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    return alps.read_table(tmp_path / "table.csv", **arguments)


@pytest.mark.parametrize(
    ("text", "arguments", "values"),
    [
        ('t,u\n1,"1,185"\n2,999\n', {}, [1185, 999]),
        ('t,u\n1,"1,185"\n2,"2,300"\n', {}, [1185, 2300]),
        ('t,u\n1,"1,532.4"\n2,3\n', {}, [1532.4, 3]),
        ('t,u\n1,"1,234,567"\n2,3\n', {}, [1234567, 3]),
        ("t,u\n1,1 185\n2,12\n", {}, [1185, 12]),
        ("t,u\n1,1\u202f185\n2,12\n", {}, [1185, 12]),
        ("t,u\n1,1'185.5\n2,12\n", {}, [1185.5, 12]),
        ("t;u\n1;1.185\n2;575\n", {}, [1185, 575]),
        ("t;u\n1;1.185,5\n2;575\n", {}, [1185.5, 575]),
        ("t;u\n1;1.185\n2;2.300\n", {"thousands": "."}, [1185, 2300]),
        ("t;u\n1;1.185\n2;2.300\n", {"thousands": ""}, [1.185, 2.3]),
        ("t;u\n1;1,185\n2;2,300\n", {"decimal": ","}, [1.185, 2.3]),
        ("t,u\n1,1.185\n2,2.300\n", {}, [1.185, 2.3]),
        ("t;u\n1;0,185\n2;2,300\n", {}, [0.185, 2.3]),
        ("t;u;v\n1;1,185;0,5\n2;2,300;7\n", {}, [1.185, 2.3]),
    ],
)
def test_thousands_are_grouped_or_an_error(tmp_path, text, arguments, values):
    table = written(tmp_path, text, **arguments)
    np.testing.assert_array_equal(table["u"], values)
    doubtful = "," in text.replace("t,u", "").replace("\n1,", "").replace("\n2,", "") or (
        max(values) == 1185 and ";" in text
    )
    spaced = any(sign in text for sign in (" ", "\u202f", "'"))
    assert any("are read as" in note for note in table.attrs["notes"]) == (doubtful and not spaced and not arguments)


@pytest.mark.parametrize(
    ("cells", "name", "dates"),
    [
        (["31.12.2024", "01.01.2025"], "t", ["2024-12-31", "2025-01-01"]),
        (["02.01.2024", "03.01.2024"], "t", ["2024-01-02", "2024-01-03"]),
        (["31/12/2024 23:00", "01/01/2025 1:30"], "t", ["2024-12-31T23:00", "2025-01-01T01:30"]),
        (["12/31/2024", "1/1/2025"], "t", ["2024-12-31", "2025-01-01"]),
        (["201012", "201101"], "yyyymm", ["2010-12-01", "2011-01-01"]),
        (["201052", "201101"], "week", ["2010-12-27", "2011-01-03"]),
        (["20101231", "20110101"], "t", ["2010-12-31", "2011-01-01"]),
        (["2010-W52", "2011-W01"], "t", ["2010-12-27", "2011-01-03"]),
        (["2010Q4", "2011Q1"], "t", ["2010-10-01", "2011-01-01"]),
        (["2010M12", "2011M01"], "t", ["2010-12-01", "2011-01-01"]),
        (["1704067200", "1704070800"], "t", ["2024-01-01", "2024-01-01T01:00"]),
        (["1704067200000", "1704067200250"], "t", ["2024-01-01", "2024-01-01T00:00:00.250"]),
        (["1704067200000000", "1704067201000000"], "t", ["2024-01-01", "2024-01-01T00:00:01"]),
        (["1704067200000000000", "1704067201000000000"], "t", ["2024-01-01", "2024-01-01T00:00:01"]),
        (["2460310.5", "2460311"], "julian day", ["2024-01-01", "2024-01-01T12:00"]),
        (["45292", "45292.5"], "Date", ["2024-01-01", "2024-01-01T12:00"]),
    ],
)
def test_dates_as_files_have_them(tmp_path, cells, name, dates):
    table = written(tmp_path, f"{name},u\n{cells[0]},1\n{cells[1]},2\n", time=name)
    assert list(table.index) == list(pd.to_datetime(dates, format="ISO8601"))


@pytest.mark.parametrize(
    ("cells", "name"),
    [(["45292", "45293"], "t"), (["0", "1"], "date"), (["201013", "201077"], "t"), (["1.5", "2.5"], "t")],
)
def test_numbers_that_are_times_stay_numbers(tmp_path, cells, name):
    table = written(tmp_path, f"{name},u\n{cells[0]},1\n{cells[1]},2\n", time=name)
    assert list(table.index) == [float(cell) for cell in cells]


def test_unix_times_on_the_wall_clock(tmp_path):
    table = written(tmp_path, "t,u\n1719792000,1\n1719795600,2\n", time_zone="Europe/London")
    assert list(table.index) == list(pd.to_datetime(["2024-07-01T01:00", "2024-07-01T02:00"]))


def test_a_date_format_is_followed(tmp_path):
    table = written(tmp_path, "t,u\n05/04/24,1\n06/04/24,2\n", date_format="%d/%m/%y")
    assert list(table.index) == list(pd.to_datetime(["2024-04-05", "2024-04-06"]))


OFFSETS = "t,u\n2024-03-31T00:00+00:00,1\n2024-03-31T02:00+01:00,2\n2024-03-31T03:00+01:00,3\n"


def test_stamps_with_offsets_are_said_and_the_wall_clock_kept_if_asked(tmp_path):
    utc = written(tmp_path, OFFSETS)
    assert [t.hour for t in utc.index] == [0, 1, 2]
    assert "several offsets" in utc.attrs["notes"][0]
    wall = written(tmp_path, OFFSETS, time_zone="Europe/London")
    assert [t.hour for t in wall.index] == [0, 2, 3]
    assert wall.index.tz is None
    one = written(tmp_path, OFFSETS.replace("00:00+00:00", "00:00+01:00"))
    assert [t.hour for t in one.index] == [0, 2, 3]  # its own clock
    assert one.attrs["notes"] == []


def test_a_long_table_is_one_column_an_output(tmp_path):
    text = "t,station,u,remark\n1,north,1.5,a\n1,south,2.5,b\n2,south,3.5,c\n2,south,4.5,d\n4,north,5.5,e\n"
    table = written(tmp_path, text, time="t", id="station", target="u")
    assert list(table.columns) == ["north", "south"]
    assert list(table.index) == [1.0, 2.0, 2.0, 4.0]  # what is there twice is a repeated observation
    np.testing.assert_array_equal(table["south"], [2.5, 3.5, 4.5, np.nan])
    np.testing.assert_array_equal(table["north"], [1.5, np.nan, np.nan, 5.5])
    assert list(written(tmp_path, text, id="station", target="u", outputs=["south"]).columns) == ["south"]


def test_a_transposed_frame_and_periods():
    months = pd.period_range("2020-01", periods=3, freq="M")
    y = pd.DataFrame(np.random.default_rng(0).normal(size=(3, 3)), columns=list("abc"), index=months)
    assert alps.Data(months, y).input_unit == "days"
    with pytest.raises(ValueError, match=r"its columns are dates, .*; pass y.T"):
        alps.Data(months, y.T)


WORKDAYS = pd.bdate_range("2024-01-01", periods=40)  # to Friday, 23 February
HOURS = pd.to_timedelta(np.arange(8, 19), unit="h")
DAYTIME = pd.DatetimeIndex([day + hour for day in pd.date_range("2024-05-01", periods=30) for hour in HOURS])
TRADING = pd.DatetimeIndex([day + hour for day in WORKDAYS for hour in HOURS])
MONTH_ENDS = pd.date_range("2020-01-31", periods=30, freq="ME")
QUARTERS = pd.date_range("2015-03-31", periods=30, freq="QE")


@pytest.mark.parametrize(
    ("index", "forecast", "count", "last"),
    [
        (WORKDAYS, "7d", 5, "2024-03-01"),
        (WORKDAYS, "1y", 260, "2025-02-21"),
        (WORKDAYS, "1d", 1, "2024-02-26"),
        (WORKDAYS.delete([5, 17]), "7d", 5, "2024-03-01"),
        (TRADING, "7d", 55, "2024-03-01T18:00"),
        (TRADING.delete(slice(30, 41)), "4d", 22, "2024-02-27T18:00"),
        (DAYTIME, "2d", 22, "2024-06-01T18:00"),
        (MONTH_ENDS, "1y", 12, "2023-06-30"),
        (MONTH_ENDS.delete([3, 9]), "1y", 12, "2023-06-30"),
        (QUARTERS.delete(4), "1y", 4, "2023-06-30"),
        (pd.date_range("1990-01-01", periods=30, freq="YS"), "5y", 5, "2024-01-01"),
        (pd.date_range("2024-01-01", periods=300, freq="h").delete(slice(30, 40)), "2d", 48, "2024-01-15T11:00"),
        (pd.date_range("2024-01-01", periods=30, freq="W-MON").delete([3]), "4w", 4, "2024-08-19"),
    ],
)
def test_a_forecast_goes_on_in_the_tables_rhythm(index, forecast, count, last):
    table = pd.DataFrame({"u": np.random.default_rng(0).normal(size=len(index))}, index=index)
    data = alps.split_table(table, forecast=forecast)
    stamps = pd.DatetimeIndex(data.dates[data.split[:, 0] == "forecast"])
    assert (len(stamps), stamps[-1]) == (count, pd.Timestamp(last))
    assert (stamps > index[-1]).all()
    assert stamps.is_monotonic_increasing


def test_what_is_held_out_is_calendar_time():
    table = pd.DataFrame({"u": np.arange(40.0)}, index=WORKDAYS)
    assert (alps.split_table(table, hold_out="14d").split == "test").sum() == 10
    months = pd.DataFrame({"u": np.arange(30.0)}, index=MONTH_ENDS)
    assert (alps.split_table(months, hold_out="1y").split == "test").sum() == 12


def spiky(tmp_path, places):
    rng = np.random.default_rng(0)
    hours = np.arange(200.0)
    u = np.sin(2 * np.pi * hours / 24) + 0.3 * rng.normal(size=200)
    u[places] += 6.0
    pd.DataFrame({"t": hours, "u": u, "v": rng.normal(size=200)}).to_csv(tmp_path / "spiky.csv", index=False)
    return tmp_path / "spiky.csv", u


def test_spikes_are_listed_and_dropped_if_asked(tmp_path):
    path, u = spiky(tmp_path, [3, 77, 150])
    table = alps.read_table(path)
    found = table.attrs["spikes"]
    assert list(found.time) == [3.0, 77.0, 150.0]
    assert set(found.output) == {"u"}
    np.testing.assert_allclose(found.value, u[[3, 77, 150]])
    assert (found.robust_sds > 8).all()
    assert not table.isna().any(axis=None)
    dropped = alps.read_table(path, drop_spikes=True)
    assert list(np.flatnonzero(dropped["u"].isna())) == [3, 77, 150]
    assert not dropped["v"].isna().any()
    assert len(dropped.attrs["spikes"]) == 3


def found_in(y):
    return spikes(pd.DataFrame({"y": np.asarray(y, float)})).time.tolist()


@pytest.mark.parametrize("period", [12, 24, 168])
def test_spikes_on_a_fast_cycle(period):
    """As large as two of its amplitudes, wherever they sit in it; and none without."""
    rng = np.random.default_rng(period)
    clean = np.sin(2 * np.pi * np.arange(480) / period) + 0.02 * rng.normal(size=480)
    assert found_in(clean) == []
    for place in range(100, 124, 5):
        y = clean.copy()
        y[place] += 5.0
        assert found_in(y) == [place]


def test_what_comes_in_step_is_no_spike():
    """A pulse at one hour of each day is a process; spikes at random are none."""
    rng = np.random.default_rng(0)
    pulses, at_random = (0.1 * rng.normal(size=672) for _ in range(2))
    pulses[8::24] += 5.0
    places = np.sort(rng.choice(672, 20, replace=False))
    at_random[places] += 5.0
    assert found_in(pulses) == []
    assert len(set(found_in(at_random)) & set(places)) >= 19
    assert set(found_in(at_random)) <= set(places)


def test_a_number_for_missing_among_rounded_and_held_values():
    rng = np.random.default_rng(1)
    for y in (np.round(20 + 0.3 * rng.normal(size=500)), np.repeat(rng.normal(size=125), 4)):
        assert found_in(y) == []
        y[77] = 9999.0
        assert found_in(y) == [77]


def test_the_upper_tail_of_a_positive_output_is_no_spike():
    """Nor is rain; a spike of its logarithm is one."""
    rng = np.random.default_rng(2)
    assert found_in(np.exp(rng.normal(size=1000))) == []
    assert found_in(np.where(rng.uniform(size=1000) < 0.2, rng.exponential(5.0, size=1000), 0.0)) == []
    y = 70 + 3 * rng.normal(size=1000)
    y[500] = 120.0
    assert found_in(y) == [500]


def test_rows_that_are_there_twice_are_left_out(tmp_path):
    """As where exports overlap; rows of one time that differ stay, as repeated observations."""
    path = write(tmp_path, "t,u,v\n0,1,2\n1,3,4\n1,3,4\n2,5,6\n2,5,7\n3,1,1\n")
    table = alps.read_table(path)
    assert table.index.tolist() == [0, 1, 2, 2, 3]
    assert any("1 row says what another says and is left out" in note for note in table.attrs["notes"])


@pytest.mark.parametrize("seed", range(5))
def test_a_steep_cycle_has_no_spikes(seed):
    """On a slope each cell is its neighbours' median, which says too little of the noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(480.0)
    walk = np.zeros(480)
    for n in range(1, 480):
        walk[n] = 0.9 * walk[n - 1] + 0.4 * rng.normal()
    y = 4 * np.sin(2 * np.pi * t / 24) + walk + 0.3 * rng.normal(size=480)
    assert spikes(pd.DataFrame({"y": y})).empty
    y[[100, 333]] += [9.0, -9.0]
    assert spikes(pd.DataFrame({"y": y})).time.tolist() == [100, 333]


def test_what_isnt_a_spike(tmp_path):
    """Gaussian noise, red noise, a step, and what is out all the time."""
    assert len(alps.read_table(spiky(tmp_path, [])[0]).attrs["spikes"]) == 0
    rng = np.random.default_rng(1)
    table = pd.DataFrame({"noise": rng.normal(size=2000), "red": lfilter([1.0], [1.0, -0.95], rng.normal(size=2000))})
    table["step"] = rng.normal(size=2000) + 20.0 * (np.arange(2000) > 900)
    table["storms"] = rng.normal(size=2000) * np.where(np.arange(2000) % 10 == 0, 50.0, 1.0)
    assert set(spikes(table).output) <= {"step"}
    assert len(spikes(table)) <= 4


@pytest.mark.parametrize("stamps", [["2024M01", "2024M02", "2024M03"], ["202401", "202402", "202403"], ["1", "2", "3"]])
def test_a_zone_for_times_without_offsets_is_refused(stamps, tmp_path):
    """Months, and numbers, are on no clock."""
    path = write(tmp_path, "date,u\n" + "".join(f"{stamp},{k}\n" for k, stamp in enumerate(stamps)))
    with pytest.raises(ValueError, match="time_zone: column 'date' has no stamps with an offset"):
        alps.read_table(path, time="date", time_zone="Europe/London")
