"""Many tables: the same numbers whoever fits them, a row for what fails, and a run that goes on."""

import json
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import alps_ppl as alps
from alps_ppl.app import many
from alps_ppl.app.kept_rows import ROWS

KEY = jax.random.key(3)
QUIET = {"rng_key": KEY, "progress_bar": False}


def model(data):
    """What other processes import."""
    latents = {"daily": alps.linear_periodic(24.0), "odd": alps.linear_periodic(31.0)}
    return alps.ALPS(latents, data.outputs, noise_variance=dist.InverseGamma(2.0, 0.2))


def tables(number=4):
    """Every other one has the daily cycle; the rows differ by a few, and the last has no numbers."""
    found = {}
    for k in range(number):
        rng = np.random.default_rng(k)
        t = np.arange(96.0 + k)
        y = (k % 2) * np.sin(2 * np.pi * t / 24)[:, None] * [1.0, -2.0] + 0.5 * rng.normal(size=(len(t), 2))
        y[3] = np.nan
        found[f"table {k}"] = pd.DataFrame(y, t, ["u", "v"])
    return found | {"empty": pd.DataFrame({"u": [np.nan, np.nan]})}


def numbers(table):
    return table.drop(columns="seconds")


@pytest.fixture(scope="module")
def here():
    return alps.fit_many(tables(), model, num_workers=0, **QUIET)


def test_a_row_for_each_table_and_process(here):
    fitted = here[here.error == ""]
    assert list(here.columns) == many.COLUMNS
    assert list(fitted.latent) == ["daily", "odd"] * 4
    daily = fitted[fitted.latent == "daily"].probability
    assert (daily.iloc[1::2] > 0.99).all()
    assert (daily.iloc[::2] < 0.9).all()
    assert list(fitted.times) == [95, 95, 96, 96, 97, 97, 98, 98]
    failed = here[here.error != ""]
    assert list(failed.table) == ["empty"]
    assert "nothing to fit" in failed.error.iloc[0]


@pytest.mark.slow
def test_it_is_the_fit_alone(here):
    name, table = list(tables().items())[1]
    data = alps.Data(table.index, table)
    key = jax.random.fold_in(KEY, many._number_of(name))
    alone = alps.fit_vb(model(data), data.train_inputs, data.train_y, rng_key=key, progress_bar=False)
    found = here[here.table == name]
    np.testing.assert_allclose(found.probability, alone.inclusion_prob, rtol=1e-12)
    assert (found.elbo == alone.elbo).all()


def test_threads_give_the_same_numbers(here):
    with ThreadPoolExecutor(2) as executor:
        other = alps.fit_many(tables(), model, executor=executor, **QUIET)
    pd.testing.assert_frame_equal(numbers(other), numbers(here))


@pytest.mark.slow
def test_so_do_processes(here):
    other = alps.fit_many(tables(), model, num_workers=2, **QUIET)
    pd.testing.assert_frame_equal(numbers(other), numbers(here))


@pytest.mark.slow
def test_so_does_dask(here):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        other = alps.fit_many(tables(), model, executor=client.get_executor(), **QUIET)
    pd.testing.assert_frame_equal(numbers(other), numbers(here))


def counted(monkeypatch):
    """The names of tables that are fitted from here on."""
    fitted = []
    right = many.fit_some

    def counting(make, engine, settings, key, x64, items):
        fitted.extend(name for name, _ in items)
        return right(make, engine, settings, key, x64, items)

    monkeypatch.setattr(many, "fit_some", counting)
    return fitted


def test_a_run_that_was_killed_goes_on(here, tmp_path, monkeypatch):
    """What is whole in the file is kept, a half line isn't; no finished table is fitted again, but what failed is."""
    first = {name: table for name, table in tables().items() if name in ("table 0", "table 1", "empty")}
    alps.fit_many(first, model, num_workers=0, folder=tmp_path, **QUIET)
    path = tmp_path / ROWS
    path.write_text(path.read_text() + '{"table": "table 2", "of": "')
    fitted = counted(monkeypatch)
    again = alps.fit_many(tables(), model, num_workers=0, folder=tmp_path, **QUIET)
    assert fitted == ["table 2", "table 3", "empty"]
    pd.testing.assert_frame_equal(numbers(again), numbers(here), check_dtype=False)
    assert all(json.loads(line) for line in path.read_text().splitlines())


def other_model(data):
    latents = {"weekly": alps.linear_periodic(48.0)}
    return alps.ALPS(latents, data.outputs, noise_variance=dist.InverseGamma(2.0, 0.2))


def test_another_question_is_asked_anew(tmp_path, monkeypatch):
    """Rows of another model, other settings, another key or a changed table don't count."""
    some = dict(list(tables().items())[:2])
    alps.fit_many(some, model, num_workers=0, folder=tmp_path, **QUIET)
    fitted = counted(monkeypatch)
    alps.fit_many(some, model, num_workers=0, folder=tmp_path, **QUIET)
    assert fitted == []
    some["table 1"] = 2 * some["table 1"]
    alps.fit_many(some, model, num_workers=0, folder=tmp_path, **QUIET)
    assert fitted == ["table 1"]
    alps.fit_many(some, model, num_workers=0, folder=tmp_path, num_starts=1, **QUIET)
    assert fitted[1:] == list(some)
    found = alps.fit_many(some, other_model, num_workers=0, folder=tmp_path, **QUIET)
    assert fitted[3:] == list(some)
    assert set(found.latent) == {"weekly"}


