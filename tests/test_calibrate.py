"""Calibration of a table of one's own: rates and intervals by hand, tables as they are said to be, resumable, ranks."""

import json

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from calibration import uniformity
from scipy import stats
from simulation import STUDENT

import alps_ppl as alps
from alps_ppl.app import calibrate as module
from alps_ppl.app import many
from alps_ppl.app.calibrate_run import sentences
from alps_ppl.app.kept_rows import ROWS
from alps_ppl.app.simulated import Shape, simulate
from alps_ppl.results import plots
from alps_ppl.results.calibration import Calibration, bins_of, coverage_of, exact_interval, ranks, reliability

KEY = jax.random.key(5)
QUIET = {"rng_key": KEY, "progress_bar": False, "num_workers": 0, "engine": "vb", "num_starts": 1, "num_rounds": 0}


def table(num=36):
    """Two outputs of a cycle of 7; a few cells are missing."""
    t = np.arange(float(num))
    y = np.sin(2 * np.pi * t / 7)[:, None] * [1.0, -0.5] + 0.4 * np.random.default_rng(0).normal(size=(num, 2))
    y[4:8, 0] = np.nan
    return pd.DataFrame(y, pd.Index(t, name="day"), ["u", "v"])


def model(data, **more):
    latents = {"week": alps.linear_periodic(7.0), "odd": alps.linear_periodic(5.0)}
    return alps.ALPS(latents, data.outputs, noise_variance=dist.InverseGamma(2.0, 0.2), **more)


def made_up():
    """Four tables, two processes; the last of three fits of ``tables`` failed."""
    gates = np.array([[1, 0], [0, 0], [1, 0], [0, 0]], bool)
    prob = np.array([[0.95, 0.2], [0.6, 0.02], [0.4, 0.97], [0.05, 0.5]])
    tables = pd.DataFrame({"covered": [0.8, 1.0, 0.9, 0.9], "unseen": np.nan, "r_hat": 1.0, "error": ""})
    return Calibration({}, gates, prob, ["a", "b"], tables, "table")


def test_rates_by_hand():
    rates = made_up().rates.set_index("process")
    assert rates.loc["a", ["absent", "false_50", "false_90"]].tolist() == [2, 1, 0]
    assert rates.loc["a", ["present", "found_50", "found_90"]].tolist() == [2, 1, 1]
    assert rates.loc["b", ["absent", "false_50", "false_90"]].tolist() == [4, 2, 1]
    assert rates.loc["b", ["present", "found_50_lower", "found_50_upper"]].tolist() == [0, 0, 1]
    # Clopper and Pearson's ends are quantiles of beta distributions.
    assert rates.false_90_upper["b"] == pytest.approx(stats.beta.ppf(0.95, 2, 3))
    assert rates.false_90_lower["b"] == pytest.approx(stats.beta.ppf(0.05, 1, 4))
    assert exact_interval(0, 40)[1] == pytest.approx(1 - 0.05 ** (1 / 40))


def test_what_is_said():
    said = sentences(made_up())
    assert said[0] == "In 4 tables like yours without it, b came on in 1 (at most 75 %)."
    assert "In 2 tables like yours without it, a came on in 0 (at most 78 %)." in said
    assert not any("b came on in 0" in line for line in said)  # in no table with it
    assert any(line.startswith("Of 2 gates with a probability of .9 or more, 1 are truly on") for line in said)
    assert said[-1].startswith("The 90 % bands hold 90.0 ± ")


def test_bins_and_coverage_by_hand():
    bins = bins_of(made_up())
    assert bins.gates.tolist() == [2, 2, 2, 2]
    assert bins.on.tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(bins.expected, [0.07, 0.6, 1.1, 1.92])
    found = coverage_of(made_up())
    assert list(found.index) == ["covered"]
    assert found.loc["covered"].tolist() == pytest.approx([0.9, np.std([0.8, 1, 0.9, 0.9], ddof=1) / 2, 4])


def test_reliability_is_isotonic_and_its_band_holds_what_is_right():
    """By a band of 90 % at 400 gates, drawn with the probabilities that they got; and overstated ones are outside."""
    rng = np.random.default_rng(0)
    prob = rng.uniform(size=(200, 2))
    gates = rng.uniform(size=(200, 2)) < prob
    curve = reliability(Calibration({}, gates, prob))
    assert (np.diff(curve.share) >= 0).all()
    assert curve.share.mean() == pytest.approx(gates.mean())
    inside = (curve.lower <= curve.share) & (curve.share <= curve.upper)
    assert inside.mean() > 0.5
    wrong = reliability(Calibration({}, rng.uniform(size=(200, 2)) < prob**3, prob))
    assert (wrong.share < wrong.lower).mean() > 0.5


