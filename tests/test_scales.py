"""Unknown scales: the program, the sampler's parts against dense algebra, predictions and files."""

import functools
from itertools import product
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import reference
import xarray as xr
from numpyro import handlers
from numpyro.infer import MCMC
from numpyro.infer.util import log_density
from scipy.special import logsumexp
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.app.report.notes import interchangeable_notes, scale_notes
from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs import features
from alps_ppl.gibbs.gaussians import PrecisionNormal
from alps_ppl.gibbs.scales import STEPS, draw_with_gate, move_point
from alps_ppl.gibbs.target import Chain, Target
from alps_ppl.model.memory import PrivateMemory
from alps_ppl.model.scales import scale_grid
from alps_ppl.results.scales import _candidates
from alps_ppl.svi.fit import _starts

T = np.array([3.0, 0.5, 0.9, 2.0, 2.3, 7.0, 4.4])
SHARE, LENGTH = np.array([0.0, 0.8, 0.999]), np.array([1.0, 0.4, 9.0])
RANGES = {"smooth": {"scale": (1.5, 4.0, 3)}, "rough": {"scale": (0.5, 3.0, 4)}}


def cells():
    y = np.random.default_rng(0).normal(size=(7, 3))
    y[1, 0] = y[[2, 4], 1] = y[6] = np.nan
    return y


@functools.cache
def bound(states, memory):
    """A kernel that has seen the data, and where a chain is."""
    model = alps.ALPS(
        {"smooth": kernels.ExpSquared(scale=2.0), "rough": kernels.Exp(scale=1.0), "wave": alps.linear_periodic(2.5)},
        3,
        copies={"smooth": 2},
        inclusion_prob=[0.3, 0.6, 0.5],
        noise_variance=dist.InverseGamma(3.0, 1.0),
        private_memory=PrivateMemory(SHARE, LENGTH, np.log([0.5, 0.3, 0.2])) if memory else None,
        covariance_ranges=RANGES,
    )
    kernel = alps.ALPSGibbs(model)
    with mock.patch.object(features, "LOW_RANK", 2 if states else features.LOW_RANK):
        kernel.bind(T, cells())
    assert (kernel.features.space is not None) == states
    rng = np.random.default_rng(5)
    chain = Chain(
        H=jnp.asarray(0.5 * rng.normal(size=(3, 4))),
        b=jnp.array([1.0, 1.0, 1.0, 0.0]),
        weights=jnp.asarray(rng.normal(size=len(kernel.plan.layout.owner))),
        noise_variance=jnp.array([0.2, 0.5, 0.9]),
        memory=jnp.array([1, 2, 0]) if memory else None,
        scales=jnp.array([2, 1]),
    )
    logits = jnp.asarray(model.inclusion_logits)
    return Target(kernel.plan, model, kernel.stats, logits, jnp.full(3, jnp.nan)), chain, kernel


def dense_evidence(target, chain, b, points):
    """Log p(Y | H, b, s^2, the memories, the scales) from the dense joint of all observed cells."""
    grids = [unknown.grid for unknown in target.model.unknown_scales.values()]
    names = target.model.scale_sites
    sites = {name: float(grid.values[k]) for name, grid, k in zip(names, grids, points, strict=True)}
    own = (
        chain.memory
        if chain.memory is None
        else [reference.own_covariance(SHARE[g], LENGTH[g], T, T) for g in chain.memory]
    )
    covariances = target.model.at_scales(sites)
    return reference.log_evidence(covariances, chain.H, np.asarray(b), chain.noise_variance, T, cells(), own)


KINDS = pytest.mark.parametrize(("states", "memory"), [(False, False), (True, False), (False, True), (True, True)])


