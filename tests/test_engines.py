"""Two engines side by side, and signs that agree."""

import numpy as np
import pytest
import xarray as xr

import alps_ppl as alps
from alps_ppl.results.contributions import strengths


def test_signs_are_aligned(trees):
    posterior = trees["gibbs"]["posterior"].to_dataset()
    flip = xr.DataArray(np.random.default_rng(0).choice([-1, 1], (4, 500)), dims=("chain", "draw"))
    flipped = posterior.assign(x=posterior["x"] * flip, H=posterior["H"] * flip)
    aligned, again = alps.align_signs(posterior), alps.align_signs(flipped)
    xr.testing.assert_allclose(abs(aligned["H"]), abs(posterior["H"]))
    on = (posterior["b"].sel(latent="T=7") == 1) & (posterior["b"].sel(latent="T=7 again") == 0)
    for result in (aligned, again):
        H = result["H"].sel(latent="T=7").where(on)
        assert float(H.sel(output="u").mean()) == pytest.approx(float(abs(H.sel(output="u")).mean()), rel=0.02)
        assert float(H.sel(output="v").mean()) < 0
    f = (aligned["x"] * aligned["H"] * aligned["b"]).isel(chain=0, draw=3)
    xr.testing.assert_allclose(f, (posterior["x"] * posterior["H"] * posterior["b"]).isel(chain=0, draw=3))


@pytest.fixture(scope="module")
def predictions(fits):
    """The second is another engine's of which mean and sd differ by known amounts."""
    prediction = alps.predict(fits["gibbs"], fits["gibbs"].inputs)
    mean = prediction["mean"] + 0.1 * prediction["sd"].mean("time")
    return {"svi": prediction.assign(mean=mean, sd=1.5 * prediction["sd"]), "gibbs": prediction}


def test_two_engines_side_by_side(trees, predictions):
    table = alps.compare_engines(trees, predictions).set_index(["quantity", "of"])
    wide = alps.inclusion_table(trees).pivot(index="latent", columns="engine", values="probability")
    gates = table.loc["inclusion probability"]
    np.testing.assert_allclose(gates["difference"], (wide["svi"] - wide["gibbs"]).loc[gates.index])
    np.testing.assert_allclose(table.loc["predictive mean"]["difference"], 0.1)
    np.testing.assert_allclose(table.loc["predictive sd"]["difference"], 0.5)
    found = strengths(trees).set_index(["engine", "output", "process"])
    for of, row in table.loc["strength sd"].iterrows():
        assert row["svi"] == found.loc[("svi", *of.split(", ")), "sd"]
    assert {of.split(", ")[1] for of in table.loc["strength mean"].index} == {"T=7 + T=7 again", "smooth"}


def test_neither_the_sign_nor_the_scale_of_H_is_a_difference(trees, predictions):
    posterior = trees["gibbs"]["posterior"].to_dataset()
    other = trees["gibbs"].copy()
    other["posterior"] = xr.DataTree(posterior.assign(x=posterior["x"] / -3, H=posterior["H"] * -3))
    table = alps.compare_engines({"svi": trees["gibbs"], "gibbs": other}, predictions).set_index("quantity")
    np.testing.assert_allclose(table.loc[["strength mean", "strength sd"]].difference, 0, atol=1e-12)


def test_an_engine_beside_itself(fits, predictions):
    gibbs = {"a": fits["gibbs"], "b": fits["gibbs"]}
    same = alps.compare_engines(gibbs, dict.fromkeys(("a", "b"), predictions["gibbs"]))
    assert (same.difference == 0).all()


def test_what_cannot_be_compared(trees, fits, predictions):
    later = alps.predict(fits["gibbs"], fits["gibbs"].inputs + 1)
    with pytest.raises(ValueError, match=r"predictions: .*same inputs"):
        alps.compare_engines(trees, predictions | {"svi": later})
    with pytest.raises(ValueError, match=r"two engines, the same in both, got \['svi', 'gibbs'\] and \['svi'\]"):
        alps.compare_engines(trees, {"svi": predictions["svi"]})
    other = trees["gibbs"].copy()
    posterior = trees["gibbs"]["posterior"].to_dataset()
    other["posterior"] = xr.DataTree(posterior.assign_coords(latent=[f"{name}'" for name in posterior.latent.values]))
    with pytest.raises(ValueError, match=r"trees: expected two of one model, with the same latents and outputs"):
        alps.compare_engines(trees | {"gibbs": other}, predictions)
    with pytest.raises(TypeError, match=r"trees: expected a dict of two fits or trees by engine, got SVIFit"):
        alps.compare_engines(fits["svi"], predictions)
    with pytest.raises(
        TypeError, match=r"predictions: expected a dict of two of predict's results by engine, got None"
    ):
        alps.compare_engines(trees, None)
    with pytest.raises(TypeError, match=r"predictions\['svi'\]: expected what predict returned, got str"):
        alps.compare_engines(trees, predictions | {"svi": "svi.nc"})
