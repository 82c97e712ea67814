"""What processes add to outputs: a loop's numbers, whatever the latents' signs, scales and places are."""

import numpy as np
import pytest
import xarray as xr

from alps_ppl.app.report import sections
from alps_ppl.results import plots
from alps_ppl.results.contributions import contribution, is_on, processes_together, strengths, together
from alps_ppl.results.shares import variance_shares

OUTPUTS, LATENTS = ["u", "v", "w"], ["a", "b 1", "b 2", "c 1", "c 2"]


@pytest.fixture
def tree():
    """Five latents: a alone, two processes b of one covariance, and c, a process of two copies."""
    rng = np.random.default_rng(2)
    b = rng.integers(0, 2, (2, 15, 5))
    b[..., 0], b[..., 4] = 1, b[..., 3]
    posterior = {
        "H": (("chain", "draw", "output", "latent"), rng.normal(size=(2, 15, 3, 5))),
        "x": (("chain", "draw", "latent", "time"), rng.normal(size=(2, 15, 5, 12))),
        "b": (("chain", "draw", "latent"), b),
    }
    constant = {"covariance_group": [0, 1, 1, 2, 2], "gate": [0, 1, 2, 3, 3], "process": ["a", "b 1", "b 2", "c", "c"]}
    coords = {"output": OUTPUTS, "latent": LATENTS, "time": np.arange(12.0)}
    groups = {
        "posterior": xr.Dataset(posterior, coords),
        "constant_data": xr.Dataset({name: ("latent", values) for name, values in constant.items()}),
        "observed_data": xr.Dataset({"y": (("time", "output"), rng.normal(size=(12, 3)))}, {"output": OUTPUTS}),
    }
    return xr.DataTree.from_dict(groups)


def test_processes_of_equal_covariance_are_one(tree):
    assert processes_together(tree) == {"a": [0], "b 1 + b 2": [1, 2], "c": [3, 4]}
    assert processes_together(tree.filter(lambda node: node.name != "constant_data")) == {
        name: [k] for k, name in enumerate(LATENTS)
    }
    tree["constant_data"]["covariance_group"][:] = 0
    assert list(processes_together(tree)) == ["a + … + c"]


def test_the_sum_by_a_loop(tree):
    posterior = tree["posterior"].to_dataset()
    found = contribution(tree, [1, 2], "v")
    slow = []
    for chain in range(2):
        for draw in range(15):
            here = posterior.isel(chain=chain, draw=draw)
            H, b, x = (here[name].values for name in ("H", "b", "x"))
            if b[1] or b[2]:
                slow.append(H[1, 1] * b[1] * x[1] + H[1, 2] * b[2] * x[2])
    np.testing.assert_allclose(found, slow)
    assert is_on(tree, [1, 2]).sum() == len(slow)


def test_strengths_by_a_loop(tree):
    table = strengths(tree).set_index(["process", "output"])
    for name, places in processes_together(tree).items():
        terms = np.stack([contribution(tree, places, output) for output in OUTPUTS])
        sds = terms.std(-1)
        most = (sds**2).mean(1).argmax()
        assert table.loc[name].most.tolist() == [i == most for i in range(3)]
        for i, output in enumerate(OUTPUTS):
            values = [
                sd * (np.sign(np.cov(term, lead)[0, 1]) if name != "c" else 1)
                for sd, term, lead in zip(sds[i], terms[i], terms[most], strict=True)
            ]
            row = table.loc[name, output]
            np.testing.assert_allclose([row["mean"], row.sd], [np.mean(values), np.std(values)])
            assert row.signed == (name != "c")


def test_signs_scales_and_places_are_free(tree):
    """Flipped, scaled and, in some draws, exchanged: the same sums, strengths and shares."""
    rng = np.random.default_rng(3)
    posterior = tree["posterior"].to_dataset()
    factor = rng.normal(size=(2, 15, 5))
    x, H, b = posterior["x"] * factor[..., None], posterior["H"] / factor[:, :, None], posterior["b"]
    swap = rng.random((2, 15)) < 0.5
    order = np.where(swap[..., None], [0, 2, 1, 3, 4], np.arange(5))
    x, b = (np.take_along_axis(v.values, order.reshape(2, 15, 5, *[1] * (v.ndim - 3)), 2) for v in (x, b))
    H = np.take_along_axis(H.values, order[:, :, None], 3)
    dims = {name: posterior[name].dims for name in "xHb"}
    other = tree.copy()
    other["posterior"] = xr.DataTree(posterior.assign(x=(dims["x"], x), H=(dims["H"], H), b=(dims["b"], b)))
    np.testing.assert_allclose(contribution(other, [1, 2], "u"), contribution(tree, [1, 2], "u"))
    np.testing.assert_allclose(strengths(other)[["mean", "sd"]], strengths(tree)[["mean", "sd"]])
    shares, others = (variance_shares(t, together=True) for t in (tree, other))
    np.testing.assert_allclose(shares.share, others.share)
    assert shares.latent.unique().tolist() == ["a", "b 1 + b 2", "c", ""]
    np.testing.assert_allclose(shares.groupby("output").share.sum(), 1)


def test_what_is_never_on_has_no_row(tree):
    tree["posterior"]["b"].values[..., 0] = 0
    assert "a" not in set(strengths(tree).process)
    assert len(contribution(tree, [0], "u")) == 0


def test_nothing_on_at_all_is_drawn_and_told(tree):
    """Every gate off in every draw: figures and the page's sections are there, and empty."""
    tree["posterior"]["b"].values[:] = 0
    found = strengths(tree)
    assert len(found) == 0
    assert found.signed.dtype == bool
    assert len(plots.plot_strengths(tree)) == 1
    assert sections.mixing(tree, ["a"]) == {"processes": [], "rows": {}, "lead": {}, "unsigned": []}
    assert len(plots.plot_latents(tree)) >= 1


def test_engines_that_group_otherwise_are_summed_alike(tree):
    """SVI's learnt scales differ, so that its latents have no equal covariance where the sampler's have."""
    other = tree.copy(deep=True)
    other["constant_data"]["covariance_group"].values[:] = [0, 1, 2, 3, 3]
    trees = {"svi": other, "gibbs": tree}
    assert list(together(trees)) == ["a", "b 1 + b 2", "c"]
    found = strengths(trees)
    assert set(found[found.engine == "svi"].process) == set(found[found.engine == "gibbs"].process)
    assert len(plots.plot_strengths(trees)) == 2
    assert len(plots.plot_latents(trees)) == 2  # c is off
