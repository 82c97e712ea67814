"""The sampler as a NumPyro kernel and behind ``fit_gibbs``: chains, starts, states, and what is wrong with arguments.

Its answers are compared with exact ones in test_exact.py and test_gates.py.
"""

import pickle
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density
from problems import finite, periods, sines
from simulation import choose
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import kernel as gibbs_kernel
from alps_ppl.gibbs import moves
from alps_ppl.gibbs.kernel import CHOICE
from alps_ppl.gibbs.statistics import Statistics
from alps_ppl.gibbs.sweep import sweep
from alps_ppl.results.inclusion import worst_convergence

ROOT = Path(__file__).parents[1]


def fit(model, t, y, *, seed=0, num_warmup=50, num_samples=100, num_chains=4, **settings):
    """A short fit: of the same sizes, so that what is compiled serves the next one, too."""
    lengths = {"num_warmup": num_warmup, "num_samples": num_samples, "num_chains": num_chains}
    return alps.fit_gibbs(model, t, y, rng_key=jax.random.key(seed), progress_bar=False, **lengths, **settings)


@pytest.fixture(scope="module")
def small():
    """A model that learns its noise, 20 times, and y of two outputs with a cell missing."""
    t, y, _ = sines(20)
    y[3, 1] = np.nan
    return periods(noise_variance=dist.InverseGamma(2.0, 0.2)), jnp.asarray(t), jnp.asarray(y)


LENGTHS = {"num_warmup": 5, "num_samples": 10, "num_chains": 2, "thinning": 2}
BARS = [(False, method) for method in ("sequential", "parallel", "vectorized")]
BARS += [pytest.param(*case, marks=pytest.mark.slow) for case in ((False, jax.vmap), (True, "sequential"))]


@pytest.mark.parametrize(("progress_bar", "chain_method"), BARS)
def test_numpyros_mcmc_in_every_chain_method(small, key, progress_bar, chain_method, monkeypatch):
    """Sites, extra fields and thinning; and ``fit_gibbs``'s draws are those of vectorized chains, to round-off."""
    monkeypatch.delenv("CI", raising=False)
    model, t, y = small
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one device: "parallel" falls back; vmap has no bar
        mcmc = MCMC(
            alps.ALPSGibbs(model, moves="paper"), **LENGTHS, chain_method=chain_method, progress_bar=progress_bar
        )
        mcmc.run(key, t, y, extra_fields=("z.H",))
    samples, extra = mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)
    assert {name: value.shape for name, value in samples.items()} == {
        "b": (2, 5, 2),
        "H": (2, 5, 2, 2),
        "weights": (2, 5, 4),
        "noise_variance": (2, 5, 2),
    }
    assert samples["b"].dtype == jnp.int32
    assert extra["gate_prob"].shape == (2, 5, 2)
    np.testing.assert_array_equal(extra["z.H"], samples["H"])
    assert not np.array_equal(samples["H"][0], samples["H"][1])
    theirs = alps.from_mcmc(mcmc)
    assert theirs.samples["x"].shape == (2, 5, 2, 20)
    assert np.isfinite(theirs.sample_stats["lp"]).all()
    if chain_method == "vectorized":
        mine = alps.fit_gibbs(model, t, y, rng_key=key, moves="paper", **LENGTHS, progress_bar=progress_bar)
        for name in mine.samples:
            np.testing.assert_allclose(mine.samples[name], theirs.samples[name], atol=1e-9)
        for name in ("gate_prob", "lp"):
            np.testing.assert_allclose(mine.sample_stats[name], theirs.sample_stats[name], atol=1e-8)


