"""What ``auto`` proposes, and decoys: planted cycles are found, red noise has none, decoys keep their distance."""

import numpy as np
import pandas as pd
import pytest
from scipy.signal import lfilter

import alps_ppl as alps
from alps_ppl.tables.dates import read_times
from alps_ppl.tables.grammar import parse
from alps_ppl.tables.proposals import HARMONICS, _means, _pooled_power, decoys, propose
from experiments.stamps import table as made

T = np.arange(3.0)  # for the trend's text, which takes its middle from them


def periods(proposals, unit=None):
    return [period for proposal in proposals for period in parse(proposal.text, unit=unit, inputs=T).periods]


def red_noise(rng, n, p):
    noise = rng.normal(size=(n, p))
    for k in range(1, n):
        noise[k] += 0.95 * noise[k - 1]
    return noise


def test_the_power_is_what_a_sine_explains():
    """Least squares of a cosine and a sine at each frequency: half of what they explain, over the outputs' mean."""
    rng = np.random.default_rng(0)
    outputs = [(np.sort(rng.uniform(0, 100, n)), rng.normal(size=n)) for n in (60, 41)]
    frequencies = np.linspace(0.013, 0.4, 50)

    def explained(t, values, frequency):
        basis = np.stack([np.cos(2 * np.pi * frequency * t), np.sin(2 * np.pi * frequency * t)], 1)
        return (basis @ np.linalg.lstsq(basis, values, rcond=None)[0]) @ values / 2

    expected = np.mean([[explained(*output, f) for f in frequencies] for output in outputs], 0)
    np.testing.assert_allclose(_pooled_power(outputs, frequencies), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(_pooled_power(outputs, frequencies[:1]), expected[:1], rtol=1e-9)


def test_planted_cycles_are_found_in_red_noise_with_gaps():
    rng = np.random.default_rng(1)
    t = np.sort(rng.choice(1_000, 600, replace=False)).astype(float)
    y = red_noise(rng, 1_000, 3)[t.astype(int)]
    y[:, 0] += 4 * np.sin(2 * np.pi * t / 23.7)
    y[:, 2] += 2 * np.cos(2 * np.pi * t / 9.1)
    y[100:250, 0] = np.nan
    found = propose(t, y)
    assert sorted(periods(found)) == pytest.approx([9.1, 23.7], rel=5e-3)
    assert [proposal.name for proposal in found[-2:]] == ["slow", "rough"]
    assert all("times red noise at the same times" in proposal.why for proposal in found[:-2])


def test_noise_has_no_cycles():
    # With a false alarm of at most 2 % each, more than 8 of 40 have a chance below one in a million.
    rng = np.random.default_rng(2)
    t = np.arange(150.0)
    walks = [np.cumsum(rng.normal(size=(150, 1)), 0) for _ in range(20)]
    reds = [red_noise(rng, 150, 1) for _ in range(20)]
    assert sum(len(periods(propose(t, y))) > 0 for y in walks + reds) <= 8


def test_the_calendar_year_counts_with_one_cycle():
    rng = np.random.default_rng(3)
    t = np.arange(0, 380.0)
    year = 10 * np.sin(2 * np.pi * t / 365.25)[:, None] + rng.normal(size=(380, 2))
    assert periods(propose(t, year, "days"), "days") == pytest.approx([365.25])
    assert propose(t, year, "days")[0].name == "1 y"
    # Without a calendar one cycle is a drift; and so is a random walk with one.
    assert periods(propose(t, year)) == []
    assert periods(propose(t, np.cumsum(rng.normal(size=(380, 6)), 0), "days"), "days") == []


def test_few_rows_and_empty_outputs_have_no_cycles():
    assert periods(propose(np.arange(8.0), np.ones((8, 1)))) == []
    y = np.full((50, 2), np.nan)
    y[:, 0] = 3.0
    assert periods(propose(np.arange(50.0), y)) == []


def test_a_clear_cycle_in_a_dozen_rows_is_found():
    """Beside it no frequency is left to look at, and none is proposed."""
    t = np.arange(13.0)
    wave = np.sin(2 * np.pi * t / 3 + 1) + 1e-3 * np.random.default_rng(0).normal(size=13)
    assert periods(propose(t, wave[:, None])) == pytest.approx([3.0], rel=0.05)


def test_many_rows_are_averaged():
    t, y = np.arange(12_001.0), np.arange(12_001.0)[:, None]
    y[3:6] = np.nan
    times, means = _means(t, y, 3)
    assert len(times) == 4_001
    np.testing.assert_array_equal(times[:3], [1, 4, 7])
    np.testing.assert_array_equal(means[:3, 0], [1, np.nan, 7])


def test_decoys_keep_away_from_harmonics():
    t = np.arange(0, 24 * 60.0)
    chosen = decoys(4, [24.0, 12.0, 168.0], t, "hours")
    names = [proposal.name for proposal in chosen]
    assert names == [proposal.name for proposal in decoys(4, [24.0, 12.0, 168.0], t, "hours")]
    frequencies = 1 / np.array(periods(chosen, "hours"))
    for period in (24.0, 12.0, 168.0):
        for k in range(1, HARMONICS + 1):
            assert (np.abs(frequencies - k / period) >= 0.05 * frequencies).all()
            assert (np.abs(frequencies - 1 / (period * k)) >= 0.05 * frequencies).all()
    assert [proposal.name for proposal in decoys(2, [24.0], t, "hours")] == ["decoy 31 h", "decoy 17 h"]
    assert len(decoys(2, [], t)) == 2
    with pytest.raises(ValueError, match="decoys: expected at most"):
        decoys(30, [24.0], t)


def test_a_cycle_whose_size_changes_is_one_cycle():
    """A day's cycle and its third harmonic, each largest at one end of 55 days: 24 h and 8 h, no 24.4 h beside them."""
    rng = np.random.default_rng(0)
    t = np.arange(0.0, 55 * 24, 3)
    size = 1 + 0.6 * np.cos(2 * np.pi * t / (61 * 24))
    wave = np.sin(2 * np.pi * t / 24) + 0.4 * np.sin(2 * np.pi * t / 8 + 1)
    y = np.stack([size * wave, 2 * size * wave], 1) + 0.3 * rng.normal(size=(len(t), 2))
    names = [proposal.name for proposal in propose(t, y, "hours")]
    assert names == ["24 h", "8 h", "slow", "rough"]


BUSINESS = pd.bdate_range("2022-01-03", periods=470)
STAMPS = {
    "business days": BUSINESS,
    "hours of trade": pd.DatetimeIndex(
        [day + pd.Timedelta(minutes=30 * k + 570) for day in BUSINESS[:30] for k in range(13)]
    ),
    "daytime": pd.DatetimeIndex(
        [day + pd.Timedelta(hours=h) for day in pd.date_range("2024-05-01", periods=40) for h in range(8, 19)]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STAMPS)
@pytest.mark.parametrize("kind", ["walk", "red"])
def test_gaps_that_repeat_make_no_cycles(name, kind):
    """Weekends, nights and evenings without rows repeat what is slow at other frequencies. Ten tables of each."""
    times = read_times(STAMPS[name])
    found = []
    for seed in range(10):
        y = np.random.default_rng(seed).normal(size=(len(times.values), 3))
        y = np.cumsum(y, 0) if kind == "walk" else lfilter([1.0], [1.0, -0.9], y, axis=0)
        found += [p.name for p in propose(times.values, y, times.unit) if "periodic" in p.text]
    assert len(found) <= 1, found


@pytest.mark.slow
def test_a_year_on_business_days_is_proposed():
    times = read_times(pd.bdate_range("2019-01-01", periods=1000))
    named = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        wave = 1.5 * np.sin(2 * np.pi * times.values[:, None] / 365.25 + rng.uniform(0, 6, 3))
        y = wave + 0.05 * np.cumsum(rng.normal(size=(1000, 3)), 0) + rng.normal(size=(1000, 3))
        named.append("1 y" in [p.name for p in propose(times.values, y, times.unit)])
    assert all(named)


def test_two_stretches_or_a_last_bin_of_two_cells_are_no_year():
    """Three bins fit the three coefficients of a sine, whatever they hold."""
    noise = np.random.default_rng(0).normal(size=(52, 2))
    t = np.r_[np.arange(26.0), 300 + np.arange(26.0)]
    assert not any("periodic" in p.text for p in propose(t, noise, "days"))
    days = np.arange(0, 2 * 365.25 + 0.3, 1 / 6)  # two years of which the last bin has a few cells
    y = np.sin(2 * np.pi * days / 365.25)[:, None] + 0.3 * np.random.default_rng(0).normal(size=(len(days), 1))
    assert "1 y" in [p.name for p in propose(days, y, "days")]


@pytest.mark.slow
def test_short_cycles_of_long_tables_dont_fold():
    minutes = np.arange(12_000.0)
    y = np.sin(2 * np.pi * minutes / 4)[:, None] + np.random.default_rng(0).normal(size=(12_000, 1))
    (found,) = [p for p in propose(minutes / 60, y, "hours") if "periodic" in p.text]
    assert found.name == "4 min"
    assert "the last 5,000 rows" in found.why


def test_a_trend_is_proposed_where_a_line_explains_half():
    t = np.arange(100.0)
    noise = np.random.default_rng(0).normal(size=(100, 2))
    assert not any(p.name == "trend" for p in propose(t, noise))
    assert any(p.name == "trend" for p in propose(t, noise + 0.1 * t[:, None]))


def test_cycles_on_stamps_that_lack_are_found():
    """A day in hours of daytime, a week in hours of trade: where the stamps' own gaps repeat what is slow."""
    for seed, period in ((11, 24.0), (7, 168.0)):
        table, _, days = made(seed)
        assert days * 24 == period
        data = alps.Data(table.index, table)
        assert any(
            abs(found / period - 1) < 0.02 for found in periods(propose(data.inputs, data.train_y, "hours"), "hours")
        )


def test_a_walk_is_proposed_where_a_level_doesnt_come_back():
    rng = np.random.default_rng(5)
    t = np.arange(400.0)
    walk = np.cumsum(rng.normal(size=(400, 5)), 0)
    assert "random_walk()" in [proposal.text for proposal in propose(t, walk)]
    assert "random_walk()" not in [proposal.text for proposal in propose(t, rng.normal(size=(400, 5)))]
