"""Large tables: the sums of one pass are those of the whole table, however its rows come and whoever adds them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import row_sums, streaming
from alps_ppl.gibbs.features import assemble
from alps_ppl.gibbs.statistics import statistics

N = 1_500


def table(num_rows: int = N) -> tuple[np.ndarray, np.ndarray]:
    """A daily cycle in two of four outputs, a walk in the third, missing cells, and an output that starts late."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(100.0, 600.0, num_rows))
    y = rng.normal(size=(num_rows, 4))
    y[:, 0] = 40 + 3 * np.sin(2 * np.pi * t / 24) + 0.3 * y[:, 0]
    y[:, 1] = -np.sin(2 * np.pi * t / 24) + 0.3 * y[:, 1]
    y[:, 2] = 1e4 + y[:, 2].cumsum()
    y[rng.random(y.shape) < 0.01] = np.nan
    y[: num_rows // 3, 3] = np.nan
    return t, y


def model(t=None, **changed) -> alps.ALPS:
    covariances = {"day": alps.linear_periodic(24.0), "week": alps.linear_periodic(168.0)}
    covariances |= {"slow": kernels.ExpSquared(150.0)}
    private_memory = None if t is None else alps.private_memory(t, lengthscales=[1.0, 30.0])
    settings = {"noise_variance": dist.InverseGamma(2.0, 0.2), "private_memory": private_memory}
    return alps.ALPS(covariances, **{"outputs": 4} | settings | changed)


def chunks(t, y, *sizes):
    """Chunks of these sizes, the last of them again and again."""
    start, sizes = 0, list(sizes)
    while start < len(t):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        yield t[start : start + size], y[start : start + size]
        start += size


def summed(model, t, y, *sizes, **changed):
    return alps.sum_rows(model, chunks(t, y, *sizes), span=(t.min(), t.max()), progress_bar=False, **changed)


@pytest.mark.filterwarnings("ignore:y. ")  # as they are, the outputs are on another scale than the model's
@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("standardise", [True, False])
def test_the_sums_are_those_of_the_whole_table(has_memory, standardise, monkeypatch):
    monkeypatch.setattr(row_sums, "MOST_ROWS", 300)  # several blocks in a chunk
    t, y = table()
    here = model(t if has_memory else None)
    rows = summed(here, t, y, 1, 0, 700, standardise=standardise)
    np.testing.assert_allclose(rows.loc, np.nanmean(y, 0) if standardise else np.zeros(4), rtol=1e-12)
    np.testing.assert_allclose(rows.scale, np.nanstd(y, 0) if standardise else np.ones(4), rtol=1e-10)
    np.testing.assert_array_equal(rows.num_observed, (~np.isnan(y)).sum(0))

    # The same features at all rows, whose pivots are times without a cell.
    pins = np.concatenate([np.asarray(rows.inputs)[pivots] for pivots in rows.features.pivots])
    ends = N + np.cumsum([0, *map(len, rows.features.pivots)])
    factors = [
        (np.arange(a, b), tril) for a, b, tril in zip(ends[:-1], ends[1:], rows.features.pivot_tril, strict=True)
    ]
    features = assemble(here.covariances, jnp.concatenate([t, pins]), factors, [])
    whole = np.vstack([(y - rows.loc) / rows.scale, np.full((len(pins), 4), np.nan)])
    wanted = statistics(features, jnp.asarray(whole), here.private_memory)
    for found, expected in (
        (rows.stats.gram[rows.stats.pattern], wanted.gram[wanted.pattern]),
        (rows.stats.projection, wanted.projection),
        (rows.stats.sum_squares, wanted.sum_squares),
        (rows.stats.num_observed, wanted.num_observed),
        *(
            [
                (rows.stats.private.gram[:, rows.stats.pattern], wanted.private.gram[:, wanted.pattern]),
                *zip(rows.stats.private[2:], wanted.private[2:], strict=True),
            ]
            if has_memory
            else []
        ),
    ):
        # Sums of terms of both signs: an error is relative to the largest.
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * np.abs(expected).max())


