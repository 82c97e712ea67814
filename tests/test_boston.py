"""Boston housing: the data and model of the file, and the 8,192 kernel ridge regressions against scikit-learn's."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.kernel_ridge import KernelRidge

import alps_ppl as alps
from alps_ppl import runner
from alps_ppl.guide import StructuredMeanField
from models import boston_housing as boston
from models import boston_subsets


@pytest.fixture(scope="module")
def few_columns():
    """A split of five columns, 32 subsets, some of them with more features (462) than the 404 rows."""
    whole = boston.data()
    return alps.Data(whole.inputs[:, [0, 5, 6, 9, 11]], whole.y, held_out={"test": whole.split == "test"})


def scikit_learn_rmse(data, chosen, ridge):
    kind, alpha = boston_subsets.RIDGES[ridge]
    test = data.split[:, 0] == "test"
    X, X_test = data.train_inputs[:, chosen], data.inputs[test][:, chosen]
    if kind == "joint":
        mean = KernelRidge(kernel="rbf", gamma=0.5, alpha=alpha).fit(X, data.train_y[:, 0]).predict(X_test)
    else:
        fit = KernelRidge(kernel="precomputed", alpha=alpha).fit(boston.column_grams(X, X).sum(0), data.train_y[:, 0])
        mean = fit.predict(boston.column_grams(X_test, X).sum(0))
    return np.sqrt(np.mean((data.loc + data.scale * mean - data.y[test, 0]) ** 2))


@pytest.mark.parametrize("ridge", boston_subsets.RIDGES)
def test_subsets_are_scikit_learns(few_columns, ridge):
    rmse = boston_subsets.subset_rmses(few_columns, ridge)
    test = few_columns.split == "test"
    assert rmse.shape == (32,)
    assert rmse[0] == pytest.approx(np.sqrt(np.mean((few_columns.y[test] - few_columns.loc) ** 2)))
    for subset in (1, 2, 12, 22, 29, 31):
        chosen = [k for k in range(5) if subset >> k & 1]
        # The features leave out 1e-9 of a covariance.
        assert rmse[subset] == pytest.approx(scikit_learn_rmse(few_columns, chosen, ridge), rel=1e-6)


@pytest.mark.slow
def test_all_subsets_are_scikit_learns():
    data, ridge = boston.data(), "additive 0.2"
    rmse = boston_subsets.subset_rmses(data, ridge)
    for subset in np.random.default_rng(0).integers(1, 8192, 20):
        chosen = [k for k in range(13) if subset >> k & 1]
        assert rmse[subset] == pytest.approx(scikit_learn_rmse(data, chosen, ridge), rel=1e-6)


def test_refits_are_the_subsets(few_columns, monkeypatch):
    monkeypatch.setattr(boston, "columns", lambda: list("abcde"))
    ranks = {ridge: boston_subsets.subset_rmses(few_columns, ridge) for ridge in boston_subsets.RIDGES}
    for ridge, score in boston_subsets.rank(boston_subsets.refits(few_columns, ["b", "e"]), ranks).items():
        assert score["rmse"] == pytest.approx(ranks[ridge][0b10010], rel=1e-6)
        assert score["rank"][ridge] == 1 + np.sum(ranks[ridge] < ranks[ridge][0b10010] - 1e-6)


def test_the_histogram_shows_what_was_measured():
    """All subsets are in it, and each mark is at its score."""
    rng = np.random.default_rng(0)
    ranks = {ridge: rng.uniform(3, 9, 8192) for ridge in ("additive 0.2", "joint 1")}

    def score(rmse):
        return {"rmse": rmse, "rank": {ridge: 1 + int((rmses < rmse).sum()) for ridge, rmses in ranks.items()}}

    refit = {"additive 0.2": score(3.5), "joint 1": score(4.5)}
    names = ("ridge on all, additive", "ridge on all, joint", "weighted sum of RBFs", "lasso")
    baselines = {name: score(5.0 + k) for k, name in enumerate(names)}
    row = {"svi": [{"on": ["rm"], "averaged": score(4.0), "refit": refit}], "baselines": baselines}
    axes = boston_subsets.plot_subsets(ranks, row)
    for ax, places in zip(axes, ([4, 3.5, 5, 7, 8], [4, 4.5, 6, 7, 8]), strict=True):
        assert sum(bar.get_height() for bar in ax.patches) == 8192
        assert [lines.get_segments()[0][0, 0] for lines in ax.collections] == places
    assert f"rank {refit['joint 1']['rank']['joint 1']:,}" in axes[1].get_legend().get_texts()[1].get_text()
    plt.close("all")


def test_the_split_and_the_scaling():
    train = np.random.default_rng(3).permutation(506)[:404]
    raw, standardised = boston.data(3), boston.data(3, standardise=True)
    for data in (raw, standardised):
        assert set(np.flatnonzero(data.train_rows)) == set(train)
        assert (data.split == "test").sum() == 102
    assert raw.inputs[0, :2] == pytest.approx([0.00632, 18.0])
    np.testing.assert_allclose(standardised.train_inputs.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(standardised.train_inputs.std(0), 1)


def test_a_latent_per_column():
    data = boston.data()
    model = boston.model(data)
    assert list(model.latents) == boston.columns()
    draw = jax.vmap(lambda row: model.covariances[5](row[None], data.inputs[:1])[0, 0])(data.inputs[:20])
    np.testing.assert_allclose(draw, np.exp(-0.5 * (data.inputs[:20, 5] - data.inputs[0, 5]) ** 2))


def test_a_gate_held_open_costs_log_2(monkeypatch):
    """A q whose gates are held open, and the same q in the model in which they are free, by the same draws."""
    monkeypatch.setattr(boston, "SVI", boston.SVI | {"num_steps": 3})
    held = boston_subsets.bound_held_open(0, boston_subsets.PAPERS_READING, ["rm", "dis"], num_inducing=3)
    data, key = boston.data(), jax.random.key(0)
    model, free = boston.model(data, always_on=["rm", "dis"]), boston.model(data)
    inputs, y = model.check(data.train_inputs, data.train_y)
    fit = runner.fit("svi", model, inputs, y, boston.SVI | {"num_inducing": 3}, key)
    assert held["elbo"] == pytest.approx(fit.elbo - 2 * np.log(2))
    params = fit.params | {"b_logits": fit.params["b_logits"].at[jnp.array([5, 7])].set(50.0)}
    same = replace(fit, model=free, guide=StructuredMeanField(free, fit.guide.inducing_inputs), params=params)
    elbos = [alps.discrete_elbo(q, inputs, y, key, num_particles=50)[0] for q in (same, fit)]
    assert elbos[0] == pytest.approx(elbos[1] - 2 * np.log(2), rel=1e-9)


def test_weighted_rbfs_gradient():
    """Against central differences in the logarithms of the weights."""
    covariance = boston.WeightedRBFs(np.array([0.5, 2.0, 1.3]))
    X = np.random.default_rng(0).normal(size=(6, 3))
    K, gradient = covariance(X, eval_gradient=True)
    np.testing.assert_allclose(K.diagonal(), covariance.diag(X))
    for k in range(3):
        step = 1e-6 * np.eye(3)[k]
        up, down = (covariance.clone_with_theta(covariance.theta + sign * step)(X) for sign in (1, -1))
        np.testing.assert_allclose(gradient[:, :, k], (up - down) / 2e-6, atol=1e-8)


def test_ridge_on_all_is_a_kernel_ridge():
    data = boston.data()
    mean, sd = boston.gp(data, boston.WeightedRBFs(np.ones(13), "fixed") + WhiteKernel(1.0, "fixed"))
    test = data.split == "test"
    expected = scikit_learn_rmse(data, list(range(13)), "additive 1")
    assert np.sqrt(np.mean((mean - data.y)[test] ** 2)) == pytest.approx(expected)
    assert (sd[test] > data.scale).all()  # its noise alone has sd 1