@KINDS
def test_evidence_at_every_point_is_the_dense_joints(states, memory):
    target, chain, _ = bound(states, memory)

    @jax.jit
    def evidence(points):
        return c.log_evidence(target.given(chain._replace(scales=points)), chain.H, chain.b, chain.noise_variance)

    for points in product(range(3), range(4)):
        expected = dense_evidence(target, chain, chain.b, points)
        np.testing.assert_allclose(evidence(jnp.array(points)), expected, atol=1e-6)


class WithoutDeterminant(PrecisionNormal):
    """A mistake on purpose."""

    @property
    def log_integral(self):
        return super().log_integral + self._half_log_det


@pytest.mark.parametrize(("states", "memory"), [(False, False), (True, True)])
def test_gate_and_scale_are_drawn_from_their_conditional(states, memory):
    """Over evenly spread uniforms, each of (off, each point) comes as often as dense evidences say."""
    found, expected, prob = frequencies(states, memory)
    np.testing.assert_allclose(found, expected, atol=2 / MANY + 1e-6)
    np.testing.assert_allclose(prob, 1 - expected[-1], atol=1e-6)


def test_a_mistake_in_that_conditional_is_caught():
    with mock.patch("alps_ppl.gibbs.scales.PrecisionNormal", WithoutDeterminant):
        found, expected, _ = frequencies(False, False)
    assert np.abs(found - expected).max() > 10 * (2 / MANY)


MANY = 4000


def frequencies(states, memory):
    """How often each of (each point, off) is drawn, how often dense evidences say, and the gate's probability."""
    target, chain, _ = bound(states, memory)
    many = MANY
    even = (np.arange(many) + 0.5) / many
    uniforms = jnp.asarray(np.stack([even, np.full(many, 0.5), even, even], 1))

    def draw(u):
        after = draw_with_gate(target, chain, 0, u)
        return after.b[0], after.scales[0], after.gate_probs[0][0]

    b, point, prob = jax.jit(lambda us: jax.lax.map(draw, us))(uniforms)
    off = np.array([0.0, 0.0, 1.0, 0.0])
    grid = target.model.unknown_scales["smooth"].grid
    on = [dense_evidence(target, chain, chain.b, (k, 1)) + grid.log_prior[k] + np.log(0.3 / 0.7) for k in range(3)]
    logs = np.array([*on, dense_evidence(target, chain, off, (0, 1))])
    expected = np.exp(logs - logsumexp(logs))
    found = [((b == 1) & (point == k)).mean() for k in range(3)]
    return np.array([*found, (b == 0).mean()]), expected, prob


def test_a_point_beside_states_is_moved_by_metropolis():
    """A proposal is accepted up to the ratio of dense evidences, and one is from the prior while the gate is off."""
    target, chain, _ = bound(True, True)
    log_ratio = dense_evidence(target, chain, chain.b, (2, 2)) - dense_evidence(target, chain, chain.b, (2, 1))
    up = (STEPS.index(1) + 0.5) / len(STEPS)  # the next point, by a step
    move = jax.jit(lambda chain, u: move_point(target, chain, 1, u, None))
    for accept, expected in ((log_ratio - 1e-4, 2), (log_ratio + 1e-4, 1)):
        after, here = move(chain, jnp.array([up, 0.5, 0.9, np.exp(min(accept, -1e-9))]))
        assert after.scales[1] == (expected if log_ratio < 0 else 2)
        np.testing.assert_allclose(here, dense_evidence(target, chain, chain.b, (2, int(after.scales[1]))), atol=1e-6)
    off = chain._replace(b=jnp.array([1.0, 1.0, 0.0, 0.0]))
    us = (np.arange(400) + 0.5) / 400
    drawn = np.array([move(off, jnp.array([0.5, u, 0.9, 0.5]))[0].scales[1] for u in us])
    prior = np.exp(target.model.unknown_scales["rough"].grid.log_prior)
    np.testing.assert_allclose([(drawn == k).mean() for k in range(4)], prior, atol=2 / 400)