@pytest.mark.slow
def test_post_warmup_state_continues(small, key):
    """Going on is sampling from the last state: one sweep of it by hand is the first new draw."""
    model, t, y = small
    kernel = alps.ALPSGibbs(model, moves="paper")
    mcmc = MCMC(kernel, num_warmup=5, num_samples=3, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.warmup(key, t, y)
    mcmc.run(jax.random.key(1), t, y)
    mcmc.post_warmup_state = last = mcmc.last_state
    mcmc.run(last.rng_key, t, y)
    assert mcmc.get_samples()["b"].shape == (6, 2)
    by_hand = jax.jit(lambda state: kernel.sample(state, (t, y), {}))(last)
    np.testing.assert_allclose(mcmc.get_samples(group_by_chain=True)["H"][:, 0], by_hand.z["H"], rtol=1e-9)


def test_keyword_data_lists_and_a_pickled_kernel(small, key):
    model, t, y = small
    kernel = pickle.loads(pickle.dumps(alps.ALPSGibbs(model, moves="paper")))
    assert kernel.moves == "paper"
    kernel.init(key, 0, None, (np.asarray(t).tolist(),), {"y": np.asarray(y).tolist()})
    np.testing.assert_array_equal(kernel.y, y)
    assert pickle.loads(pickle.dumps(kernel)).plan == kernel.plan


def test_nothing_that_is_kept_is_as_long_as_the_data(key):
    """Neither states nor draws: at 37 times no array has an axis of 37."""
    t, y, _ = sines(37)
    model = periods()
    kernel = alps.ALPSGibbs(model)
    kernel.bind(t, y)
    state = kernel.first_states(key, 0, None)
    swept = jax.eval_shape(partial(sweep, kernel.plan, model, kernel.stats), state)
    fitted = fit(model, t, y)
    kept = [state, kernel.stats, swept, fitted.sites, fitted.weights, fitted.sample_stats]
    assert not any(37 in np.shape(leaf) for leaf in jax.tree.leaves(kept))
    assert fitted.samples["x"].shape[-1] == 37


@pytest.mark.parametrize(
    ("num_times", "num_outputs", "lengthscale", "num_chains"), [(150, 1, 3.0, 4), (150, 2, 3.0, 4), (60, 1, 2.0, 16)]
)
def test_one_latent_of_many_features_ends(num_times, num_outputs, lengthscale, num_chains):
    """Chains side by side never did: XLA's program for them hung on two cores."""
    y = np.random.default_rng(0).normal(size=(num_times, num_outputs))
    y[1, -1] = np.nan
    covariance = kernels.ExpSquared(lengthscale)
    model = alps.ALPS({"rough": covariance}, num_outputs, noise_variance=dist.InverseGamma(2.0, 0.2))
    lengths = {"num_warmup": 200, "num_samples": 200, "num_chains": num_chains}  # of 50 and 100 sweeps it did end
    sampled = fit(model, np.arange(float(num_times)), y, start="dispersed", **lengths)
    assert np.isfinite(sampled.sample_stats["lp"]).all()


@pytest.mark.slow
def test_potential_energy_is_the_programs(rough_model, rough_data):
    """Up to a constant: weights for latents change the density by the determinant of Phi only."""
    fitted = fit(rough_model, *rough_data, num_samples=6, num_warmup=3, num_chains=2, moves="paper")
    draws = {name: np.concatenate(value) for name, value in fitted.samples.items()}
    joint = jax.jit(jax.vmap(lambda sites: log_density(rough_model, rough_data, {}, sites)[0]))(draws)
    np.testing.assert_allclose(np.ptp(joint - np.concatenate(fitted.sample_stats["lp"])), 0.0, atol=1e-8)


# --- starts


def test_start_from_given_sites(small, key):
    model, t, y = small
    kernel = alps.ALPSGibbs(model)
    kernel.bind(t, y)
    x = jnp.stack([jnp.sin(2 * jnp.pi * t / 7), jnp.cos(2 * jnp.pi * t / 5)])
    start = {"b": jnp.array([1.0, 0.0]), "x": x, "noise_variance": jnp.array([0.3, 0.4])}
    z = kernel.first_states(key, 0, start).z
    np.testing.assert_array_equal(z["b"], [1, 0])
    np.testing.assert_allclose(kernel.features.latents(z["weights"], kernel.features.phi()), x, atol=1e-8)
    np.testing.assert_allclose(z["noise_variance"], [0.3, 0.4])


@pytest.mark.slow
def test_gates_are_held_open_for_half_of_the_warm_up(key):
    """By every move: all but those that can't be open; then they move. Not where b or another start is given."""
    t, rng = np.arange(30.0), np.random.default_rng(0)
    latents = {name: alps.linear_periodic(period) for name, period in (("a", 5.0), ("b", 7.0), ("never", 11.0))}
    model = alps.ALPS(latents, 3, inclusion_prob=[0.01, 0.01, 0.0], noise_variance=1.0)
    kernel = alps.ALPSGibbs(model, moves=list(CHOICE))
    kernel.bind(t, rng.normal(size=(30, 3)))

    @jax.jit
    def one_sweep(state, on):
        with choose(on):
            return jax.vmap(partial(sweep, kernel.plan, model, kernel.stats))(state)

    for name in [move for move in CHOICE if "gate" in move]:
        state = kernel.first_states(jax.random.split(key, 20), 6, None)
        assert (state.open_sweeps == 3).all()
        gates = []
        for _ in range(4):
            state = one_sweep(state, {move: jnp.asarray(move == name) for move in CHOICE})
            gates.append(np.asarray(state.z["b"]))
        assert (np.stack(gates[:3]) == [1, 1, 0]).all(), name
        assert gates[3][:, :2].mean() < 0.9, name
        assert (state.open_sweeps == 0).all()
    assert kernel.first_states(key, 6, {"b": np.zeros(3, int)}).open_sweeps == 0
    kernel.start = "prior"
    assert kernel.first_states(key, 6, None).open_sweeps == 0


@pytest.mark.slow
def test_twins_agree_over_chains_started_off_and_on():
    """Which of two latents of one covariance is on differs among chains; that one of them is doesn't."""
    t, y, _ = sines(noise=0.3)
    latents = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0), "again": alps.linear_periodic(7.0)}
    model = alps.ALPS(latents, 2, noise_variance=0.1)
    starts = jnp.repeat(jnp.array([[0, 0, 0], [1, 1, 1]]), 2, axis=0)
    fitted = fit(model, t, y, num_warmup=100, num_samples=300, init_params={"b": starts})
    table = alps.inclusion_table(fitted)
    b = np.asarray(fitted.samples["b"])
    pair = (b[..., 0] | b[..., 2]).mean(1)
    np.testing.assert_allclose(pair, 1.0, atol=0.01)
    assert table.set_index("latent").probability["T=7 or again"] == pytest.approx(pair.mean())
    assert worst_convergence(table, "gibbs")[0] < 1.05


