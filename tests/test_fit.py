"""``alps-ppl fit``: one problem, made once; the model file says the same; no text of the user's runs or is lost."""

import ast
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from arviz_stats.base import array_stats
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import FINISHED, MODEL_FILE
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.app import run, source
from alps_ppl.app.compose import compose, gibbs_settings, svi_settings
from alps_ppl.app.model_file import load_model_file
from alps_ppl.app.report import notes
from alps_ppl.model.as_json import describe
from alps_ppl.tables.composing import noise_prior
from alps_ppl.tables.grammar import parse

ROOT = Path(__file__).parents[1]
LATENTS = ["--latent", "daily = linear_periodic(24h)", "--latent", "slow = 0.5 * matern12(2d)"]
PAPER = [*LATENTS, "--paper-model"]


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
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
    path = tmp_path_factory.mktemp("csv") / "stations.csv"
    table.sample(frac=1, random_state=0).to_csv(path, index=False)
    return path


def same(problem, other):
    """Whether two problems are of the same data, model and settings, to the bit."""
    assert describe(problem.model) == describe(other.model)
    assert problem.data.outputs == other.data.outputs
    for name in ("inputs", "y", "split"):
        np.testing.assert_array_equal(getattr(problem.data, name), getattr(other.data, name))
    assert repr((problem.svi, problem.gibbs)) == repr((other.svi, other.gibbs))
    return True


def written(problem, path):
    path.write_text(problem.source, encoding="utf-8")
    return load_model_file(path)


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """The table of ``runs.MODEL_FILE`` as a file, with a column of text."""
    folder = tmp_path_factory.mktemp("days")
    (folder / "seven.py").write_text(MODEL_FILE)
    data = load_model_file(folder / "seven.py").data
    table = pd.DataFrame(data.y, data.dates, data.outputs).rename_axis("date").assign(weather="fair")
    table.to_csv(folder / "days.csv")
    return folder / "days.csv"


def test_fit_makes_everything_once_and_writes_the_run(call, days, tmp_path, monkeypatch):
    """The file is read once, ``Data`` and ``ALPS`` are made once, and data are checked at most six times."""
    counts = dict.fromkeys(("read", "data", "model", "check"), 0)

    def count(name, owner, attribute):
        original = getattr(owner, attribute)

        def counted(*args, **kwargs):
            counts[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, counted)

    count("read", pd, "read_csv")
    count("data", alps.Data, "__init__")
    count("model", alps.ALPS, "__init__")
    count("check", alps.ALPS, "check")
    out, saved = tmp_path / "out", tmp_path / "models" / "stations.py"
    sizes = ["SVI.num_inducing=6", "SVI.num_steps=1500", "GIBBS.num_warmup=200", "GIBBS.num_chains=2"]
    status, printed, error = call(
        "fit", days, "--time", "date", "--latent", "week = linear_periodic(6.8d)", "--latent",
        "5 d = linear_periodic(5d)", "--paper-model", "--learn", "week.scale = 6d..8d", "--forecast", "3d",
        "--hold-out", "6d", "--out", out, "--save-model-file", saved,
        *(word for size in sizes for word in ("--set", size)), *FINISHED,
    )  # fmt: skip
    assert status == 0, error
    assert counts["read"] == counts["data"] == counts["model"] == 1, counts
    assert counts["check"] <= 6, counts
    assert "Column 'weather' is left out: most of its cells are no numbers, such as 'fair' in row 1." in printed
    assert (out / "model.py").read_text() == saved.read_text()
    assert {path.name for path in out.iterdir()} == {
        "model.py", "inclusion.csv", "predictions.csv", "scores.csv", "summary.json", "comparison.csv",
        "variance_shares.csv", "cycles.csv", "innovations.csv", "posterior_svi.nc", "posterior_gibbs.nc", "figures",
    }  # fmt: skip
    assert (out / "figures" / "reconstruction.png").stat().st_size > 0

    predictions = pd.read_csv(out / "predictions.csv")
    forecast = predictions[(predictions.split == "forecast") & (predictions.engine == "gibbs")]
    assert list(forecast.date.unique()) == ["2026-02-10", "2026-02-11", "2026-02-12"]
    assert forecast.observed.isna().all()
    assert np.isfinite(forecast[["mean", "sd", "lower", "upper"]]).all(axis=None)
    assert (predictions.split == "test").sum() == 2 * 2 * 6
    on = pd.read_csv(out / "inclusion.csv").set_index(["latent", "engine"]).probability
    assert on["week", "gibbs"] > 0.9