def test_features_are_the_latents():
    """At rows that weren't looked at for them."""
    t, y = table()
    rows = summed(model(), t, y, N)
    gram = np.asarray(rows.features.phi(t[:50]) @ rows.features.phi(t[:50]).T)
    expected = sum(np.asarray(k(t[:50], t[:50])) for k in model().covariances)
    np.testing.assert_allclose(gram, expected, atol=1e-7)


def test_kept_rows_are_spread_evenly_and_end_with_the_last(monkeypatch):
    monkeypatch.setattr(row_sums, "NUM_KEPT", 50)
    monkeypatch.setattr(row_sums, "NUM_LAST", 10)
    t, y = table()
    rows = summed(model(), t, y, 130)
    here = ~np.isnan(rows.y).all(1) & np.isin(rows.inputs, t)
    numbers = np.searchsorted(t, np.asarray(rows.inputs)[here])
    assert 50 < len(numbers) <= 110
    np.testing.assert_array_equal(numbers[-10:], np.arange(N - 10, N))
    assert len(np.unique(np.diff(numbers[:-11]))) == 1
    np.testing.assert_allclose(rows.y[here], ((y - rows.loc) / rows.scale)[numbers], atol=1e-12)


@pytest.mark.slow
def test_fits_of_the_sums(tmp_path):
    """Predictions, shares and files are as of any fit."""
    t, y = table()
    rows = summed(model(), t, y, 400)
    settings = {"rng_key": jax.random.key(0), "progress_bar": False}
    fit = alps.fit_gibbs(model(), rows, num_warmup=50, num_samples=50, num_chains=2, **settings)
    alps.save(fit, tmp_path / "fit.nc")
    by_vb = alps.fit_vb(model(inclusion_prob=0.4), rows, **settings)  # other priors need the same sums
    assert fit.inclusion_prob[0] > 0.99
    assert by_vb.inclusion_prob[0] > 0.99
    loaded = alps.load(tmp_path / "fit.nc")
    for one in (fit, loaded):
        with pytest.raises(ValueError, match="it is of sum_rows' sums"):
            alps.cell_tree(one, integrate_latents=True)
        with pytest.raises(ValueError, match="it is of sum_rows' sums"):
            alps.ArvizWrapper(one, rng_key=settings["rng_key"])
    for one in (fit, by_vb, loaded):
        mean = np.asarray(alps.predict(one, t, include_noise=False)["mean"])[:, :2] * rows.scale[:2] + rows.loc[:2]
        truth = np.sin(2 * np.pi * t / 24)[:, None] * [3, -1] + [40, 0]
        # Two weights by 1,500 cells of noise of sd .3, the first output's sd 2.1 and the noise that "slow" takes up.
        assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.1
        table_ = alps.variance_shares(one).query("latent == 'day'").set_index("output").share
        assert table_["y1"] == pytest.approx(4.5 / (4.5 + 0.09), abs=0.03)