@functools.cache
def fitted():
    """A short run on a cycle of unknown period and a memory of unknown scale."""
    rng = np.random.default_rng(2)
    t = np.arange(70.0)
    y = np.stack([np.sin(2 * np.pi * (t - lag) / 11.3) for lag in (0, 2)], 1) + 0.3 * rng.normal(size=(70, 2))
    model = alps.ALPS(
        {"wave": alps.linear_periodic(10.0), "rough": kernels.Exp(scale=5.0), "smooth": kernels.ExpSquared(scale=20.0)},
        2,
        copies={"wave": 2},
        noise_variance=dist.InverseGamma(1.0, 0.2),
        private_memory=alps.private_memory(t, lengthscales=[2.0, 20.0]),
        covariance_ranges={
            "wave": {"scale": (9.0, 14.0, 360)},
            "rough": {"scale": (1.0, 40.0)},
            "smooth": {"scale": (10.0, 40.0)},
        },
    )
    settings = {"num_warmup": 60, "num_samples": 60, "num_chains": 2, "progress_bar": False}
    return t, y, model, alps.fit_gibbs(model, t, y, rng_key=jax.random.key(0), **settings)


@pytest.mark.slow
def test_a_period_is_found():
    *_, fit = fitted()
    assert fit.inclusion_prob[0] > 0.99
    period = np.asarray(fit.samples["wave.scale"])
    assert abs(period.mean() - 11.3) < 4 * period.std() + 0.05
    assert period.std() < 0.3


@pytest.mark.slow
def test_latents_at_new_inputs_are_conditioned_on_those_of_each_draw():
    """X at new inputs given x at the fitted ones, densely, with each draw's own scales."""
    t, _, model, fit = fitted()
    new = np.array([10.5, 69.5, 71.0, 80.0, 100.0])
    found = fit.at(jnp.asarray(new), 6)
    thin = {name: np.asarray(value) for name, value in fit.thin(6).items()}
    x = np.asarray(fit.samples["x"]).reshape(-1, 4, 70)
    at = np.linspace(0, len(x) - 1, 6).round().astype(int)
    for s in range(6):
        expected, variance = np.zeros((2, 5)), np.zeros((2, 5))
        sites = {name: float(thin[name][s]) for name in model.scale_sites}
        for j, k in enumerate(model.at_scales(sites)):
            K, cross = reference.gram(k, t, t), reference.gram(k, new, t)
            gain = cross @ np.linalg.pinv(K, 1e-11, hermitian=True)
            h = thin["H"][s][:, j] * model.gates(thin["b"][s])[j]
            expected += np.outer(h, gain @ x[at[s], j])
            variance += np.outer(h**2, np.clip(np.diag(reference.gram(k, new, new) - gain @ cross.T), 0, None))
        places = found.weights[s][found.places]  # (new, column)
        columns = (np.asarray(found.owner)[:, None] == np.arange(found.gated_H.shape[-1])).astype(float)
        mean = found.gated_H[s] @ ((places * found.basis) @ columns).T
        np.testing.assert_allclose(mean, expected, atol=1e-4)
        np.testing.assert_allclose(found.gated_H[s] ** 2 @ found.latent_variance, variance, atol=1e-4)


@pytest.mark.slow
def test_a_file_gives_the_same_predictions(tmp_path):
    t, _, _, fit = fitted()
    alps.save(fit, tmp_path / "fit.nc")
    again = alps.load(tmp_path / "fit.nc")
    new = np.r_[t[::9], 75.0, 90.5]
    before, after = alps.predict(fit, new), alps.predict(again, new)
    for name in ("mean", "sd", "lower", "upper"):
        np.testing.assert_array_equal(before[name], after[name])
    assert again.model.scale_sites == ("wave.scale", "rough.scale", "smooth.scale")
    np.testing.assert_array_equal(again.samples["wave.scale"], fit.samples["wave.scale"])