def test_the_model_file_gives_the_same_problem(csv, tmp_path):
    options = {
        "latents": ["daily = linear_periodic(1d)", "slow=2 * matern12(2d) + linear()", "p = periodic(7h) * rbf(1d)"],
        "hold_out": "10%",
        "forecast": "6h",
        "settings": {"SVI": {"num_restarts": 2}, "GIBBS": {"moves": "paper"}},
    }
    for more in (
        {},
        {"noise": "0.2", "expected_active": 1},
        {"learn": ["daily.scale = 20h..1.2d"], "paper_model": True},
    ):
        problem, _ = compose(csv, **options, **more)
        assert same(problem, written(problem, tmp_path / "model.py"))
    with_memory, _ = compose(csv, **options)
    assert with_memory.model.copy_of == ("daily", "daily", "slow", "p")
    assert 'copies={"daily": 2}' in with_memory.source
    assert "private_memory=alps.private_memory(data.train_inputs)" in with_memory.source
    ranges = ["c = linear_periodic(20h..28h)", "memory x 3 = 2 * matern12(1h..4d)"]
    with_ranges, _ = compose(csv, latents=ranges)
    assert same(with_ranges, written(with_ranges, tmp_path / "ranges.py"))
    assert with_ranges.model.copy_of == ("c", "c", "memory 1", "memory 2", "memory 3")
    assert with_ranges.model.scale_sites == ("c.scale", *(f"memory {k}.kernel2.scale" for k in (1, 2, 3)))
    waves = ["a = 2*linear_periodic(24h)", "b = linear_periodic(5h) + linear_periodic(7h)", "c = periodic(9h)"]
    with_waves, notes = compose(csv, latents=waves)
    assert with_waves.model.copy_of == ("a", "a", "b", "b", "c")
    assert [note for note in notes if "one shape in all outputs" in note] == [notes[-1]]
    model, t = problem.model, problem.data.train_inputs
    assert model.covariance_bounds == {"daily": {"scale": (20.0, 28.8)}}
    assert isinstance(model.noise_variance, dist.InverseGamma)
    assert (problem.svi["num_restarts"], problem.gibbs["moves"]) == (2, "paper")
    z = (t - t.mean()) / t.std()
    expected = 2 * kernels.Exp(scale=48.0)(t, t) + np.outer(z, z)
    np.testing.assert_allclose(model.covariances[1](t, t), expected, atol=1e-9)
    assert "# linear_periodic(1d)\n" in problem.source


# Names that end a string, a comment or a line for Python, an editor or a shell, and one of bytes that aren't text.
EVIL = [
    '"""; open("x", "w"); """', "'''; open('x', 'w'); '''", "\\", '\\"', "a\nopen('x', 'w')\n", "a\ropen('x', 'w')#",
    "a\u2028b\x85c\x0bd\x0ce\x1cf", "\u202eb", "{}", "{file}", "value_0", "remark_1", "${x}", "`touch x`; touch x",
    "%s", "# coding: utf-7", "+ADw-", "<script>", os.fsdecode(b"caf\xe9"),
]  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_a_name_never_runs(csv, tmp_path, monkeypatch, name):
    """As a file's, a column's and a latent's name: the model file loads, gives the same, and runs nothing of it."""
    monkeypatch.chdir(tmp_path)
    try:
        file = Path(shutil.copy(csv, tmp_path / f"{name.replace('/', '-')}.csv"))
    except OSError:
        pytest.skip("no such file name here")
    if name.isprintable():  # else no column's
        pd.read_csv(csv).rename(columns={"north": name}).to_csv(file, index=False)
    latent = name.replace("=", "-")
    problem, _ = compose(file, latents=[f"{latent} = rbf(1d)"])
    assert same(problem, written(problem, tmp_path / "model.py"))
    assert problem.model.latents == (latent.strip(),)
    assert not (tmp_path / "x").exists()


