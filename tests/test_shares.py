"""Variance shares against a loop over draws, and what they must add up to."""

import numpy as np
import pytest
import xarray as xr

import alps_ppl as alps
from alps_ppl.results.shares import of_one_output


@pytest.fixture
def tree():
    """Two chains of five draws, three latents, three outputs: one with gaps, one constant."""
    rng = np.random.default_rng(0)
    coords = {"latent": ["a", "b", "c"], "output": ["u", "v", "w"], "time": np.arange(8.0)}
    draws = {
        "x": (("chain", "draw", "latent", "time"), rng.normal(size=(2, 5, 3, 8)).cumsum(-1)),
        "H": (("chain", "draw", "output", "latent"), rng.normal(size=(2, 5, 3, 3))),
        "b": (("chain", "draw", "latent"), rng.integers(0, 2, (2, 5, 3))),
    }
    y = rng.normal(size=(8, 3))
    y[[0, 3], 0] = np.nan
    y[:, 2] = 4.0
    groups = {
        "posterior": xr.Dataset(draws, coords),
        "observed_data": xr.Dataset({"y": (("time", "output"), y)}, coords),
    }
    tree = xr.DataTree.from_dict(groups)
    tree.attrs["engine"] = "gibbs"
    return tree


def test_shares_are_those_of_a_loop(tree):
    table = alps.variance_shares(tree, interval=0.5).set_index(["output", "part", "latent"])
    assert set(table.engine) == {"gibbs"}
    posterior, y = tree["posterior"], tree["observed_data"]["y"].values
    for i, output in enumerate(("u", "v")):
        times = [t for t in range(8) if not np.isnan(y[t, i])]
        shares = {"a": [], "b": [], "c": [], "noise": [], "overlap": []}
        for chain in range(2):
            for draw in range(5):
                rest = np.array([y[t, i] for t in times])
                total, covariances = np.var(rest), 0.0
                terms = []
                for j, latent in enumerate("abc"):
                    here = posterior.isel(chain=chain, draw=draw)
                    loading = float(here["H"][i, j]) * float(here["b"][j])
                    terms.append(np.array([loading * float(here["x"][j, t]) for t in times]))
                    shares[latent].append(np.var(terms[-1]) / total)
                    rest = rest - terms[-1]
                terms.append(rest)
                shares["noise"].append(np.var(rest) / total)
                for k, first in enumerate(terms):
                    for second in terms[:k]:
                        covariances += 2 * np.mean((first - first.mean()) * (second - second.mean()))
                shares["overlap"].append(covariances / total)
        for name, values in shares.items():
            row = table.loc[(output, name, "") if name in ("noise", "overlap") else (output, "latent", name)]
            expected = [np.mean(values), *np.quantile(values, [0.25, 0.75])]
            np.testing.assert_allclose(row[["share", "lower", "upper"]].astype(float), expected, atol=1e-12)


def test_shares_add_to_one_and_a_constant_output_has_none(tree):
    total = alps.variance_shares({"one": tree, "two": tree}).groupby(["engine", "output"]).share.sum(min_count=1)
    np.testing.assert_allclose(total["one"], [1, 1, np.nan])
    np.testing.assert_allclose(total["two"], total["one"])


def test_one_latent_that_is_the_output(tree):
    """Share 1 for the latent, 0 for noise and overlap."""
    posterior = tree["posterior"].to_dataset().isel(output=[0], chain=[0])
    posterior = posterior.assign(H=posterior["H"] * 0 + 2.0, b=posterior["b"] * 0 + [1, 0, 0])
    posterior = posterior.assign(x=posterior["x"] * 0 + posterior["x"].isel(draw=0))
    y = 5 + 2 * posterior["x"].isel(chain=0, draw=0, latent=0, drop=True).expand_dims(output=["u"])
    whole = xr.DataTree.from_dict({"posterior": posterior, "observed_data": xr.Dataset({"y": y})})
    shares = alps.variance_shares(whole)
    np.testing.assert_allclose(shares.share, [1, 0, 0, 0, 0], atol=1e-12)


def test_a_fit_s_shares_are_its_tree_s(fits, trees):
    assert alps.variance_shares(fits["gibbs"]).equals(alps.variance_shares({"gibbs": trees["gibbs"]}))


def test_errors(tree):
    with pytest.raises(ValueError, match=r"interval: .*between 0 and 1"):
        alps.variance_shares(tree, interval=1)
    tree["posterior"] = tree["posterior"].to_dataset().drop_vars("x")
    with pytest.raises(ValueError, match=r"expected draws of x.*to_datatree\(fit\) has them"):
        alps.variance_shares(tree)


def test_a_process_that_one_output_has(trees):
    """Nearly all of T=7's squared loadings in v, while it is on; a loop says the same."""
    tree = trees["gibbs"].copy(deep=True)
    assert "T=7" not in of_one_output(tree)
    H = tree["posterior"]["H"]
    H.loc[{"latent": "T=7", "output": ["u", "w"]}] *= 0.01
    output, share = of_one_output(tree)["T=7"]
    assert output == "v"
    on = tree["posterior"]["b"].sel(latent="T=7").values == 1
    squares = H.sel(latent="T=7").transpose("chain", "draw", "output").values[on] ** 2
    assert share == pytest.approx(np.mean([row[1] / row.sum() for row in squares]))
