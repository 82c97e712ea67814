"""Boston housing: the data and model of the file, and the 8,192 kernel ridge regressions against scikit-learn's."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

import alps_ppl as alps
from experiments import boston, subsets
from models import boston_housing


@pytest.fixture(scope="module")
def few_columns():
    """A split of five columns, 32 subsets, some of them with more features (462) than the 404 rows."""
    whole = boston_housing.data()
    return alps.Data(whole.inputs[:, [0, 5, 6, 9, 11]], whole.y, held_out={"test": whole.split == "test"})


def scikit_learn_rmse(data, chosen, ridge):
    kind, alpha = subsets.RIDGES[ridge]
    test = data.split[:, 0] == "test"
    X, X_test = data.train_inputs[:, chosen], data.inputs[test][:, chosen]
    if kind == "joint":
        mean = KernelRidge(kernel="rbf", gamma=0.5, alpha=alpha).fit(X, data.train_y[:, 0]).predict(X_test)
    else:
        fit = KernelRidge(kernel="precomputed", alpha=alpha)
        fit.fit(subsets.column_grams(X, X).sum(0), data.train_y[:, 0])
        mean = fit.predict(subsets.column_grams(X_test, X).sum(0))
    return np.sqrt(np.mean((data.loc + data.scale * mean - data.y[test, 0]) ** 2))


@pytest.mark.parametrize("ridge", subsets.RIDGES)
def test_subsets_are_scikit_learns(few_columns, ridge):
    rmse = subsets.subset_rmses(few_columns, ridge)
    test = few_columns.split == "test"
    assert rmse.shape == (32,)
    assert rmse[0] == pytest.approx(np.sqrt(np.mean((few_columns.y[test] - few_columns.loc) ** 2)))
    for subset in (1, 2, 12, 22, 29, 31):
        chosen = [k for k in range(5) if subset >> k & 1]
        # The features leave out 1e-9 of a covariance.
        assert rmse[subset] == pytest.approx(scikit_learn_rmse(few_columns, chosen, ridge), rel=1e-6)


@pytest.mark.slow
def test_all_subsets_are_scikit_learns():
    data, ridge = boston_housing.data(), "additive 0.2"
    rmse = subsets.subset_rmses(data, ridge)
    for subset in np.random.default_rng(0).integers(1, 8192, 20):
        chosen = [k for k in range(13) if subset >> k & 1]
        assert rmse[subset] == pytest.approx(scikit_learn_rmse(data, chosen, ridge), rel=1e-6)


@pytest.mark.parametrize("names", [[], ["b", "e"]])
def test_refits_are_the_subsets(few_columns, monkeypatch, names):
    monkeypatch.setattr(subsets, "COLUMNS", tuple("abcde"))
    rmses = {ridge: subsets.subset_rmses(few_columns, ridge) for ridge in subsets.RIDGES}
    subset = sum(1 << "abcde".index(name) for name in names)
    for ridge, score in subsets.rank(subsets.refits(few_columns, names), rmses).items():
        assert score["rmse"] == pytest.approx(rmses[ridge][subset], rel=1e-6)
        assert score["rank"][ridge] == 1 + np.sum(rmses[ridge] < rmses[ridge][subset] - 1e-6)


def test_the_files_ridge_is_a_refit():
    """Mean and sd: the model file's baseline by scikit-learn, and ours on all columns."""
    data = boston_housing.data()
    covariance = boston_housing._sum_of_rbfs(data, 1.0, "fixed") + boston_housing.WhiteKernel(0.2, "fixed")
    expected = subsets.score(data, *boston_housing._gp(data, covariance))
    assert subsets.refits(data, subsets.COLUMNS)["additive 0.2"] == pytest.approx(expected, rel=1e-8)