@pytest.mark.slow
def test_by_the_sampler():
    lengths = {"num_warmup": 50, "num_samples": 100, "num_chains": 2}
    some = dict(list(tables().items())[1:3])
    found = alps.fit_many(some, model, engine="gibbs", num_workers=0, **lengths, **QUIET)
    assert found.probability.iloc[0] > 0.99
    assert found.r_hat.notna().any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tables": []}, "tables: expected {name"),
        ({"tables": {}}, "tables: expected {name"),
        ({"model": 3}, "model: expected an ALPS or a function"),
        ({"engine": "svi"}, "engine: expected one of"),
        ({"num_workers": -1}, "num_workers"),
        ({"tables": {"a": np.zeros((3, 1))}}, r"tables\['a'\]: expected a Data or a DataFrame"),
        ({"executor": 3}, "executor: expected one of"),
        ({"foo": 1}, "vb: unknown setting.* foo; known are num_rounds"),
        ({"num_starts": 0}, "num_starts"),
        ({"model": lambda data: None, "num_workers": 1}, "model: expected a module's function"),
    ],
)
def test_what_cannot_be_is_refused(arguments, words):
    given = {"tables": tables(1), "model": model, "num_workers": 0} | arguments
    with pytest.raises((ValueError, TypeError), match=words):
        alps.fit_many(given.pop("tables"), given.pop("model"), **given, **QUIET)


def test_a_function_that_makes_no_model_is_that_tables_error():
    found = alps.fit_many(tables(1), lambda data: None, num_workers=0, **QUIET)
    assert found.error.str.contains("a function that returns an ALPS").iloc[0]


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="folder: can't make"):
        alps.fit_many(tables(1), model, num_workers=0, folder=tmp_path / "file", **QUIET)


def test_another_tables_outputs_are_that_tables_error():
    found = alps.fit_many(tables(1), model(alps.Data([0.0, 1.0], np.zeros((2, 1)))), num_workers=0, **QUIET)
    assert found.error.str.contains("outputs").iloc[0]


def written(folder, number=3):
    for name, table in list(tables(number).items())[:number]:
        table.rename_axis("hour").to_csv(folder / f"{name}.csv")


DAILY = [
    "--latent",
    "daily = linear_periodic(24)",
    "--latent",
    "odd = linear_periodic(31)",
    "--no-progress",
    "--time",
    "hour",
]


def test_the_command(call, tmp_path):
    """Of files by a pattern, one of them broken; and of one long file."""
    written(tmp_path)
    spiky = tables(1)["table 0"]
    spiky.iloc[40, 0] = 99.0
    spiky.rename_axis("hour").to_csv(tmp_path / "table 0.csv")
    (tmp_path / "broken.csv").write_text("hour,u\n1,x\n2,y\n3,z\n")
    out = tmp_path / "out"
    pattern, options = str(tmp_path / "*.csv"), [*DAILY, "--time-unit", "hours", "--workers", "0", "--out", str(out)]
    status, said, error = call("fit-many", pattern, *options)
    assert status == 0, error
    assert "Of 3 fitted tables" in said
    assert "broken: " in said
    table = pd.read_csv(out / "inclusion.csv", keep_default_na=False)
    assert list(table.table.unique()) == ["broken", "table 0", "table 1", "table 2"]
    assert "taken for missing" in table.set_index("table").notes["table 0"].iloc[0]
    assert (table.set_index("table").notes["table 1"] == "").all()
    page = (out / "report.html").read_text()
    assert "<strong>daily</strong> is in 1 of 3 tables" in page
    assert "1 couldn&#39;t be fitted" in page or "1 couldn't be fitted" in page

    parts = [table.rename_axis("hour").reset_index().assign(id=name) for name, table in list(tables(2).items())[:2]]
    long = pd.concat(parts)
    long.assign(id=long.id.where(long.hour > 3)).to_csv(tmp_path / "holes.csv", index=False)
    options = [*DAILY, "--workers", "0", "--out", str(tmp_path / "other")]
    status, _, error = call("fit-many", str(tmp_path / "holes.csv"), "--id", "id", *options)
    assert (status, "got none in line 2" in error) == (2, True)
    long.to_csv(tmp_path / "long.csv", index=False)
    call("fit-many", str(tmp_path / "long.csv"), "--id", "id", *options)
    other = pd.read_csv(tmp_path / "other" / "inclusion.csv")
    assert other.set_index(["table", "latent"]).probability["table 1", "daily"] > 0.99


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.csv"], "isn't a file"),
        (["{}", "--id", "who"], "expected the column 'who'"),
        (["{}", "--noise", "student"], "--noise student: vb doesn't take it"),
        (["{}", "--set", "VB.foo=1"], "unknown setting(s) foo"),
        (["{}", "--set", "GIBBS.num_samples=9"], "expected settings of VB"),
        (["{}", "--id", "hour"], "expected another column than the times'"),
        (["{}", "--outputs", "nothing"], "nothing"),
    ],
)
def test_the_command_refuses(arguments, words, call, tmp_path):
    written(tmp_path, 1)
    given = [argument.format(tmp_path / "table 0.csv") for argument in arguments]
    status, _, error = call("fit-many", *given, *DAILY, "--out", str(tmp_path / "out"))
    assert status == 2
    assert words in error