TEXT = st.text(st.characters(exclude_categories=[]), max_size=30) | st.sampled_from(EVIL)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
SETTINGS = st.dictionaries(TEXT, TEXT | NUMBERS | st.lists(TEXT | NUMBERS, max_size=3) | st.tuples(TEXT), max_size=3)


def model_file(file, columns, time, latents, remark, svi):
    return source.model_file(
        file,
        columns,
        reading={"time": time},
        splitting={"time_unit": time},
        unit="h",
        latents=[(name, "alps.linear(0.0, 1.0)", remark) for name in latents],
        arguments={"inclusion_prob": 0.5, "covariance_bounds": {latents[0]: {time: (1.0, 2.0)}}},
        noise=(3.5, 0.25),
        svi=svi,
        gibbs=svi,
    )


class Texts(ast.NodeVisitor):
    """Everything of a tree but docstrings: its literals, outermost first, and its shape without them."""

    def __init__(self, text):
        self.literals, self.shape = [], []
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.FunctionDef)):
                node.body = node.body[1:] if ast.get_docstring(node) else node.body
        self.visit(tree)

    def generic_visit(self, node):
        try:
            self.literals.append(ast.literal_eval(node))
            self.shape.append("literal")
        except (ValueError, TypeError):
            self.shape.append((type(node).__name__, getattr(node, "id", None), getattr(node, "attr", None)))
            super().generic_visit(node)


@given(TEXT, st.lists(TEXT, min_size=1, max_size=4), TEXT, st.lists(TEXT, min_size=1, max_size=3), TEXT, SETTINGS)
@settings(max_examples=80, deadline=None)
def test_any_text_is_a_literal_of_the_model_file(file, columns, time, latents, remark, svi):
    """The file that it is of harmless names, with these literals in their places and nothing else."""
    found = Texts(model_file(file, columns, time, latents, remark, svi))
    harmless = Texts(model_file("f", ["c"] * len(columns), "t", ["l"] * len(latents), "r", {}))
    assert found.shape == harmless.shape
    for text in (file, columns, time, *latents, svi):
        assert any(repr(text) == repr(one) for one in found.literals)


def test_what_isnt_meant_is_refused(monkeypatch):
    """Values without a literal; and a quoting that forgets something is found before the text is used."""
    for value in (float("inf"), [float("nan")], object(), {"a": ...}):
        with pytest.raises(ValueError, match="can write as literals"):
            model_file("f", ["c"], "t", ["l"], "r", {"setting": value})
    monkeypatch.setattr(source, "literal", lambda value: f'"{value}"')
    for name in ('"); open("x", "w"); ("', "\\x41", "a\nb", '"', "\udce9"):
        with pytest.raises(ValueError, match="can write as literals"):
            model_file(name, ["c"], "t", ["l"], "r", {})
    monkeypatch.undo()
    monkeypatch.setattr(source, "comment", lambda text: text)
    with pytest.raises(ValueError, match="can write as literals"):
        model_file("f", ["c"], "t", ["l"], "r\nopen('x', 'w'): 1,", {})


@given(st.text("rbflinear(),.*+ 0123456789dhmatn52periodic_eE-\n", max_size=40) | st.just("2*rbf(1d)+linear()"))
@settings(max_examples=150, deadline=None)
def test_a_covariances_source_is_calls_and_numbers(text):
    """The one part of the model file that isn't a literal: the grammar writes it, of nothing but this."""
    try:
        parsed = parse(text, unit="hours", inputs=np.arange(9.0))
    except ValueError:
        return
    for node in ast.walk(ast.parse(parsed.source, mode="eval")):
        assert isinstance(
            node,
            (ast.Expression, ast.Call, ast.Attribute, ast.Name, ast.Load, ast.keyword, ast.Constant, ast.BinOp,
             ast.Add, ast.Mult, ast.UnaryOp, ast.USub),
        )  # fmt: skip
        assert not isinstance(node, ast.Name) or node.id in ("alps", "kernels")
        assert not isinstance(node, ast.Constant) or isinstance(node.value, (int, float))