def test_ranks_count_ties_by_chance():
    draws = np.array([[1.0, 2.0, 2.0, 3.0]])
    assert ranks(np.array([2.0]), draws, 0.5)[0] == (1 + 0.5 * 3) / 5
    assert ranks(np.array([0.0]), draws, 0.0)[0] == 0


@pytest.mark.parametrize("more", [{}, {"private_memory": True, "noise_df": STUDENT["noise_df"]}])
def test_simulated_tables_are_what_they_are_said_to_be(more):
    """What y has beside ``noiseless`` is white with the white variance: 2,000 tables, z below 5.

    And ``noiseless`` less f has the memory's variance and its correlation of neighbours.
    """
    t = np.arange(8.0)
    grid = alps.private_memory(t, shares=[0.7], lengthscales=[2.0])
    of = alps.ALPS(
        {"a": alps.linear_periodic(5.0)},
        1,
        noise_variance=0.5,
        private_memory=grid if "private_memory" in more else None,
        noise_df=more.get("noise_df"),
    )
    found = simulate(Shape(of, t, np.ones((8, 1), bool), True), {}, KEY, 2_000)
    stacked = {name: np.stack([one[name] for one in found]) for name in ("y", "f", "noiseless")}
    factor = np.stack([of.tails.variance[one["noise_factor"]] for one in found]) if "noise_df" in more else 1.0
    share = 0.7 if "private_memory" in more else 0.0
    white = (stacked["y"] - stacked["noiseless"]) / np.sqrt(0.5 * (1 - share) * factor)
    own = stacked["noiseless"] - stacked["f"]
    count = white.size

    def z(values, expected):
        return np.abs(values.mean() - expected) / (values.std() / np.sqrt(values.size) + 1e-12)

    assert z(white**2, 1.0) < 5
    assert np.abs((white[:, 1:] * white[:, :-1]).mean()) * np.sqrt(count * 7 / 8) < 5
    if share:
        by_table = (own**2).mean((1, 2))
        assert z(by_table, 0.5 * share) < 5
        assert z((own[:, 1:] * own[:, :-1]).mean((1, 2)), 0.5 * share * np.exp(-0.5)) < 5
        assert np.abs((own * white).mean()) / (own.std() / np.sqrt(count)) < 5
    else:
        assert (own == 0).all()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibration")
    told = []
    return alps.calibrate(table(), model, num_tables=4, folder=folder, tell=told.append, **QUIET), folder, told


def test_a_table_of_its_own(found):
    result, _, told = found
    assert list(result.processes) == ["week", "odd"]
    assert result.gates.shape == result.gate_prob.shape == (4, 2)
    assert result.rates.absent.tolist() == (~result.gates).sum(0).tolist()
    assert result.tables.covered.between(0, 1).all()
    assert result.tables.unseen.between(0, 1).all()  # four cells are missing
    assert result.pit == {}
    assert "2 more take about" in told[0]
    assert set(result.tree.children) == {"posterior_predictive", "observed_data", "constant_data"}


def test_it_goes_on_where_it_was_killed(found, monkeypatch):
    """Neither the first fit nor a finished table is fitted again, and the numbers are the same."""
    result, folder, _ = found
    lines = (folder / ROWS).read_text().splitlines()
    (folder / ROWS).write_text("\n".join(lines[:2]) + '\n{"table": "table 3", "of')
    fitted = []
    right = many.fit_some

    def counting(answer, engine, settings, key, x64, items):
        fitted.extend(name for name, _ in items)
        return right(answer, engine, settings, key, x64, items)

    monkeypatch.setattr(many, "fit_some", counting)
    monkeypatch.setattr(module, "FITS", {})
    again = alps.calibrate(table(), model, num_tables=4, folder=folder, **QUIET)
    assert len(fitted) == 2
    np.testing.assert_array_equal(again.gate_prob, result.gate_prob)
    assert [json.loads(line)["table"] for line in (folder / ROWS).read_text().splitlines()]
    with pytest.raises(KeyError):  # another question has a first fit of its own
        alps.calibrate(table(), model, num_tables=4, folder=folder, **QUIET | {"rng_key": jax.random.key(6)})