@pytest.mark.slow
def test_chains_agree_where_gates_are_held_at_first(key):
    """Minnesota's 18 series: every chain finds the slow and the rough process, as from the prior not every one does.

    A gate that closed while its column of H was noise hardly opens again, with 18 outputs to be right about at once.
    """
    table = alps.read_table(ROOT / "models" / "data" / "minnesota_weather_1927_1936.csv", time="t")
    data = alps.split_table(table)
    latents = {
        "yearly": alps.linear_periodic(1.0),
        "slow": kernels.Exp(scale=jnp.asarray(3.0)),
        "rough": kernels.Exp(scale=jnp.asarray(0.2)),
        "decoy": alps.linear_periodic(0.36),
    }
    model = alps.ALPS(latents, data.outputs, noise_variance=dist.InverseGamma(8.0, 0.7))
    lengths = {"num_samples": 50, "num_warmup": 200, "num_chains": 16}
    found = {}
    for start in ("held", "prior"):
        b = np.asarray(fit(model, data.train_inputs, data.train_y, start=start, **lengths).samples["b"])
        found[start] = b[..., :3].mean(1).min(1) > 0.9
        assert b[..., 3].mean() < 0.1
    assert found["held"].all()
    assert not found["prior"].all()


# --- moves


@pytest.mark.parametrize(
    ("p", "rank"), [(2, 6), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1, 1), (9, 2)))]
)
def test_shared_scale_leaves_the_prior_as_it_is(p, rank, key):
    """For a latent that is off, the target is the prior: its moments survive the step, within 5 standard errors."""
    model = alps.ALPS({"x": alps.linear_periodic(3.0)}, p, noise_variance=0.1)
    stats = Statistics(None, None, jnp.zeros((p, rank)), None, None, jnp.zeros(rank, int))
    target = moves.Target(None, model, stats, jnp.zeros(1), jnp.full(p, jnp.nan))

    def one(H, w, normal, uniform):
        numbers = moves.RandomNumbers({"scale": normal}, {"scale": uniform})
        after = moves.scale(target, moves.Chain(H, jnp.zeros(1), w, None), numbers)
        return after.H, after.weights, after.weights[0] != w[0]

    keys = jax.random.split(key, 4)
    numbers = [jax.random.normal(k, (200_000, *shape)) for k, shape in zip(keys, [(p, 1), (rank,), (1,)], strict=False)]
    H, w, moved = jax.jit(jax.vmap(one))(*numbers, jax.random.uniform(keys[3], (200_000, 1)))
    assert moved.mean() > 0.5
    for values, exact in (((H**2).mean((1, 2)), 1), ((H**4).mean((1, 2)), 3), ((w**2).mean(1), 1), ((w**4).mean(1), 3)):
        assert abs(values.mean() - exact) < 5 * values.std() / np.sqrt(len(values))