@pytest.mark.slow
def test_numpyros_mcmc_gives_the_same_draws():
    t, y, model, fit = fitted()
    mcmc = MCMC(
        alps.ALPSGibbs(model),
        num_warmup=60,
        num_samples=60,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), t, y)
    again = alps.from_mcmc(mcmc)
    np.testing.assert_allclose(again.samples["wave.scale"], fit.samples["wave.scale"])
    np.testing.assert_allclose(again.samples["x"], fit.samples["x"], atol=1e-8)
    np.testing.assert_allclose(mcmc.get_samples(group_by_chain=True)["rough.scale"], fit.samples["rough.scale"])


def test_the_tree_has_the_scales():
    *_, fit = fitted()
    tree = alps.to_datatree(fit, num_draws=5)
    assert tree["posterior"]["wave.scale"].dims == ("chain", "draw")
    assert np.isfinite(tree["log_likelihood"]["y"]).all()


def test_the_program_draws_scales_and_weighs_them():
    model = bound(False, False)[0].model
    trace = handlers.trace(handlers.seed(model, 3)).get_trace(T)
    sites = {name: site["value"] for name, site in trace.items() if site["type"] == "sample"}
    assert float(sites["rough.scale"]) in np.asarray(model.unknown_scales["rough"].grid.values)
    y = sites.pop("y")
    total, _ = log_density(model, (T, y), {}, sites)
    scales = {name: sites.pop(name) for name in model.scale_sites}
    fixed = alps.ALPS(
        dict(zip(("a", "b", "c", "d"), model.at_scales(scales), strict=True)),
        3,
        shared_gates={"both": ["a", "b"]},
        inclusion_prob=[0.3, 0.3, 0.6, 0.5],
        noise_variance=dist.InverseGamma(3.0, 1.0),
    )
    without, _ = log_density(fixed, (T, y), {}, sites)
    of_scales = [
        unknown.grid.log_prior[int(unknown.grid.nearest(scales[f"{name}.scale"]))]
        for name, unknown in model.unknown_scales.items()
    ]
    np.testing.assert_allclose(total, without + sum(of_scales), rtol=1e-10)


@pytest.mark.parametrize("kind", ["lengthscale", "period"])
def test_a_grids_prior_is_log_uniform(kind):
    grid = scale_grid(2.0, 8.0, 400, kind)
    assert (min(grid.values), max(grid.values)) == (pytest.approx(2.0), pytest.approx(8.0))
    weights = np.exp(grid.log_prior)
    np.testing.assert_allclose(weights.sum(), 1.0)
    np.testing.assert_allclose(weights[grid.values < 4.0].sum(), 0.5, atol=0.01)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"c": {"scale": (1.0, 2.0)}}, "latents"),
        ({"a": {"period": (1.0, 2.0)}}, "parameters"),
        ({"a": {"scale": (2.0, 1.0)}}, r"\(low, high\)"),
        ({"a": {"scale": (0.0, 1.0)}}, r"\(low, high\)"),
        ({"a": {"scale": (1.0, np.inf)}}, r"\(low, high\)"),
        ({"a": {"scale": 3.0}}, r"\(low, high\)"),
        ({"a": {"scale": (1.0, 2.0, 2.5)}}, "whole number of points"),
        ({"a": {"scale": (1.0, 2.0, 10**6)}}, "whole number of points"),
        ({"a": {}}, "one parameter"),
        ({"a": 3}, r"\{parameter: \(low, high\)\}"),
        (3, r"\{latent: \{parameter: \(low, high\)\}\}"),
    ],
)
def test_what_isnt_a_range_is_refused(ranges, words):
    with pytest.raises((ValueError, TypeError), match=words):
        alps.ALPS({"a": alps.linear_periodic(4.0)}, 1, noise_variance=1.0, covariance_ranges=ranges)