@pytest.mark.slow
def test_a_forecast_with_memories_goes_on_from_the_last_rows(monkeypatch):
    """Of the sums it is that of the whole table, though few of its rows are kept."""
    monkeypatch.setattr(row_sums, "NUM_KEPT", 50)
    t, y = table()
    rows = summed(model(t), t, y, 400)
    settings = {"rng_key": jax.random.key(0), "num_warmup": 200, "num_samples": 300, "progress_bar": False}
    fit = alps.fit_gibbs(model(t), rows, **settings)
    whole = alps.fit_gibbs(model(t), t, (y - rows.loc) / rows.scale, **settings)
    ahead = t[-1] + np.arange(0.5, 30.0, 5.0)
    first, second = (alps.predict(one, ahead) for one in (fit, whole))
    # A mean of 1,200 draws errs by a thirtieth of their spread (times root two, and what draws' correlation adds).
    assert (np.abs(first["mean"] - second["mean"]) / second["sd"]).max() < 0.2
    np.testing.assert_allclose(first["sd"], second["sd"], rtol=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": [np.nan, 2.0]}, "inputs: expected times between"),
        ({"t": [101.0, 700.0]}, "the span, got 700 in row 1"),
        ({"y": np.zeros((2, 3))}, r"y: expected shape \(2, 4\) in rows 0 to 2"),
        ({"y": [[0.0] * 4, [0.0, np.inf, 0.0, 0.0]]}, "got inf in row 1 of output 'y2'"),
        ({"t": [300.0, 200.0], "model": "memory"}, "in the order of time, but row 1 is earlier"),
        ({"t": [[101.0], [102.0]]}, "expected one column of times"),
        ({"span": (2.0, 1.0)}, "span: expected the first time and a later last one"),
        ({"span": (1.0, np.inf)}, "span: expected"),
        ({"t": [], "y": np.zeros((0, 4))}, "chunks: expected rows, got none"),
        ({"model": {"noise_df": 4.0}}, "noise_df: Student's noise needs every cell"),
        ({"model": {"covariance_bounds": {"day": {"scale": (20.0, 30.0)}}}}, "covariance_bounds: only SVI"),
    ],
)
def test_wrong_input_is_said_with_its_row(change, message):
    t, y = change.get("t", [101.0, 102.0]), change.get("y", np.zeros((2, 4)))
    wanted = change.get("model", {})
    here = model(table()[0]) if wanted == "memory" else model(**wanted)
    with pytest.raises(ValueError, match=message):
        alps.sum_rows(here, [(t, y)], span=change.get("span", (100.0, 600.0)), progress_bar=False)


def test_chunks_that_are_none():
    here = model(outputs=1)
    settings = {"span": (0.0, 9.0), "progress_bar": False}
    times = np.arange(10.0)
    for chunks_, message in (
        (None, "expected an iterable of"),
        (pd.DataFrame({"a": times}), "expected an iterable of"),
        ([times], "expected pairs"),
        ([(times, times, times)], "expected pairs"),
    ):
        with pytest.raises(TypeError, match=message):
            alps.sum_rows(here, chunks_, **settings)
    frame = pd.DataFrame({"a": times, "b": times})
    two = alps.ALPS({"day": alps.linear_periodic(24.0)}, outputs=["a", "b"], noise_variance=0.1)
    alps.sum_rows(two, [(times, frame)], **settings)
    with pytest.raises(ValueError, match="expected the model's outputs as columns"):
        alps.sum_rows(two, [(times, frame[["b", "a"]])], **settings)
    with pytest.raises(ValueError, match="every cell of its 10 rows is missing"):
        alps.sum_rows(here, [(times, np.full(10, np.nan))], **settings)
    rows = alps.sum_rows(here, [(times, np.sin(times))], **settings)
    with pytest.raises(TypeError, match="fit_svi needs the rows"):
        alps.fit_svi(here, rows, rng_key=jax.random.key(0))


def test_rough_latents_and_other_models_are_refused(monkeypatch):
    monkeypatch.setattr(streaming, "MOST_FEATURES", 100)
    t, y = table()
    rough = alps.ALPS({"day": alps.linear_periodic(24.0), "rough": kernels.Exp(3.0)}, outputs=4, noise_variance=0.1)
    with pytest.raises(ValueError, match=r"latent 'rough': between the times .* too many for sums"):
        summed(rough, t, y, N)
    with pytest.raises(ValueError, match="span: expected the first and the last time of all chunks, got None"):
        alps.sum_rows(model(), chunks(t, y, N), progress_bar=False)
    rows = summed(model(), t, y, N)
    key = jax.random.key(0)
    for fit in (alps.fit_gibbs, alps.fit_vb):
        with pytest.raises(ValueError, match="these sums are of a model with other latents"):
            fit(model(t), rows, rng_key=key)
        with pytest.raises(ValueError, match="leave y out"):
            fit(model(), rows, y, rng_key=key)