def test_figures(found):
    result = found[0]
    assert plots.plot_rates(result).get_yticklabels()[0].get_text() == "week"
    assert plots.plot_reliability(result).get_ylabel()
    axes = plots.plot_ranks({"a": np.linspace(0, 1, 9), "b": np.linspace(0, 1, 9)}, families={"a": "x", "b": "x"})
    assert len(axes.get_legend().get_texts()) == 1


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"table": [1, 2]}, TypeError, "table: expected a Data or a DataFrame"),
        ({"model": lambda data: None}, TypeError, "model: expected an ALPS"),
        ({"model": lambda data: alps.ALPS({"a": alps.white()}, 3, noise_variance=1.0)}, ValueError, "outputs"),
        ({"model": lambda data: model(data, inclusion_prob=1.0)}, ValueError, "may be on or off"),
        ({"truth": "data"}, ValueError, "truth: expected one of"),
        ({"engine": "svi"}, ValueError, "engine: expected one of"),
        ({"num_tables": 0}, ValueError, "num_tables"),
        ({"num_steps": 3}, ValueError, "unknown setting"),
    ],
)
def test_errors(given, error, words):
    given = {"table": table(), "model": model, "rng_key": KEY} | given
    with pytest.raises(error, match=words):
        alps.calibrate(given.pop("table"), given.pop("model"), **given)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "latent: expected at least one"),
        (["--latent", "week = linear_periodic(7)", "--noise", "student", "--engine", "vb"], "vb doesn't take it"),
        (["--latent", "week = linear_periodic(7)", "--set", "VB.num_starts=1"], "set: expected settings of GIBBS"),
        (["--latent", "week = linear_periodic(7)", "--tables", "0"], "--tables"),
    ],
)
def test_errors_of_the_command(call, tmp_path, more, words):
    table().to_csv(tmp_path / "table.csv")
    arguments = [str(tmp_path / "table.csv"), "--time", "day", "--out", str(tmp_path / "out"), *more]
    status, _, error = call("calibrate", *arguments)
    assert (status, words in error) == (2, True), error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command(call, tmp_path):
    """Six tables of the prior by vb, from the file to the page and the tree."""
    table().to_csv(tmp_path / "table.csv")
    out = tmp_path / "out"
    latents = ["--latent", "week = linear_periodic(7)", "--latent", "odd = linear_periodic(5)"]
    options = ["--time", "day", "--truth", "prior", "--engine", "vb", "--tables", "6", "--workers", "0"]
    options += ["--set", "VB.num_starts=1", "--set", "VB.num_rounds=0"]
    status, said, error = call("calibrate", str(tmp_path / "table.csv"), *latents, *options, "--out", str(out))
    assert status == 0, error
    assert "4 more take about" in said
    rates = pd.read_csv(out / "calibration.csv")
    assert (rates.absent + rates.present == 6).all()
    assert len(pd.read_csv(out / "calibration_tables.csv")) == 6
    with xr.open_datatree(out / "calibration.nc") as tree:
        assert set(tree["prior_sbc"].data_vars) >= {"H² of week", "noise variance", "log likelihood"}
        assert tree["observed_data"]["gate"].size == 12
    page = (out / "calibration.html").read_text()
    first = said[said.index("In ") :].partition("\n")[0]
    assert f'<p class="lead">{first}' in page
    assert page.count("<svg") == 3
    for name in ("rates", "reliability", "ranks"):
        assert (out / "figures" / f"calibration_{name}.png").stat().st_size > 5_000
    assert not (out / "calibration").exists()  # what it would have gone on from


@pytest.mark.slow
def test_a_right_sampler_has_uniform_ranks():
    """Truth from the prior, 40 tables by Gibbs; a right sampler fails with a probability of 1e-4 in all."""
    lengths = {"num_warmup": 100, "num_samples": 400, "num_chains": 1}
    result = alps.calibrate(
        table(16), model, num_tables=40, truth="prior", rng_key=KEY, progress_bar=False, num_workers=0, **lengths
    )
    values = {name: uniformity(pit) for name, pit in result.pit.items()}
    assert min(values.values()) > 1e-4 / len(values), values
    z = (result.gates - result.gate_prob).sum() / np.sqrt((result.gate_prob * (1 - result.gate_prob)).sum())
    assert abs(z) < 4