def test_too_few_periods_for_a_long_series_are_refused_with_the_number():
    model = alps.ALPS(
        {"a": alps.linear_periodic(24.0)}, 1, noise_variance=1.0, covariance_ranges={"a": {"scale": (20.0, 28.0)}}
    )
    t = np.arange(2000.0)
    with pytest.raises(ValueError, match=r"too few .* give \(low, high, 3657\)"):
        alps.ALPSGibbs(model).bind(t, np.zeros((2000, 1)))
    with pytest.raises(ValueError, match="narrow the range"):
        alps.ALPSGibbs(model).bind(10 * t, np.zeros((2000, 1)))


def test_svi_learns_a_range_as_bounds():
    model = bound(False, False)[0].model
    learning = model.with_bounds()
    assert learning.covariance_bounds["smooth"] == {"scale": (pytest.approx(1.5), pytest.approx(4.0))}
    assert not learning.unknown_scales
    starts = [float(start["smooth.scale"]) for start in _starts(learning, 3, jnp.float64)]
    assert len(set(starts)) == 3  # of copies, too
    np.testing.assert_allclose(starts[0], np.log(np.sqrt(1.5 * 4.0)))


def test_candidates_are_what_draws_leave_gaps_between():
    grid = np.linspace(20.0, 28.0, 401)
    values = np.r_[np.full(30, grid[100]), np.full(60, grid[200]), np.full(9, grid[203]), grid[390]]
    first, second = _candidates(values, grid)
    assert (len(first), len(second)) == (69, 30)  # one draw of a hundred is none


def tree_of_two():
    """Draws of two interchangeable memories that change places, the larger one of lengthscale 8, the other of 2."""
    model = alps.ALPS(
        {"m 1": kernels.Exp(scale=4.0), "m 2": kernels.Exp(scale=4.0), "w": alps.linear_periodic(3.0)},
        2,
        noise_variance=0.1,
        covariance_ranges={name: {"scale": (1.0, 16.0, 5)} for name in ("m 1", "m 2")},
    )
    t, y = np.arange(12.0), np.random.default_rng(0).normal(size=(12, 2))
    fit = alps.fit_gibbs(
        model, t, y, rng_key=jax.random.key(0), num_warmup=2, num_samples=4, num_chains=1, progress_bar=False
    )
    tree = alps.to_datatree(fit)
    posterior = tree["posterior"].to_dataset()
    x = np.zeros((1, 4, 3, 12))
    x[..., 0, :] = x[..., 1, :] = y[:, 0]
    swap = np.array([False, True, False, True])
    of = {"m 1.scale": np.where(swap, 2.0, 8.0)[None], "m 2.scale": np.where(swap, 8.0, 2.0)[None]}
    H = np.zeros((1, 4, 2, 3))
    H[0, :, 0, 0], H[0, :, 0, 1] = np.where(swap, 0.5, 1.0), np.where(swap, 1.0, 0.5)
    b = np.ones((1, 4, 3), int)
    b[0, 3, 0] = 0
    values = {"x": x, "H": H, "b": b} | of
    changed = posterior.assign({name: (posterior[name].dims, value) for name, value in values.items()})
    tree["posterior"] = xr.DataTree(changed)
    return tree


def test_interchangeable_processes_are_told_apart_by_their_size():
    found = alps.interchangeable(tree_of_two())
    assert found.processes.unique().tolist() == ["m 1, m 2"]
    first, second = (found[(found["rank"] == rank) & (found.output == "y1")].iloc[0] for rank in (1, 2))
    assert (first.probability, second.probability) == (1.0, 0.75)
    np.testing.assert_allclose([first.share, second.share], [1.0, 0.25])
    assert (first["median"], second["median"]) == (8.0, 2.0)
    assert found[found.output == "y2"].share.tolist() == [0.0, 0.0]


def test_the_table_of_scales():
    fit = fitted()[-1]
    found = alps.scales(fit).set_index("process")
    assert found.parameter.to_dict() == {"wave": "period"} | dict.fromkeys(found.index.drop("wave"), "lengthscale")
    on = fit.samples["b"].mean((0, 1))
    assert set(found.index) == {n for n, p in zip(fit.model.gate_names, on, strict=True) if p > 0.1}
    wave = found.loc["wave"]
    assert wave.lower < wave["median"] < wave.upper
    assert wave.probability == 1.0