def test_names_that_no_file_can_hold_are_found_before_the_fit(csv):
    for name in (os.fsdecode(b"caf\xe9"), "a\0b"):
        problem, _ = compose(csv, latents=[f"{name} = rbf(1d)"])
        with pytest.raises(ValueError, match="UTF-8"):
            problem.check(["svi"])


def test_no_file_is_overwritten(call, csv, tmp_path, monkeypatch):
    """Not the data, and not a model file that was changed since."""
    monkeypatch.setattr(run, "run", lambda *_, **__: None)
    before = csv.read_bytes()
    status, _, error = call("fit", csv, *LATENTS, "--save-model-file", csv, "--out", tmp_path / "out")
    assert (status, csv.read_bytes()) == (2, before)
    assert "--save-model-file: expected the name of a Python file (.py)" in error
    assert not (tmp_path / "out").exists()
    mine = tmp_path / "mine.py"
    for text, kept in (("# mine", "mine.before.py"), ("# mine again", "mine.before2.py")):
        mine.write_text(text)
        assert call("fit", csv, *LATENTS, "--save-model-file", mine, "--out", tmp_path / "out")[0] == 0
        assert (tmp_path / kept).read_text() == text
        assert "alps.read_table" in mine.read_text()


def test_constant_columns_and_one_row(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("t,u,k\n" + "".join(f"{t},{t % 3},{4}\n" for t in range(12)))
    problem, notes = compose(path, latents=["slow = rbf(4)"])
    assert "Column 'k' is left out: it is constant." in notes
    assert problem.data.outputs == ["u"]
    problem, notes = compose(path, latents=["slow = rbf(4)"], outputs=["u", "k"])
    assert notes == ["Column 'k' has no two different values to fit: it says nothing on the processes."]
    assert problem.data.outputs == ["u", "k"]
    path.write_text("t,u\n1,2\n")
    with pytest.raises(ValueError, match="two rows"):
        compose(path, latents=["slow = rbf(4)"])


def test_settings_are_sized_to_the_rows():
    rough, smooth = parse("matern12(10)"), parse("linear_periodic(3)")

    def sized(num_rows, *covariances):
        data = alps.Data(np.arange(float(num_rows)), np.zeros((num_rows, 1)))
        return svi_settings(data, covariances), gibbs_settings(data)

    assert sized(100, rough, smooth)[0] == {"num_inducing": 30, "num_steps": 4_000}
    assert sized(100, smooth)[0]["num_inducing"] == 15
    assert sized(9, rough)[0]["num_inducing"] == 9
    assert sized(200, rough)[0]["num_inducing"] == 60
    assert sized(1_000, rough)[0] == {"num_inducing": 40, "num_steps": 4_000, "batch_size": 256}
    svi, gibbs = sized(3_000, rough)
    assert svi == {"num_inducing": 40, "num_steps": 3_000, "batch_size": 128}
    assert gibbs == {"num_warmup": 150, "num_samples": 150, "num_chains": 4}


def test_svi_of_memories_takes_all_times():
    data = alps.Data(np.arange(1_000.0), np.zeros((1_000, 1)))
    assert "batch_size" not in svi_settings(data, [parse("matern12(10)")], has_memory=True)


def test_the_range_of_a_step_may_be_dates(tmp_path):
    dates = pd.date_range("2024-03-01", periods=60, freq="D", name="date")
    path = tmp_path / "daily.csv"
    pd.DataFrame({"u": np.sin(np.arange(60.0))}, dates).to_csv(path)
    by_date, _ = compose(path, latents=["shift = step(2024-03-11..2024-04-10)"])
    by_duration, _ = compose(path, latents=["shift = step(10d..40d)"])
    one, other = (problem.model.unknown_scales["shift"].grid.values for problem in (by_date, by_duration))
    np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match=r"latent 'shift': times: expected .*got '2024-15-10'"):
        compose(path, latents=["shift = step(2024-03-11..2024-15-10)"])
    path.write_text("t,u\n" + "".join(f"{t},{t % 3}\n" for t in range(40)))
    with pytest.raises(ValueError, match="latent 'shift': 2024-03-11 is a date, but the table's times are numbers"):
        compose(path, latents=["shift = step(2024-03-11..2024-04-10)"])


