"""Innovations against dense conditioning, their tests' p-values at the truth, and tables that a model can't say."""

import jax
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import reference
from scipy import stats

import alps_ppl as alps
from alps_ppl.app.report.notes import innovation_notes
from alps_ppl.app.report.verdict import verdict
from alps_ppl.results import innovations as module
from alps_ppl.results.innovations import between, innovations, over_time, suspicious

T = np.array([3.0, 0.0, 1.5, 2.0, 7.0, 4.0, 9.5, 6.0])


def few(memory, noise_df=None):
    """A fit of a handful of rows in any order, with missing cells."""
    y = np.random.default_rng(0).normal(size=(len(T), 2))
    y[2, 0] = y[5, 1] = np.nan
    more = {"private_memory": alps.private_memory(T)} if memory else {}
    noise = dist.InverseGamma(2.0, 1.0)
    model = alps.ALPS({"cycle": alps.linear_periodic(4.0)}, 2, noise_variance=noise, noise_df=noise_df, **more)
    return alps.fit_gibbs(
        model, T, y, rng_key=jax.random.key(0), num_warmup=5, num_samples=4, num_chains=2, progress_bar=False
    )


@pytest.mark.parametrize(("memory", "noise_df"), [(False, None), (True, None), (True, 4.0), (False, 4.0)])
def test_innovations_are_those_of_dense_conditioning(memory, noise_df):
    fit = few(memory, noise_df)
    z = innovations(fit)
    sites = {name: np.asarray(values).reshape(8, *values.shape[2:]) for name, values in fit.samples.items()}
    for s in range(8):
        f = np.einsum("ij,j,jt->ti", sites["H"][s], sites["b"][s], sites["x"][s])
        for i in range(2):
            tails = fit.model.tails
            factors = 1.0 if tails is None else np.asarray(tails.variance)[sites["noise_factor"][s][:, i]]
            own = np.eye(len(T)) * factors
            if memory:
                point = sites["memory"][s][i]
                grid = fit.model.private_memory
                own = reference.own_covariance(grid.share[point], grid.lengthscale[point], T, T, factors)
            expected = reference.innovations(np.asarray(fit.y)[:, i] - f[:, i], sites["noise_variance"][s][i], own, T)
            np.testing.assert_allclose(z[s, :, i], expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_p_values_of_noise_are_uniform(missing):
    """Of one draw each, 600 tables; twice the median of equal draws is twice as much."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(600, 2, 200))
    z[rng.uniform(size=z.shape) < missing] = np.nan
    for p_values in (
        [over_time(one[:1])["p_value"] / 2 for one in z],
        [between(one[:1], one[1:])["p_value"] / 2 for one in z],
    ):
        below = np.array(p_values) < 0.4999  # p above 1/2 is said to be 1
        conditional = stats.kstest(np.array(p_values)[below] * 2, "uniform").pvalue
        assert stats.binomtest(int(below.sum()), 600, 0.5).pvalue > 1e-4
        assert conditional > 1e-4


@pytest.mark.parametrize(("number", "missing"), [(30, 0.0), (60, 0.0), (90, 0.3)])
def test_small_p_values_over_time_are_as_rare_as_they_say(number, missing):
    """Of white noise; by the chi-square .016 to .024 are below .01 and .004 to .006 below .001."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(20_000, number))
    z[:, rng.uniform(size=number) < missing] = np.nan
    low = np.isin(np.arange(len(z)), np.argsort(module.white_p_values(z))[: len(z) // 30])  # the median must be small
    p_values = module.white_p_values(z[low])
    for level in (0.01, 0.001):
        count = int((p_values < level).sum())
        # The simulated quantile errs, too, by 1 / sqrt(100) of the level or so at a hundredth, and twice that beyond.
        error = 0.1 if level == 0.01 else 0.3
        assert stats.poisson.sf(count - 1, 20_000 * level * (1 + 3 * error)) > 1e-4
        assert stats.poisson.cdf(count, 20_000 * level * (1 - 3 * error)) > 1e-4


def test_an_output_of_every_third_row():
    """Lags without a pair of cells are left out; a correlation that the others have is seen."""
    rng = np.random.default_rng(3)
    z = np.full((2, 600), np.nan)
    z[:, ::3] = rng.normal(size=200)
    assert over_time(z)["p_value"] > 1e-3
    z[:, ::3] = np.convolve(rng.normal(size=201), [1.0, 1.0], "valid") / np.sqrt(2)
    assert over_time(z)["lag"] == 3
    assert over_time(z)["p_value"] < 0.01
    assert between(z, z + 1)["correlation"] > 0.5


def fitted(y, **more):
    t = np.arange(float(len(y)))
    model = alps.ALPS(
        {"cycle": alps.linear_periodic(24.0)}, y.shape[1], noise_variance=dist.InverseGamma(1.0, 0.2), **more
    )
    lengths = {"num_warmup": 50, "num_samples": 50, "num_chains": 2, "progress_bar": False}
    return alps.fit_gibbs(model, t, y, rng_key=jax.random.key(0), **lengths)


def test_what_a_model_cannot_say_is_found():
    """A memory in one output, then noise that the other two share; neither where the model can say the memory."""
    rng = np.random.default_rng(2)
    t = np.arange(200.0)
    wave = np.sin(2 * np.pi * t / 24)[:, None] * [1.0, -0.5, 0.8]
    white, memory = rng.normal(size=(200, 3)), np.zeros(200)
    for k in range(1, 200):
        memory[k] = 0.9 * memory[k - 1] + 0.44 * rng.normal()
    assert len(suspicious(alps.innovation_checks(fitted(wave + white)))) == 0
    own = wave + 0.5 * white + memory[:, None] * [1.0, 0.0, 0.0]
    found = suspicious(alps.innovation_checks(fitted(own)))
    assert found[["check", "output"]].to_numpy().tolist() == [["over time", "y1"]]
    assert len(suspicious(alps.innovation_checks(fitted(own, private_memory=alps.private_memory(t))))) == 0
    shared = wave + 0.5 * white + rng.normal(size=(200, 1)) * [0.0, 1.0, 1.0]
    found = suspicious(alps.innovation_checks(fitted(shared)))
    assert found[["check", "output", "other"]].to_numpy().tolist() == [["between outputs", "y3", "y2"]]
    (note,) = innovation_notes({"gibbs": {"suspicious_innovations": found.to_dict("records")}})
    assert "leaves of y3 and y2 goes together within a row" in note.text
    assert innovation_notes({"gibbs": {"suspicious_innovations": []}, "data": {}}) == innovation_notes({}) == []


def test_the_headline_says_it():
    table = alps.inclusion_table(few(memory=False))
    found = pd.DataFrame([["over time", "u", "", 3, 0.41, 1e-9]], columns=alps.innovation_checks(few(False)).columns)
    notes = innovation_notes({"gibbs": {"suspicious_innovations": found.to_dict("records")}})
    said = verdict(table, num_chains=2, misfit=notes)
    assert said.headline.endswith(
        "But what the model leaves of the outputs isn't noise, so a process may stand in for another."
    )
    assert (
        "leaves of u isn't noise: it goes on from row to row (u: correlation 0.41 over 3 rows, p = 1e-09)"
        in said.notes[0].text
    )
    assert "isn't noise" not in verdict(table, num_chains=2).headline


def test_few_cells_have_no_test():
    fit = few(memory=False)
    assert list(alps.innovation_checks(fit).columns) == ["check", "output", "other", "lag", "correlation", "p_value"]
    assert len(alps.innovation_checks(fit)) == 0
    with pytest.raises(TypeError, match="fit: expected what fit_gibbs"):
        alps.innovation_checks(pd.DataFrame())


def test_a_long_table_has_fewer_draws(monkeypatch):
    monkeypatch.setattr(module, "NUMBERS", 10)
    asked = []
    monkeypatch.setattr(module, "innovations", lambda fit, num: asked.append(num) or innovations(fit, num))
    alps.innovation_checks(few(memory=False))
    assert asked == [module.FEWEST_DRAWS]