def test_peaks_of_an_unknown_period_move_with_the_inputs():
    """Far from zero, the phase there says nothing of a period that isn't known."""
    tree = alps.to_datatree(fitted()[-1])
    before = alps.cycles(tree)
    posterior = tree["posterior"].to_dataset()
    tree["posterior"] = xr.DataTree(posterior.assign_coords(time=posterior["time"] + 100_000.0))
    after = alps.cycles(tree)
    for name in ("peak", "peak_lower", "peak_upper"):
        np.testing.assert_allclose(after[name], before[name] + 100_000.0, rtol=0, atol=1e-6)


def test_an_unknown_period_has_amplitudes_and_peaks():
    rows = alps.cycles(fitted()[-1]).set_index(["process", "output"])
    assert rows.loc[("wave", "y1")].amplitude == pytest.approx(1.0, abs=0.3)
    shift = rows.loc[("wave", "y2")].peak - rows.loc[("wave", "y1")].peak
    assert (shift - 2) % 11.3 == pytest.approx(0, abs=0.7) or (shift - 2) % 11.3 == pytest.approx(11.3, abs=0.7)


def test_the_pages_sentence_on_processes_that_change_places(key):
    """Two shifts of a known truth: their number and the time of the larger, as a date where there are dates."""
    rng = np.random.default_rng(0)
    t = np.arange(60.0)
    y = np.where(t > 29.5, 2.0, 0.0)[:, None] * [1.0, -1.0] + 0.3 * rng.normal(size=(60, 2))
    ranges = {name: {"at": (0.5, 58.5, 59)} for name in ("shift 1", "shift 2")}
    model = alps.ALPS(dict.fromkeys(ranges, alps.step(20.0)), 2, noise_variance=0.1, covariance_ranges=ranges)
    fit = alps.fit_gibbs(model, t, y, rng_key=key, num_warmup=50, num_samples=50, num_chains=2)
    data = alps.Data(pd.date_range("2024-01-01", periods=60), y, outputs=["y1", "y2"])
    (note,) = interchangeable_notes(alps.to_datatree(fit), data.conversion)
    assert "Number 1 by size, time 2024-01-30" in note.text
    (note,) = interchangeable_notes(alps.to_datatree(fit), None)
    assert "time 29.5 (" in note.text


def test_a_step_outside_of_the_times_is_refused(key):
    model = alps.ALPS({"shift": alps.step(3.0)}, 1, noise_variance=0.3, covariance_ranges={"shift": {"at": (20, 50)}})
    with pytest.raises(ValueError, match="expected a step's times within the fitted ones, from 0 to before 7"):
        alps.fit_gibbs(model, np.arange(8.0), np.zeros((8, 1)), rng_key=key)


@pytest.mark.parametrize(
    ("row", "words"), [(19, "leaves one time alone: a spike there looks the same."), (10, "after 9.5")]
)
def test_a_shift_of_one_row_may_be_a_spike(row, words, key):
    """A wider range isn't to be had: it is the table's."""
    t = np.arange(20.0)
    y = np.where(t >= row, 5.0, 0.0)[:, None] + 0.3 * np.random.default_rng(0).normal(size=(20, 3))
    ranges = {"shift": {"at": (0.5, 18.5, 19)}}
    model = alps.ALPS({"shift": alps.step(5.0)}, 3, noise_variance=0.1, covariance_ranges=ranges)
    fit = alps.fit_gibbs(model, t, y, num_warmup=20, num_samples=20, num_chains=2, rng_key=key, progress_bar=False)
    (note,) = scale_notes(alps.to_datatree(fit), ["shift"], None)
    assert words in note.text
    assert note.level == ("caution" if row == 19 else "plain")
