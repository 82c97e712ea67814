"""Outputs modelled by their logarithm: which ones, and that all that comes back is in the file's units."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

import alps_ppl as alps
from alps_ppl.app import scores
from alps_ppl.app.compose import compose
from alps_ppl.tables.growth import grows_with_level

MONTHS = np.arange(120.0)


def sales(seed, *, share=True):
    """Ten years of months: growth by a factor of four, a season that is a share of the level or a size of its own."""
    rng = np.random.default_rng(seed)
    season, noise = 0.2 * np.sin(2 * np.pi * MONTHS / 12), 0.03 * rng.normal(size=120)
    level = 100 * np.exp(MONTHS * np.log(4) / 119)
    return level * np.exp(season + noise) if share else level + 200 * (season + noise) + 100


@pytest.mark.parametrize("seed", range(5))
def test_swings_that_grow_and_swings_that_dont(seed):
    assert grows_with_level(MONTHS, sales(seed))
    assert not grows_with_level(MONTHS, sales(seed, share=False))
    assert not grows_with_level(MONTHS, -sales(seed))


def test_a_season_that_blocks_cut():
    """Eight years that grow threefold, the season anywhere in a block: most are found, hardly any without growth."""
    rng, t = np.random.default_rng(0), np.arange(96.0)
    found = {True: 0, False: 0}
    for _ in range(100):
        season = rng.uniform(0.1, 0.4) * np.cos(2 * np.pi * t / 12 + rng.uniform(0, 2 * np.pi))
        own = season + 0.05 * rng.normal(size=96)
        found[True] += grows_with_level(t, 3 ** (t / 96) * np.exp(own))
        found[False] += grows_with_level(t, 3 ** (t / 96) + 1.8 * own)
    assert found[True] >= 80
    assert found[False] <= 5


def test_summers_that_differ_more_than_winters_arent_growth():
    """A level that goes up and down by the year, the swings of its days with it."""
    t = np.arange(365.0 * 8) / 8
    year = 50 - 20 * np.cos(2 * np.pi * t / 365)
    assert not grows_with_level(t, year * (1 + 0.3 * np.sin(2 * np.pi * t)))


def test_walks_and_short_series_are_left_alone():
    """Of 400 positive random walks, at most the share that chance gives to a correlation of .85 of ten."""
    rng = np.random.default_rng(0)
    walks = 20 + np.cumsum(rng.normal(size=(400, 200)), 1)
    walks = walks[(walks > 0).all(1)]
    chance = np.mean([grows_with_level(np.arange(200.0), walk) for walk in walks])
    assert chance < 0.02
    assert not grows_with_level(MONTHS[:20], sales(0)[:20])


def test_units_are_the_log_normals():
    """Mean and sd against draws, the band against quantiles; the other output is as without."""
    y = np.stack([sales(0), MONTHS], 1)
    data = alps.Data(MONTHS, y, outputs=["sales", "line"], log=["sales"])
    np.testing.assert_allclose(data.loc, [np.log(y[:, 0]).mean(), y[:, 1].mean()])
    coords = {"output": data.outputs}
    normal = stats.norm(0.7, 0.4)
    values = {"mean": 0.7, "sd": 0.4, "lower": normal.ppf(0.05), "upper": normal.ppf(0.95)}
    standardised = xr.Dataset({n: (("time", "output"), np.full((1, 2), v)) for n, v in values.items()}, coords)
    found = data.to_units(standardised)
    draws = np.exp(data.loc[0] + data.scale[0] * normal.rvs(400_000, random_state=0))
    got = {name: found[name].values[0, 0] for name in found}
    assert got["mean"] == pytest.approx(draws.mean(), rel=5 * draws.std() / draws.mean() / np.sqrt(4e5))
    assert got["sd"] == pytest.approx(draws.std(), rel=0.02)
    assert [got["lower"], got["upper"]] == pytest.approx(np.quantile(draws, [0.05, 0.95]), rel=0.01)
    plain = alps.Data(MONTHS, y, outputs=["sales", "line"]).to_units(standardised)
    xr.testing.assert_allclose(found.sel(output="line"), plain.sel(output="line"))


def test_scores_in_units_are_of_the_values():
    """Errors of the values, and the density of a value is that of its logarithm over the value."""
    y = sales(0)[:, None]
    data = alps.Data(MONTHS, y, outputs=["sales"], log=["sales"], held_out={"test": MONTHS >= 108})
    mean, density = np.zeros(y.shape), stats.norm.logpdf(data.standardised, 0, 1)
    in_units = np.full(y.shape, 150.0)
    cells = scores.of_cells(data, "x", mean, density, in_units)
    np.testing.assert_allclose(cells.squared_error_in_units, (y[:, 0] - 150) ** 2)
    of_value = stats.lognorm.logpdf(y[:, 0], s=data.scale[0], scale=np.exp(data.loc[0]))
    np.testing.assert_allclose(cells.nlpd_in_units, -of_value)


@pytest.mark.parametrize(
    ("log", "chosen"), [("auto", ["sales"]), ("none", []), ("line, sales", ["line", "sales"]), ("Auto ", ["sales"])]
)
def test_fit_chooses(log, chosen, tmp_path):
    table = pd.DataFrame({"t": MONTHS, "sales": sales(1), "line": 500 + MONTHS + np.sin(MONTHS)})
    table.to_csv(tmp_path / "sales.csv", index=False)
    problem, notes = compose(tmp_path / "sales.csv", latents=["season = linear_periodic(12)"], log=log)
    assert problem.data.log == chosen
    assert any("logarithm" in note for note in notes) == bool(chosen)
    assert ("log=" in problem.source) == bool(chosen)


@pytest.mark.parametrize(
    ("log", "message"),
    [(["none such"], "log: expected some of the outputs"), (["b"], "expected positive values in output 'b'.*row 1")],
)
def test_logarithms_that_cant_be(log, message):
    y = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, 0.0, 2.0]})
    with pytest.raises(ValueError, match=message):
        alps.Data(np.arange(3.0), y, log=log)