@pytest.mark.parametrize(
    ("num_outputs", "rough", "few", "chosen"),
    [
        (2, False, 200, {"marginal_gate", "exchange", "scale"}),
        (3, False, 200, {"gate_column", "gate_latent", "marginal_swap", "exchange", "scale"}),
        (3, False, 1, {"gate_column", "gate_latent", "exchange", "scale"}),
        (3, True, 200, {"marginal_gate", "exchange", "scale"}),
    ],
)
def test_the_default_moves(num_outputs, rough, few, chosen, monkeypatch):
    """By the number of outputs and of features, and by whether a latent has states."""
    monkeypatch.setattr(gibbs_kernel, "FEW_FEATURES", few)
    model = alps.ALPS(
        {"x": kernels.Exp(scale=1.0) if rough else alps.linear_periodic(7.0)}, num_outputs, noise_variance=0.1
    )
    kernel = alps.ALPSGibbs(model)
    kernel.bind(np.arange(90.0), np.zeros((90, num_outputs)))
    assert set(kernel.plan.moves) & set(CHOICE) == chosen


# --- awkward data


def test_next_to_no_noise():
    """The data are one sine to 12 digits, and followed exactly."""
    t, _, f = sines()
    prediction = alps.predict(fit(periods(noise_variance=1e-12), t, f), t, include_noise=False)
    assert finite(prediction)
    assert abs(prediction["mean"].values - f).max() < 1e-4


@pytest.mark.parametrize("factor", [1e8, np.array([1e-8, 1e-2])], ids=["1e8", "columns"])
def test_any_unit_with_variances_in_that_unit(factor):
    """Nothing is rescaled behind the user's back: s and sigma^2 in y's unit give the same gates and predictions."""
    t, y, f = sines()
    variance = np.broadcast_to(factor, 2) ** 2
    fitted = fit(periods(mixing_variance=variance, noise_variance=0.1 * variance), t, y * factor)
    assert fitted.inclusion_prob[0] > 0.95
    assert fitted.inclusion_prob[1] < 0.2
    assert abs(alps.predict(fitted, t, include_noise=False)["mean"].values / factor - f).max() < 0.2


def test_unix_seconds_memory_layout_and_read_only_arrays():
    """An offset of 1.6e9 changes nothing to round-off, strides and flags nothing to the bit."""
    model, (t, y, _) = periods(), sines()
    plain = fit(model, t, y)
    inputs, values = np.repeat(t, 2)[::2], np.asfortranarray(y)
    inputs.flags.writeable = values.flags.writeable = False
    np.testing.assert_array_equal(fit(model, inputs, values).weights, plain.weights)
    shifted = fit(model, 1.6e9 + t, y)
    means = (alps.predict(f, f.inputs, include_noise=False)["mean"] for f in (shifted, plain))
    np.testing.assert_allclose(*means, atol=1e-4)


