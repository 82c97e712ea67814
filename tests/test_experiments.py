"""What measures the paper's claims: how rows are kept, and the pages that are made of them."""

import importlib
from dataclasses import replace

import click
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from tinygp import kernels

import alps_ppl as alps
from experiments import claims, own_data, page_pictures, store, synthetic
from models import noisy_mixture


def test_rows_are_kept_and_not_measured_again(tmp_path):
    path, measured = tmp_path / "claims" / "squares.json", []

    def measure(case):
        measured.append(case["seed"])
        if measured == [0, 1, 2]:
            raise KeyboardInterrupt
        return {"square": case["seed"] ** 2}

    cases = [{"seed": seed} for seed in range(3)]
    with pytest.raises(KeyboardInterrupt):
        store.collect(path, cases, measure, command="first")
    assert len(store.load(path)["rows"]) == 2
    rows = store.collect(path, cases, measure, command="second", units={"square": "none"})
    assert [row["square"] for row in rows] == [0, 1, 4]
    assert measured == [0, 1, 2, 2]
    kept = store.load(path)
    assert (kept["commands"], kept["units"]) == (["first", "second"], {"square": "none"})


def test_a_row_is_added_to(tmp_path):
    path = tmp_path / "rows.json"
    store.collect(path, [{"split": 0}], lambda row: {"svi": 1}, command="svi")
    rows = store.collect(path, [{"split": 0}], lambda row: {"gibbs": row["svi"] + 1}, command="gibbs", again=True)
    assert rows == [{"split": 0, "svi": 1, "gibbs": 2}] == store.load(path)["rows"]
    store.collect(path, [{"split": 0}, {"split": 1}], lambda row: {}, command="nothing", again=True)
    assert store.load(path)["commands"] == ["svi", "gibbs"]


def test_a_file_that_is_something_else(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("{}")
    with pytest.raises(click.ClickException, match=r"rows\.json"):
        store.load(path)


@pytest.mark.parametrize(
    ("path", "page"), [(claims.PAGE, claims.page), (own_data.PAGE, lambda: own_data.page(own_data.measured(0)))]
)
def test_pages_are_what_was_measured(path, page):
    """No number on them is typed or stale."""
    assert path.read_text() == page(), "run: python -m experiments.claims, and python -m experiments.own_data"


def test_all_tables_are_on_the_page():
    expected = [(table, model) for table in own_data.TABLES for model in own_data.MODELS]
    assert [(row["table"], row["model"]) for row in own_data.measured(0)] == expected


def test_claims_count_what_is_right():
    def row(odd, even):
        probability = dict.fromkeys(claims.ODD, odd) | dict.fromkeys(claims.EVEN, even)
        return {
            "probability": {"svi": probability, "gibbs": probability},
            "differences": {"inclusion probability": 0.01, "predictive mean": 0.1},
            "max_rhat": 1.002,
            "reconstruction_rmse": {"svi": 0.21, "gibbs": 0.22},
        }

    found = claims.of_square_wave([row(0.99, 0.02), row(0.95, 0.2)])
    assert found["odd"] == ("SVI 2 of 2; Gibbs 2 of 2", "SVI 0.950 to 0.990; Gibbs 0.950 to 0.990")
    assert found["even"].holds == "SVI 1 of 2; Gibbs 1 of 2"
    assert found["reconstructed"] == ("SVI 2 of 2; Gibbs 0 of 2", "SVI 0.210; Gibbs 0.220")


@pytest.mark.slow
def test_moments_of_closed_columns_are_the_guides(key):
    """q(H)'s own, in the outputs' units, are those that its draws tend to."""
    t = np.arange(12.0)
    y = np.stack([np.sin(t), np.cos(t)], 1)
    model = alps.ALPS({"a": kernels.Cosine(6.0), "b": kernels.Exp(2.0)}, 2, mixing_variance=4.0, noise_variance=0.1)
    fit = alps.fit_svi(model, t, y, num_inducing=4, num_steps=20, rng_key=key, progress_bar=False)
    fit = replace(fit, params=fit.params | {"b_logits": jnp.array([5.0, -5.0])})
    found = synthetic.guides_columns(fit)
    H = np.asarray(fit.draw(4_000)["H"])
    sd = H.std(0)
    assert found["off: largest |mean|"] == pytest.approx(abs(H.mean(0)[:, 1]).max(), abs=5 * sd.max() / 4_000**0.5)
    # The variance of normal draws has an error of sqrt(2 / draws) of itself.
    assert found["off: mean variance"] == pytest.approx((sd[:, 1] ** 2).mean(), rel=5 * (2 / 4_000) ** 0.5)
    assert found["on: largest variance"] == pytest.approx((sd[:, 0] ** 2).max(), rel=5 * (2 / 4_000) ** 0.5)


def test_cases_are_ten_seeds_and_the_variants():
    assert len(synthetic.cases("square_wave", 10)) == 10
    noisy = synthetic.cases("noisy_mixture", 10)
    assert sum(case["noise_sd"] == 0.5 and not case["independent"] for case in noisy) == 10
    assert len({tuple(case.values()) for case in noisy}) == len(noisy)


@pytest.mark.slow
def test_a_noisy_mixture_seed(monkeypatch):
    """A row of the page at small size, independent noise: the right periods, and as good a forecast as the oracle."""
    monkeypatch.setattr(noisy_mixture, "SVI", noisy_mixture.SVI | {"num_steps": 6_000})
    row = synthetic.measure_noisy_mixture(3, 0.5, True)
    for engine in ("svi", "gibbs"):
        assert min(row["probability"][engine][name] for name in claims.PERIODS) > 0.9
        assert max(row["probability"][engine][name] for name in claims.DECOYS) < 0.2
        assert row["rmse"][engine] < 1.1 * row["rmse"]["told the latents"]
    assert row["max_rhat"] < 1.1
    assert claims.of_noisy_mixture([row | {"seed": 3, "noise_sd": 0.5, "independent": True}], 0.5, True)


def test_pictures_of_the_page():
    """The table has an outage of two days; a long picture is cut into columns, each row of it once; files are small."""
    table = page_pictures.sensors()
    assert table.isna().all(axis=1).sum() == 48
    pixels = np.arange(7 * 2 * 3, dtype=np.uint8).reshape(7, 2, 3)
    beside = np.asarray(page_pictures.columns(Image.fromarray(pixels), 3, space=1))
    assert beside.shape == (3, 8, 3)
    np.testing.assert_array_equal(np.concatenate([beside[:, k : k + 2] for k in (0, 3, 6)])[:7], pixels)
    pictures = sorted(page_pictures.DOCS.glob("report*.png"))
    assert len(pictures) == 4
    assert max(path.stat().st_size for path in pictures) < 300_000


@pytest.mark.parametrize("name", ["gallery", "misfit", "new_york", "real_tables", "spikes", "stamps", "vb"])
def test_none_is_no_number_of_tables(name):
    """Said at once; no empty table is printed."""
    module = importlib.import_module(f"experiments.{name}")
    option = "--seeds" if name == "new_york" else "--tables"
    words = ["again", "shift"] if name == "gallery" else []
    found = CliRunner().invoke(module.main, [*words, option, "0"])
    assert found.exit_code == 2
    assert f"Invalid value for '{option}': 0 is not in the range x>=1" in found.output