@pytest.fixture
def parquet(tmp_path):
    """Hours from 2020 in four row groups, with a column of text."""
    pytest.importorskip("pyarrow")
    _, y = table()
    dates = pd.date_range("2020-01-01", periods=N, freq="h")
    frame = pd.DataFrame(y, columns=list("abcd")).assign(time=dates, where="here", count=range(N))
    frame.to_parquet(tmp_path / "long.parquet", row_group_size=400, index=False)
    return tmp_path / "long.parquet", frame


def test_parquet_by_row_groups(parquet):
    path, frame = parquet
    rows = alps.ParquetRows(path, time="time", outputs=list("abcd"))
    assert (rows.num_rows, rows.span, rows.time_unit) == (N, (0.0, N - 1.0), "hours")
    inputs, y = map(np.concatenate, zip(*rows, strict=True))
    np.testing.assert_array_equal(inputs, np.arange(N))
    np.testing.assert_array_equal(y, frame[list("abcd")])
    assert alps.ParquetRows(path, time="time").outputs == ["a", "b", "c", "d", "count"]
    assert repr(alps.sum_rows(model(), rows, progress_bar=False)) == "SummedRows(1,500 rows of 4 outputs)"
    parts = [rows.part(index, 3) for index in range(3)]
    assert [part.num_rows for part in parts] == [700, 400, 400]
    assert sorted(np.concatenate([t for part in parts for t, _ in part])) == sorted(inputs)
    np.testing.assert_array_equal(rows.to_inputs(["2020-01-02"]), [24.0])
    prediction = xr.Dataset(
        {name: (("time", "output"), [[1.0, 2.0, 3.0, 4.0]]) for name in ("mean", "sd", "lower", "upper")},
        coords={"output": list("abcd")},
    )
    in_units = rows.conversion(np.full(4, 10.0), np.full(4, 2.0)).to_units(prediction)
    np.testing.assert_allclose(in_units["mean"], 10 + 2 * prediction["mean"])


def test_nested_columns_and_an_index_arent_outputs(parquet):
    path, frame = parquet
    nested = frame[["time", "a"]].assign(pair=[{"x": 1, "y": 2}] * N)[["pair", "time", "a"]]
    nested.sample(frac=1.0, random_state=0).sort_values("time").iloc[::2].to_parquet(path)
    rows = alps.ParquetRows(path, time="time")
    assert rows.outputs == ["a"]
    assert rows.span == (0.0, N - 2.0)


def test_parquet_that_is_none(parquet, tmp_path):
    path, frame = parquet
    for arguments, message in (
        ({"time": "tiem"}, "no column 'tiem', .* did you mean 'time'"),
        ({"time": "where"}, "expected dates or numbers in column 'where', got"),
        ({"time": "time", "outputs": ["where"]}, "expected numbers in column 'where'"),
        ({"time": "time", "outputs": []}, "expected columns of numbers besides 'time'"),
        ({"time": "time", "outputs": ["a", "time"]}, "expected other columns than 'time'"),
    ):
        with pytest.raises(ValueError, match=message):
            alps.ParquetRows(path, **arguments)
    (tmp_path / "text.parquet").write_text("time,a\n")
    with pytest.raises(ValueError, match=r"text\.parquet: expected a Parquet file"):
        alps.ParquetRows(tmp_path / "text.parquet", time="time")
    with pytest.raises(FileNotFoundError):
        alps.ParquetRows(tmp_path / "none.parquet", time="time")
    frame.loc[450, "time"] = pd.NaT
    frame.to_parquet(path, row_group_size=400)
    with pytest.raises(ValueError, match="expected a time in every row, got none in row 451"):
        list(alps.ParquetRows(path, time="time"))
    with pytest.raises(ValueError, match=r"count: .* 4 row groups, too few for 5 processes"):
        alps.ParquetRows(path, time="time").part(0, 5)
    frame[:0].to_parquet(path)
    with pytest.raises(ValueError, match="expected rows, got none"):
        alps.ParquetRows(path, time="time")