@pytest.mark.slow
def test_gates_that_are_certain_and_nearly():
    """0 and 1 are never and always against the data, which hold T = 7 alone; 1e-8 and 1 - 1e-8 are finite."""
    t, y, _ = sines(noise=0.3)
    model = periods(2, 7.0, 5.0, 3.0, 4.0, inclusion_prob=[0.0, 1.0, 1e-8, 1 - 1e-8], noise_variance=0.5)
    fitted = fit(model, t, y, moves=["gate", "gate_column", "marginal_gate"])
    assert set(np.unique(fitted.samples["b"][..., 0])) == {0}
    assert set(np.unique(fitted.samples["b"][..., 1])) == {1}
    assert fitted.inclusion_prob[2] < 0.05
    assert fitted.inclusion_prob[3] > 0.95
    assert finite(alps.predict(fitted, t))


def rows_of(case):
    """A single time, or constant outputs of which one has a single observed cell and one none."""
    y = np.ones((5, 3))
    y[1:, 1] = y[:, 2] = np.nan
    return y if case == "constant" else np.ones((case, 3))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["constant", 1])
def test_tiny_and_constant_data(case):
    latents = {"smooth": kernels.ExpSquared(scale=9.0), "1": kernels.Constant(1.0), "T=3": alps.linear_periodic(3.0)}
    y = rows_of(case)
    fitted = fit(
        alps.ALPS(latents, 3, noise_variance=dist.InverseGamma(2.0, 0.2)),
        np.arange(float(len(y))),
        y,
        moves="collapsed",
    )
    assert all(np.isfinite(value).all() for value in fitted.samples.values())


@pytest.mark.slow
def test_parameter_free_and_zero_covariances():
    """An all-zero column under a linear covariance, which has no parameter: a latent of rank 0."""
    inputs = np.stack([np.arange(12.0), np.zeros(12)], 1)
    latents = {name: alps.on_column(kernels.DotProduct(), k) for k, name in enumerate(("slope", "nothing"))}
    model = alps.ALPS(latents, noise_variance=0.1)
    y = 0.2 * inputs[:, 0]
    assert abs(alps.predict(fit(model, inputs, y), inputs)["mean"][:, 0] - y).max() < 0.3


@pytest.mark.slow
def test_the_same_fit_in_float32():
    """Gates and predictions right within the noise, which is learnt; a rough latent has states."""
    t, y, f = sines(noise=0.3)
    with jax.enable_x64(False):
        latents = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0), "rough": kernels.Exp(scale=5.0)}
        model = alps.ALPS(latents, 2, noise_variance=dist.InverseGamma(2.0, 0.1))
        fitted = fit(model, t, y)
        mean = alps.predict(fitted, t, include_noise=False)["mean"]
        assert mean.dtype == np.float32
        assert fitted.inclusion_prob[0] > 0.95
    assert float(np.sqrt(((mean.values - f) ** 2).mean())) < 0.3


# --- what is wrong with arguments


def one_latent(**settings):
    return alps.ALPS({"x": kernels.ExpSquared(scale=0.1)}, 2, **({"noise_variance": 0.1} | settings))


KERNEL_ERRORS = {
    "not a model": ((None, {}), "model: .*ALPS"),
    "moves: no such set": ((one_latent(), {"moves": "fast"}), "moves: .*'fast'"),
    "moves: no such move": ((one_latent(), {"moves": ["gate", "fast"]}), "moves: .*'fast'"),
    "moves: none of gates": ((one_latent(), {"moves": ["scale"]}), "moves: .*gates"),
    "start": ((one_latent(), {"start": "here"}), "start: .*'here'"),
    "max_rank": ((one_latent(), {"max_rank": 0}), "max_rank: "),
    "tolerance": ((one_latent(), {"tolerance": 2.0}), "tolerance: "),
    "noise_variance": ((one_latent(noise_variance=dist.HalfNormal(1.0)), {}), "noise_variance: .*InverseGamma"),
    "bounds": ((one_latent(covariance_bounds={"x": {"scale": (0.05, 1.0)}}), {}), "covariance_bounds: .*fit_svi"),
}


