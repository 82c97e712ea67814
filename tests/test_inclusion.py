"""The inclusion table and what else is said of gates."""

import arviz_stats.base
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import sines

import alps_ppl as alps
from alps_ppl.results.inclusion import COLUMNS, worst_convergence

PAIR = "T=7 or T=7 again"


def test_rows_and_groups(trees, fits):
    table = alps.inclusion_table(trees)
    assert alps.inclusion_table(fits).equals(table)
    assert list(table.columns) == COLUMNS
    assert list(table.members) == [1, 1, 1, 1, 2] * 2
    assert list(table.group) == [0, 1, 0, 2, 0] * 2
    for engine, fit in fits.items():
        rows = table[table.engine == engine].set_index("latent")
        assert list(rows.index) == [*fit.model.latents, PAIR]
        np.testing.assert_allclose(rows.probability[:4], fit.inclusion_prob, rtol=1e-6)
        assert rows.probability[PAIR] > 0.95
        assert rows.prior[PAIR] == pytest.approx(0.75)
        assert rows.probability["T=5"] < 0.4
    gibbs = table[table.engine == "gibbs"].set_index("latent")
    b = np.asarray(fits["gibbs"].samples["b"])
    assert gibbs.probability["T=5"] == pytest.approx(b[..., 1].mean(), abs=6 * np.sqrt(0.1 * 0.9 / 400))
    assert gibbs.probability[PAIR] == pytest.approx((b[..., 0] | b[..., 2]).mean())
    assert table[table.engine == "svi"].mcse.isna().all()


def test_members_of_a_group_are_not_reported_as_a_failure(trees):
    """Half of the chains on one twin, half on the other: the pair is certain, its members' R-hat isn't the fit's."""
    tree = trees["gibbs"].copy(deep=True)
    b = np.zeros((4, 500, 4), int)
    b[:2, :, 0] = b[2:, :, 2] = 1
    b[:, ::30, 1] = 1
    tree["posterior"]["b"].values[:] = b
    tree["sample_stats"]["gate_prob"].values[:] = b
    table = alps.inclusion_table({"gibbs": tree})
    rows = table.set_index("latent")
    assert rows.r_hat["T=7"] == np.inf
    assert rows.r_hat[PAIR] == 1.0
    assert worst_convergence(table, "gibbs")[0] < 1.01


def test_a_latent_may_be_named_like_a_group(trees):
    """Its row is its own, and isn't taken for the group's."""
    names = ["T=7", PAIR, "T=7 again", "smooth"]
    tree = trees["gibbs"].copy(deep=True)
    tree = tree.map_over_datasets(lambda d: d.assign_coords(latent=names) if "latent" in d.dims else d)
    tree.attrs.update(trees["gibbs"].attrs)
    tree["posterior"]["b"][:2, :, 1], tree["posterior"]["b"][2:, :, 1] = 0, 1
    table = alps.inclusion_table(tree)
    assert list(table.latent) == [*names, f"({PAIR})"]
    assert list(table.engine) == ["gibbs"] * 5
    assert worst_convergence(table, "gibbs")[0] == np.inf


def test_one_chain_has_no_r_hat_and_one_draw_tells_nothing(trees):
    """Not a made-up number, for gates that never move too."""
    one = trees["gibbs"].isel(chain=[0]).copy(deep=True)
    one["posterior"]["b"].values[..., 0] = 1
    table = alps.inclusion_table({"gibbs": one})
    assert table.r_hat.isna().all()
    assert table.mcse.notna().all()
    assert np.isnan(worst_convergence(table, "gibbs")[0])
    single = alps.inclusion_table({"gibbs": trees["gibbs"].isel(draw=[0])})
    assert single[["mcse", "r_hat", "ess"]].isna().all(axis=None)
    assert single.probability.notna().all()


def test_gate_diagnostics_vectors_and_numbers(trees, fits):
    """Against counts by loops; the probabilities' mean is the inclusion table's."""
    tree = trees["gibbs"]
    gates, probs = tree["posterior"]["b"].values, tree["sample_stats"]["gate_prob"].values
    frame = alps.gate_diagnostics(tree)
    assert frame.equals(alps.gate_diagnostics(fits["gibbs"]))
    table = alps.inclusion_table(tree).set_index("latent")
    for j, name in enumerate(frame.index):
        flips = sum(gates[c, d, j] != gates[c, d + 1, j] for c in range(4) for d in range(499))
        assert frame.flips[name] == pytest.approx(1000 * flips / (4 * 499))
        assert frame.lowest[name] <= table.probability[name] <= frame.highest[name]
        if np.ptp(probs[..., j]):
            assert frame.ess[name] == pytest.approx(float(arviz_stats.base.array_stats.ess(probs[..., j])))
    # The exchange of the two latents of period 7 makes each of them flip.
    assert frame.flips["T=7"] > 10

    vectors = alps.gate_vectors(tree)
    for _, row in vectors.iterrows():
        assert row.probability == pytest.approx((gates == row[list(frame.index)].to_numpy()).all(-1).mean())
    assert vectors.probability.is_monotonic_decreasing
    assert len(alps.gate_vectors(tree, top=2)) == 2
    numbers = alps.num_active(tree)
    assert numbers.probability.sum() == pytest.approx(1)
    assert list(numbers.index) == [0, 1, 2, 3, 4]
    assert numbers.probability[3] == pytest.approx((gates.sum(-1) == 3).mean())
    assert (numbers.mcse.dropna() > 0).all()


def test_a_pair_s_probability_agrees_over_chains_started_off_and_on():
    t, y, _ = sines(noise=0.3)
    twins = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0), "again": alps.linear_periodic(7.0)}
    start = {"b": jnp.asarray(np.repeat([[0, 0, 0], [1, 1, 1]], 2, axis=0))}
    fit = alps.fit_gibbs(
        alps.ALPS(twins, 2, noise_variance=0.1), t, y, rng_key=jax.random.key(0), num_warmup=100, num_samples=300,
        init_params=start, progress_bar=False,
    )  # fmt: skip
    b = np.asarray(fit.samples["b"])
    pair = (b[..., 0] | b[..., 2]).mean(1)
    np.testing.assert_allclose(pair, 1.0, atol=0.01)
    table = alps.inclusion_table(fit)
    assert table.set_index("latent").probability["T=7 or again"] == pytest.approx(pair.mean())
    assert worst_convergence(table, "gibbs")[0] < 1.05