def test_the_histogram_shows_what_was_measured():
    """All subsets are in it, and each mark is at its score."""
    rng = np.random.default_rng(0)
    rmses = {ridge: rng.uniform(3, 9, 8192) for ridge in ("additive 0.2", "joint 1")}
    names = ("ridge on all, additive", "ridge on all, joint", "weighted sum of RBFs", "lasso")
    refit = {"additive 0.2": {"rmse": 3.5}, "joint 1": {"rmse": 4.5}}
    svi = {"on": ["rm"], "averaged": {"rmse": 4.0}, "refit": refit}
    baselines = {name: {"rmse": 5.0 + k} for k, name in enumerate(names)}
    row = subsets.rank({"svi": [svi], "baselines": baselines}, rmses)
    axes = subsets.plot(rmses, row)
    for ax, places in zip(axes, ([4, 3.5, 5, 7, 8], [4, 4.5, 6, 7, 8]), strict=True):
        assert sum(bar.get_height() for bar in ax.patches) == 8192
        assert [lines.get_segments()[0][0, 0] for lines in ax.collections] == places
    rank = row["svi"][0]["refit"]["joint 1"]["rank"]["joint 1"]
    assert f"rank {rank:,}" in axes[1].get_legend().get_texts()[1].get_text()
    plt.close("all")


def test_the_split_and_the_scaling():
    train = np.random.default_rng(3).permutation(506)[:404]
    raw, standardised = boston_housing.data(3), boston_housing.data(3, standardise=True)
    for data in (raw, standardised):
        assert set(np.flatnonzero(data.train_rows)) == set(train)
        assert (data.split == "test").sum() == 102
    assert raw.inputs[0, :2] == pytest.approx([0.00632, 18.0])
    np.testing.assert_allclose(standardised.train_inputs.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(standardised.train_inputs.std(0), 1)


def test_a_latent_per_column():
    data = boston_housing.data()
    model = boston_housing.model(data)
    assert tuple(model.latents) == subsets.COLUMNS
    draw = jax.vmap(lambda row: model.covariances[5](row[None], data.inputs[:1])[0, 0])(data.inputs[:20])
    np.testing.assert_allclose(draw, np.exp(-0.5 * (data.inputs[:20, 5] - data.inputs[0, 5]) ** 2))


@pytest.mark.slow
def test_a_gate_held_open_costs_log_2(monkeypatch):
    """A q whose gates are held open, and the same q in the model in which they are free, by the same draws."""
    fits, fit_svi = [], alps.fit_svi
    monkeypatch.setattr(alps, "fit_svi", lambda *args, **kwargs: fits.append(fit_svi(*args, **kwargs)) or fits[0])
    monkeypatch.setattr(boston_housing, "SVI", boston_housing.SVI | {"num_steps": 3})
    found = boston.bound_held_open(boston.PAPERS_READING, 0, ["rm", "dis"], num_inducing=3)
    fit, key = fits[0], jax.random.key(0)
    assert found["elbo"] == pytest.approx(fit.elbo - 2 * np.log(2))
    params = fit.params | {"b_logits": fit.params["b_logits"].at[jnp.array([5, 7])].set(50.0)}
    free = replace(fit, model=boston_housing.model(boston_housing.data()), params=params)
    elbos = [alps.discrete_elbo(q, key, num_particles=50)[0] for q in (free, fit)]
    assert elbos[0] == pytest.approx(elbos[1] - 2 * np.log(2), rel=1e-9)


def test_a_row_gets_what_it_lacks(monkeypatch):
    """A run is measured once for each seed and number of inducing inputs; the baselines once."""
    monkeypatch.setattr(boston, "data_and_model", lambda reading, split: (None, None))
    monkeypatch.setattr(boston, "baselines", lambda data: {"baselines": {}})
    monkeypatch.setattr(
        boston, "measure", lambda engine, data, model, seed, settings: {"seed": seed, "settings": settings, "on": []}
    )
    row = {"reading": boston.PAPERS_READING, "split": 0}
    for engine, seed, num_inducing in [("svi", 0, 50), ("svi", 0, 100), ("gibbs", 0, 50), ("gibbs", 1, 50)]:
        added = boston.add_run(row, engine, seed, num_inducing)
        assert added[engine][:-1] == row.get(engine, [])
        assert ("baselines" in added) == ("baselines" not in row)
        row |= added
        assert boston.add_run(row, engine, seed, num_inducing) == {}
    assert [len(row[engine]) for engine in ("svi", "gibbs")] == [2, 2]