@pytest.mark.parametrize("case", KERNEL_ERRORS)
def test_a_wrong_kernel(case):
    (model, settings), message = KERNEL_ERRORS[case]
    with pytest.raises((ValueError, TypeError), match=message):
        alps.ALPSGibbs(model, **settings)


RUN_ERRORS = {
    "max_rank": ({"max_rank": 5}, "'x': .*max_rank = 5 features on 20 inputs"),
    "num_warmup": ({"num_warmup": -1}, "num_warmup: "),
    "num_samples": ({"num_samples": 0}, "num_samples: "),
    "num_chains": ({"num_chains": 1.5}, "num_chains: "),
    "thinning": ({"thinning": 200}, "thinning: .*num_samples, 100"),
    "no such site": ({"init_params": {"c": np.ones((4, 2))}}, r"init_params: .*\['c'\]"),
    "no chain axis": ({"init_params": {"b": np.ones(1)}}, r"init_params: .*b of shape \(4, 1\)"),
    "no noise": ({"init_params": {"noise_variance": np.zeros((4, 2))}}, "init_params: .*noise_variance"),
    "not a gate": ({"init_params": {"b": np.full((4, 1), 2)}}, "init_params: .*b .*from 0 to 1"),
}


@pytest.mark.parametrize("case", RUN_ERRORS)
def test_a_wrong_run(case):
    settings, message = RUN_ERRORS[case]
    with pytest.raises(ValueError, match=message):
        fit(one_latent(), *sines(20)[:2], **settings)


def mcmc_of(kernel, **settings):
    return MCMC(kernel, num_warmup=1, num_samples=2, progress_bar=False, **settings)


def test_a_wrong_mcmc(small, key):
    model, t, y = small
    with pytest.raises(TypeError, match="jit_model_args"):
        mcmc_of(alps.ALPSGibbs(model), jit_model_args=True).run(key, t, y)
    with pytest.raises(ValueError, match=r"y: .*None"):
        mcmc_of(alps.ALPSGibbs(model)).run(key, t)
    with pytest.raises(ValueError, match="relaxed"):
        mcmc_of(alps.ALPSGibbs(model)).run(key, t, y, relaxed=True)
    for other in (mcmc_of(NUTS(model)), {"b": np.ones(3)}):
        with pytest.raises(TypeError, match="mcmc: "):
            alps.from_mcmc(other)
    with pytest.raises(ValueError, match=r"mcmc: .*no draws"):
        alps.from_mcmc(mcmc_of(alps.ALPSGibbs(model)))


def test_data_that_change_between_runs(small, key):
    """In place, NumPyro would miss it; with a kernel of two MCMCs, the draws would be read as of the wrong data."""
    model, t, y = small
    changing = np.array(y)
    kernel = alps.ALPSGibbs(model, moves="paper")
    first = mcmc_of(kernel)
    first.run(key, t, changing)
    assert np.isfinite(alps.from_mcmc(first).samples["x"]).all()
    kernel.init(key, 0, None, (t, 2 * y), {})  # as another MCMC does
    with pytest.raises(ValueError, match=r"mcmc: .*other data"):
        alps.from_mcmc(first)
    changing[0] = 7.0
    with pytest.raises(ValueError, match=r"y: .*in place"):
        first.run(key, t, changing)


def test_float32_warns_of_noise_it_cannot_resolve():
    t = np.arange(10, dtype=np.float32)
    with jax.enable_x64(False), pytest.warns(UserWarning, match="64-bit"):
        alps.ALPSGibbs(alps.ALPS({"x": alps.linear_periodic(3.0)}, noise_variance=1e-9)).bind(t, np.cos(t))