def test_decoys_and_auto_say_what_was_chosen(csv):
    _, notes = compose(csv, latents=["daily = linear_periodic(24h)"], num_decoys=1)
    assert any(note.startswith("Process 'decoy 17 h', linear_periodic(17h): no harmonic") for note in notes)
    problem, notes = compose(csv, latents=["auto"])
    assert any(note.startswith("Process '24 h', linear_periodic(24h): its peak is") for note in notes)
    assert '"24 h": alps.linear_periodic(24.0)' in problem.source
    problem, notes = compose(csv, latents=["auto", "daily = linear_periodic(1d)"])
    assert "Process '24 h', linear_periodic(24h), is left out: 'daily' is the same." in notes
    assert problem.source.count("alps.linear_periodic(24.0)") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "latent: expected at least one"),
        (["--latent", "daily"], "NAME = COVARIANCE"),
        (["--latent", "daily = rbf(4q) + foo"], "latent 'daily': covariance 'rbf(4q) + foo': at character 5: unknown"),
        (["--latent", "a = rbf(1d)", "--latent", "a = rbf(2d)"], "names that differ"),
        ([*LATENTS, "--time", "when"], "the column of times, 'when'"),
        ([*LATENTS, "--outputs", "north,weather"], "numbers in column 'weather'"),
        ([*LATENTS, "--noise", "low"], "noise: expected 'learnt'"),
        ([*LATENTS, "--noise", "-1"], "noise_variance: expected"),
        ([*LATENTS, "--noise", "nan"], "noise_variance: expected"),
        ([*LATENTS, "--expected-active", "7"], "expected_active: expected"),
        ([*LATENTS, "--learn", "daily.scale=20h..28h", "--engine", "gibbs"], "--learn: only SVI"),
        ([*PAPER, "--learn", "daily.scale"], "learn 'daily.scale': expected NAME.PARAMETER"),
        ([*PAPER, "--learn", "daily.scale = 20h-28h"], "'..' is missing"),
        ([*PAPER, "--learn", "day.scale = 20h..28h"], "with a name of daily, slow"),
        ([*PAPER, "--learn", "daily.period = 20h..28h"], "one of its covariance's parameters"),
        ([*PAPER, "--learn", "daily.scale=20h..28h", "--engine", "gibbs"], "--learn: only SVI"),
        ([*LATENTS, "--forecast", "1h"], "forecast: expected from one step"),
        ([*LATENTS, "--hold-out", "9d"], "hold_out: expected some of the 48 rows"),
        ([*LATENTS, "--time-unit", "years"], "time-unit: the times are dates"),
        ([*LATENTS, "--encoding", "klingon"], "unknown encoding: klingon; save it as UTF-8, or name its encoding"),
        (["--latent", "memory x 0 = rbf(1d)"], "latent 'memory x 0': expected from 1 to 20 processes"),
        (["--latent", "memory x 2.5 = rbf(1d)"], "latent 'memory x 2.5': expected from 1 to 20 processes"),
        (["--latent", "a = rbf(1h..)"], "at character 7: expected a range as low..high"),
        (["--latent", "memory x 99 = rbf(1d)"], "latent 'memory x 99': expected from 1 to 20 processes"),
        (["--latent", "a = linear_periodic(1min..9d)"], "different values over these times; narrow it"),
        (
            ["--latent", "a = rbf(2d..1d)"],
            "latent 'a': covariance 'rbf(2d..1d)': at character 5: expected a range from",
        ),
        ([*LATENTS, "--engine", "nuts"], "--engine: expected one or more of svi, vb and gibbs"),
        ([*LATENTS, "--set", "SVI.steps=3"], "SVI: unknown setting(s) steps"),
        ([*PAPER, "--set", "SVI.batch_size=49"], "batch_size: expected at most the 48 times"),
        ([*LATENTS, "--engine", "svi", "--set", "SVI.likelihood=analytic"], "likelihood: with private_memory"),
        ([*LATENTS, "--set", "GIBBS.num_chains=0"], "num_chains: expected a positive whole number"),
        ([*LATENTS, "--set", "GIBBS.moves=fast"], "moves: expected"),
        ([*PAPER, "--learn", "daily.scale=20h..28h", "--set", "GIBBS.thinning=9_999"], "thinning: expected at most"),
        ([*LATENTS, "--out", __file__], "--out: can't write"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(call, csv, tmp_path, arguments, message):
    status, _, error = call("fit", csv, "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()
    assert (status, error.count("\n")) == (2, 1), error
    assert error.startswith("alps-ppl: ")
    assert message in error


def test_no_such_file(call, tmp_path):
    status, _, error = call("fit", tmp_path / "none.csv", "--out", tmp_path / "out", "--latent", "auto")
    assert (status, error.count("\n")) == (2, 1)
    assert "FILE: expected a CSV or Parquet file, got" in error
    assert "none.csv': No such file or directory" in error


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["the command's", "one that counts for nothing"])
def test_chains_agree_under_a_noise_prior_that_counts(prior):
    """Ten currencies, 24 chains: the log joint's R-hat is below 1.1 only where the noise can't fall to nothing."""
    table = alps.read_table(ROOT / "models" / "data" / "fed_fx_monthly_1994_2010.csv", time="date")
    data = alps.split_table(table, hold_out="10%")
    latents = {"slow": kernels.Exp(scale=jnp.asarray(3_650.0)), "rough": kernels.Exp(scale=jnp.asarray(365.0))}
    concentration, rate = noise_prior(data) if prior == "the command's" else (2.0, 0.1)
    model = alps.ALPS(latents, data.outputs, noise_variance=dist.InverseGamma(concentration, rate))
    lengths = {"num_warmup": 300, "num_samples": 100, "num_chains": 24, "progress_bar": False}
    fit = alps.fit_gibbs(model, data.train_inputs, data.train_y, rng_key=jax.random.key(0), **lengths)
    r_hat = array_stats.rhat(np.asarray(fit.sample_stats["lp"]), chain_axis=0, draw_axis=1)
    assert (r_hat < 1.1) == (concentration > 2)


@pytest.mark.parametrize("keeps", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_spikes_are_missing_unless_they_are_kept(keeps, call, tmp_path):
    """Said in print, in the summary and on the page; the model file reads the same table."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"t": np.arange(60), "u": rng.normal(size=60), "v": rng.normal(size=60)})
    table.loc[30, "u"] = 80.0
    table.to_csv(tmp_path / "table.csv", index=False)
    short = ["--set", "GIBBS.num_warmup=5", "--set", "GIBBS.num_samples=5", "--no-progress", "--paper-model"]
    options = ["--latent", "wave = linear_periodic(7)", "--engine", "gibbs", "--keep-spikes"][: 5 if keeps else 4]
    status, printed, error = call("fit", tmp_path / "table.csv", *options, *short, "--out", tmp_path / "out")
    assert status == 0, error
    assert ("taken for missing" in printed) != keeps
    predictions = pd.read_csv(tmp_path / "out" / "predictions.csv")
    assert (predictions.observed.max() == 80) == keeps
    assert ("drop_spikes" in (tmp_path / "out" / "model.py").read_text()) != keeps
    assert call("report", tmp_path / "out")[0] == 0
    assert ("taken for missing" in (tmp_path / "out" / "report.html").read_text()) != keeps


@pytest.mark.slow
def test_student_noise_fits_spikes_and_lists_them(call, tmp_path):
    """The cells of little weight are in outliers.csv; the model file says the same model; no alarm of heavy tails."""
    rng = np.random.default_rng(0)
    wave = np.sin(2 * np.pi * np.arange(60) / 7)
    table = pd.DataFrame({"t": np.arange(60), "u": wave + 0.3 * rng.normal(size=60), "v": rng.normal(size=60)})
    table.loc[30, "u"] = 25.0
    table.to_csv(tmp_path / "table.csv", index=False)
    short = ["--set", "GIBBS.num_warmup=60", "--set", "GIBBS.num_samples=60", "--no-progress"]
    options = ["--latent", "wave = linear_periodic(7)", "--noise", "student"]
    status, printed, error = call("fit", tmp_path / "table.csv", *options, *short, "--out", tmp_path / "out")
    assert status == 0, error
    assert "Student's noise weighs such less" in printed
    found = pd.read_csv(tmp_path / "out" / "outliers.csv")
    assert list(found.columns) == ["input", "output", "value", "weight"]
    assert (found.input[0], found.output[0], found.value[0]) == (30, "u", 25.0)
    assert "noise_df=4.0" in (tmp_path / "out" / "model.py").read_text()
    assert call("report", tmp_path / "out")[0] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Noise has heavy tails, Student" in page
    assert "its tails are heavy" not in page
    again = ["--out", tmp_path / "again", "--engine", "gibbs", "--no-progress"]
    status, printed, error = call("run", tmp_path / "out" / "model.py", *again)
    assert status == 0, error
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "again" / "outliers.csv"), found, rtol=1e-6)


@pytest.mark.slow
def test_a_preview_is_by_coordinate_ascent_or_a_short_run(call, tmp_path):
    table = pd.DataFrame({"t": np.arange(60), "u": np.sin(2 * np.pi * np.arange(60) / 7)})
    table.u += 0.3 * np.random.default_rng(0).normal(size=60)
    table.to_csv(tmp_path / "table.csv", index=False)
    options = ["--latent", "wave = linear_periodic(7)", "--latent", "odd = linear_periodic(11)", "--no-progress"]
    out = tmp_path / "out"
    status, _, error = call("fit", tmp_path / "table.csv", *options, "--preview", "--out", out)
    assert status == 0, error
    summary = json.loads((out / "summary.json").read_text())
    assert summary["vb"]["elbo"] < 0
    assert (out / "posterior_vb.nc").exists()
    inclusion = pd.read_csv(out / "inclusion.csv").set_index("latent").probability
    assert inclusion["wave"] > 0.99
    assert call("report", out)[0] == 0
    assert "VB&#39;s answer alone" in (out / "report.html").read_text()
    assert call("predict", out, "--horizon", "5")[0] == 0

    options += ["--latent", "rough = matern12(2..20)"]
    status, printed, error = call("fit", tmp_path / "table.csv", *options, "--preview", "--out", out)
    assert status == 0, error
    assert "a short run of the sampler: coordinate ascent takes no unknown scales" in printed
    assert "Gibbs: 2 chains of 100 + 100 sweeps" in printed
    assert pd.read_csv(out / "inclusion.csv").set_index("latent").probability["wave"] > 0.99

    status, _, error = call("fit", tmp_path / "table.csv", *options, "--preview", "--engine", "svi", "--out", out)
    assert status == 2
    assert "--preview: it chooses the engine" in error


def test_the_page_says_where_tails_are_heavy():
    """Of 300 fitted cells three beyond four sds: normal noise leaves .02. Two may be chance."""
    sds = np.zeros(300)

    def notes_of(far):
        observed = np.where(np.arange(300) < far, 5.0, sds)
        cells = pd.DataFrame({"engine": "gibbs", "split": "train", "observed": observed, "mean": 0.0, "sd": 1.0})
        return notes.tails_note(SimpleNamespace(predictions=cells, summary={"data": {}}), "gibbs")

    assert "--noise student" in notes_of(3)[0].text
    assert notes_of(2) == []


@pytest.mark.parametrize(
    ("beside", "is_said"),
    [
        ([], True),
        (["wave = linear_periodic(7)", "rough = matern32(3)"], True),
        (["wave = linear_periodic(6..40)"], True),
        (["trend = linear()"], False),
        (["slow = random_walk()"], False),
        (["memory = matern12(1..40)"], False),
    ],
)
def test_a_shift_alone_may_be_a_drift(tmp_path, beside, is_said):
    """Nothing slow is offered beside it."""
    pd.DataFrame({"t": range(120), "u": np.random.default_rng(0).normal(size=120)}).to_csv(tmp_path / "t.csv")
    _, said = compose(tmp_path / "t.csv", time="t", latents=["shift = step()", *beside])
    assert any("a drift looks like a shift" in note for note in said) == is_said
