"""The paper's experiments: their data, how results are kept, and the page of claims."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tinygp import kernels

import alps_ppl as alps
from models import claims, experiments, noisy_mixture, results


def test_noisy_mixture_is_the_papers():
    made = noisy_mixture.simulate(0, noise_sd=0.0)
    np.testing.assert_array_equal(made["H"][:3], np.eye(3))
    assert made["H"].shape == (9, 3)
    np.testing.assert_allclose(made["y"], made["f"])
    for x, period in zip(made["x"].T, noisy_mixture.TRUE_PERIODS, strict=True):
        assert np.mean(x[: 7 * 17] ** 2) == pytest.approx(1.0, abs=0.1)
        # A sine wave of this period: its second difference is that multiple of itself.
        second = x[2:] - 2 * x[1:-1] + x[:-2]
        np.testing.assert_allclose(second, 2 * (np.cos(2 * np.pi / period) - 1) * x[1:-1], atol=1e-9)


def test_noise_is_shared_unless_it_is_independent():
    def residual(independent):
        made = noisy_mixture.simulate(1, independent=independent)
        return made["H"], made["y"] - made["f"]

    H, shared = residual(False)
    assert np.linalg.matrix_rank(shared) == 3
    _, own = residual(True)
    assert np.linalg.matrix_rank(own) == 9
    sd = 0.5 * np.linalg.norm(H, axis=1)
    for noise in (shared, own):  # 200 draws: the sd of a sample sd is 5 %
        np.testing.assert_allclose(noise.std(0), sd, rtol=0.25)


def test_rows_are_kept_and_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path / "claims")
    measured = []

    def measure(seed):
        if seed == 2 and 2 not in measured:
            measured.append(seed)
            raise KeyboardInterrupt
        measured.append(seed)
        return {"square": seed**2}

    cases = [{"seed": seed} for seed in range(3)]
    with pytest.raises(KeyboardInterrupt):
        results.collect("squares", cases, measure, command="first")
    assert len(results.load("squares")["rows"]) == 2
    rows = results.collect("squares", cases, measure, command="second")
    assert [row["square"] for row in rows] == [0, 1, 4]
    assert measured == [0, 1, 2, 2]
    assert results.load("squares")["command"] == "second"


def test_the_page_is_what_was_measured():
    """docs/claims.md is what the kept rows give: no number in it is typed or stale."""
    assert claims.PAGE.read_text() == claims.page(), "run: python -m models.claims"


def test_claims_count_what_is_right():
    def row(odd, even):
        probability = dict.fromkeys(claims.ODD, odd) | dict.fromkeys(claims.EVEN, even)
        return {
            "probability": {"svi": probability, "gibbs": probability},
            "differences": {"inclusion probability": 0.01, "predictive mean": 0.1},
            "max_rhat": 1.002,
            "reconstruction_rmse": {"svi": 0.21, "gibbs": 0.21},
        }

    odd, even, *_ = claims.square_wave([row(0.99, 0.02), row(0.95, 0.2)])
    assert odd.measured == "SVI 0.950 to 0.990; Gibbs 0.950 to 0.990"
    assert odd.holds == "SVI 2 of 2; Gibbs 2 of 2"
    assert even.holds == "SVI 1 of 2; Gibbs 1 of 2"


def test_moments_of_closed_columns_are_the_guides(key):
    """q(H)'s own, in the outputs' units, are those that its draws tend to."""
    t = np.arange(12.0)
    y = np.stack([np.sin(t), np.cos(t)], 1)
    model = alps.ALPS({"a": kernels.Cosine(6.0), "b": kernels.Exp(2.0)}, 2, mixing_variance=4.0, noise_variance=0.1)
    fit = alps.fit_svi(model, t, y, num_inducing=4, num_steps=200, rng_key=key, progress_bar=False)
    fit = replace(fit, params=fit.params | {"b_logits": jnp.array([5.0, -5.0])})
    found = experiments.guides_columns(fit, t, y)
    H = alps.to_datatree(fit, model, t, y, num_draws=4_000)["posterior"]["H"].to_numpy()[0]
    sd = H.std(0)
    assert found["off: largest |mean|"] == pytest.approx(abs(H.mean(0)[:, 1]).max(), abs=5 * sd.max() / 4_000**0.5)
    # The variance of normal draws has an error of sqrt(2 / draws) of itself.
    assert found["off: mean variance"] == pytest.approx((sd[:, 1] ** 2).mean(), rel=5 * (2 / 4_000) ** 0.5)
    assert found["on: largest variance"] == pytest.approx((sd[:, 0] ** 2).max(), rel=5 * (2 / 4_000) ** 0.5)


def test_cases_are_ten_seeds_and_the_variants():
    assert len(experiments.cases("square_wave", 10)) == 10
    noisy = experiments.cases("noisy_mixture", 10)
    assert sum(case["noise_sd"] == 0.5 and not case["independent"] for case in noisy) == 10
    assert len({tuple(case.values()) for case in noisy}) == len(noisy)


@pytest.mark.slow
def test_a_noisy_mixture_seed(monkeypatch):
    """A row of the page at small size, independent noise: the right periods, and as good a forecast as the oracle."""
    monkeypatch.setattr(noisy_mixture, "SVI", noisy_mixture.SVI | {"num_steps": 6_000})
    row = experiments.measure_noisy_mixture(3, 0.5, True)
    for engine in ("svi", "gibbs"):
        assert min(row["probability"][engine][name] for name in claims.PERIODS) > 0.9
        assert max(row["probability"][engine][name] for name in claims.DECOYS) < 0.2
        assert row["rmse"][engine] < 1.1 * row["rmse"]["told the latents"]
    assert row["max_rhat"] < 1.1
    assert claims.noisy([row | {"seed": 3, "noise_sd": 0.5, "independent": True}], 0.5, True)


def test_own_data_page_is_made_of_its_rows():
    """No number on the page is typed, and all five tables are on it."""
    from models import own_data

    rows = own_data.measured(0)
    assert [row["table"] for row in rows] == list(own_data.TABLES)
    assert own_data.page(rows) == own_data.PAGE.read_text()
