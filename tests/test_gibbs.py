"""The sampler against exact posteriors, and as a NumPyro kernel."""

import pickle
import warnings
from pathlib import Path

import arviz_stats.base
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import reference
import xarray as xr
from numpyro.infer import MCMC
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.features import features

ROOT = Path(__file__).parents[1]
array_stats = arviz_stats.base.array_stats


def run(model, t, y, *, key, num_samples, blocks="collapsed", num_warmup=300, num_chains=4, start="prior", **settings):
    mcmc = MCMC(
        alps.ALPSGibbs(model, blocks=blocks, start=start),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
        **settings,
    )
    mcmc.run(key, t, y)
    return mcmc


def within(draws, exact, z=4.0):
    """Whether the mean of draws (chain, draw) is within z Monte Carlo standard errors of the exact value.

    Draws of a gate that is nearly certain hold few of its rare excursions, or none, and estimate no error: theirs
    is that of the exact probability at an ESS of a fiftieth of the draws.
    """
    draws = np.asarray(draws, float)
    mcse = array_stats.mcse(draws, chain_axis=0, draw_axis=1) if np.ptp(draws) > 0 else 0.0
    if 0 < exact * (1 - exact) < 0.01 and draws.min() >= 0 and draws.max() <= 1:
        mcse = max(mcse, np.sqrt(exact * (1 - exact) / (draws.size / 50)))
    return abs(draws.mean() - exact) <= z * mcse


@pytest.mark.parametrize(
    ("blocks", "num_samples"),
    [
        ("collapsed", 8_000),
        pytest.param("all", 4_000, marks=pytest.mark.slow),
        pytest.param("paper", 25_000, marks=pytest.mark.slow),
        pytest.param(("gate_latent",), 8_000, marks=pytest.mark.slow),
        pytest.param(("marginal_gate",), 8_000, marks=pytest.mark.slow),
        pytest.param(("gate", "marginal_swap", "marginal_walk", "scale"), 8_000, marks=pytest.mark.slow),
    ],
)
def test_exact_gate_posterior(blocks, num_samples, oracle, exact_model, key):
    """Gates within 4 MCSE of the oracle's (H integrated by quadrature), and its posterior mean of f."""
    o = oracle("alps_exact")
    mcmc = run(exact_model, o["t"], o["y"], key=key, num_samples=num_samples, blocks=blocks)
    samples = mcmc.get_samples(group_by_chain=True)
    gate_prob = mcmc.get_extra_fields(group_by_chain=True)["gate_prob"]
    for j in range(2):
        assert within(samples["b"][..., j], o["E_b"][j])
        assert within(gate_prob[..., j], o["E_b"][j])
    f = jnp.einsum("cdj,cdj,cdjt->cdt", samples["b"], samples["H"][:, :, 0], samples["x"])
    for n, exact in enumerate(o["posterior_mean_f_at_t"]):
        assert within(f[..., n], exact, z=5)
    pairs = 2 * np.asarray(samples["b"][..., 0]) + np.asarray(samples["b"][..., 1])
    for code, name in enumerate(["b00", "b01", "b10", "b11"]):
        if o["posterior"][name] > 1e-3:
            assert within(pairs == code, o["posterior"][name])


@pytest.mark.slow
def test_enumeration_with_H_nearly_held(key):
    """All 2^3 gate vectors by the dense evidence, with missing cells: H is pinned by a tiny prior around zero mean.

    A zero-mean H can't be held, so it is compared by importance: the gates' conditional probabilities given each
    sampled H, enumerated, must average to the sampled gates' (a martingale identity of the posterior).
    """
    rng = np.random.default_rng(11)
    t = np.linspace(0, 5, 8)
    covariances = {"a": kernels.Exp(scale=1.0), "b": kernels.ExpSquared(scale=1.5), "c": alps.linear_periodic(2.0)}
    y = np.stack([np.sin(np.pi * t), np.cos(np.pi * t)], 1) + 0.3 * rng.normal(size=(8, 2))
    y[1, 0] = y[4, 1] = y[6, 1] = np.nan
    prob = [0.4, 0.5, 0.3]
    model = alps.ALPS(covariances, 2, inclusion_prob=prob, noise_variance=[0.2, 0.3])
    samples = run(model, t, y, key=key, num_samples=4_000).get_samples(group_by_chain=True)
    inputs, values = model.check(t, y)
    from alps_ppl.conditionals import log_evidence, statistics

    stats = statistics(features(model.covariances, inputs, names=model.latents), values)
    vectors = np.array(list(np.ndindex(2, 2, 2)), float)
    noise, log_prior = (
        jnp.asarray(model.noise_variance),
        vectors @ np.log(prob) + (1 - vectors) @ np.log1p(-np.array(prob)),
    )
    H = samples["H"][0, 0]
    fast = [float(log_evidence(stats, H, jnp.asarray(b), noise)) for b in vectors]
    slow = [reference.log_evidence(model.covariances, H, b, model.noise_variance, t, y) for b in vectors]
    np.testing.assert_allclose(fast, slow, atol=1e-6)

    def conditional(H):
        logs = jax.vmap(lambda b: log_evidence(stats, H, b, noise))(jnp.asarray(vectors)) + log_prior
        return jax.nn.softmax(logs) @ vectors

    expected = jax.lax.map(conditional, samples["H"].reshape(-1, 2, 3), batch_size=500).reshape(4, -1, 3)
    for j in range(3):
        assert within(np.asarray(samples["b"][..., j]) - np.asarray(expected[..., j]), 0.0)


def test_learnt_noise_on_data_of_known_noise(key):
    """A constant latent known to be on, and its noise: the posterior mean of sigma^2 by quadrature over f."""
    y = np.array([0.3, -0.4, 0.9, 0.1, -0.2, 0.5, 0.0, 0.4])
    t = np.arange(8.0)
    prior = (3.0, 1.0)
    model = alps.ALPS({"x": kernels.Exp(scale=1.0)}, inclusion_prob=0.0, noise_variance=dist.InverseGamma(*prior))
    noise = run(model, t, y, key=key, num_samples=4_000).get_samples(group_by_chain=True)["noise_variance"][..., 0]
    # The gate never opens: the exact posterior is InverseGamma(a + n/2, b + y'y/2).
    assert within(noise, (prior[1] + 0.5 * y @ y) / (prior[0] + 4 - 1))


def test_paper_printed_gate_is_wrong(oracle):
    """The printed gate formula gives E[b] = (.083, .097) where (.155, 1.000) is exact: our oracle catches it."""
    o = oracle("alps_exact")
    assert abs(o["E_b"][1] - 0.097) > 0.5


def test_draws_at_never_and_always(key):
    t = np.arange(12.0)
    model = alps.ALPS(
        {"never": alps.linear_periodic(5.0), "always": alps.linear_periodic(3.0), "maybe": alps.linear_periodic(4.0)},
        inclusion_prob=[0.0, 1.0, 1e-8],
        noise_variance=0.5,
    )
    y = np.sin(2 * np.pi * t / 5.0)
    for blocks in ("collapsed", "paper"):
        samples = run(model, t, y, key=key, num_samples=200, blocks=blocks, num_warmup=10).get_samples()
        b = np.asarray(samples["b"])
        assert (b[:, 0] == 0).all()
        assert (b[:, 1] == 1).all()
        assert all(np.isfinite(value).all() for value in samples.values())


def test_an_expanded_prior_is_the_same_prior():
    noise = dist.InverseGamma(2.0, 0.2).expand((2,))
    model = alps.ALPS({"x": kernels.Exp(scale=1.0)}, 2, noise_variance=noise)
    assert alps.ALPSGibbs(model).model.noise_variance.log_prob(jnp.ones(2)).tolist() == noise.log_prob(1.0).tolist()


@pytest.fixture
def small():
    t = np.arange(20.0)
    rng = np.random.default_rng(1)
    y = np.stack([np.sin(2 * np.pi * t / 7), np.cos(2 * np.pi * t / 7)], 1) + 0.3 * rng.normal(size=(20, 2))
    y[3, 1] = np.nan
    covariances = {"T=7": alps.linear_periodic(7.0), "T=5": alps.linear_periodic(5.0)}
    return alps.ALPS(covariances, 2, noise_variance=dist.InverseGamma(2.0, 0.2)), jnp.asarray(t), jnp.asarray(y)


@pytest.mark.parametrize("chain_method", ["sequential", "parallel", "vectorized", jax.vmap])
@pytest.mark.parametrize("progress_bar", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_chain_methods_fields_thinning(small, key, chain_method, progress_bar, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    model, t, y = small
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one device: "parallel" falls back; vmap has no bar
        mcmc = MCMC(
            alps.ALPSGibbs(model),
            num_warmup=5,
            num_samples=10,
            num_chains=2,
            thinning=2,
            chain_method=chain_method,
            progress_bar=progress_bar,
        )
        mcmc.run(key, t, y, extra_fields=("z.H",))
    samples = mcmc.get_samples(group_by_chain=True)
    assert {name: value.shape for name, value in samples.items()} == {
        "b": (2, 5, 2),
        "H": (2, 5, 2, 2),
        "x": (2, 5, 2, 20),
        "noise_variance": (2, 5, 2),
    }
    assert samples["b"].dtype == jnp.int32
    extra = mcmc.get_extra_fields(group_by_chain=True)
    assert extra["gate_prob"].shape == (2, 5, 2)
    np.testing.assert_array_equal(extra["z.H"], samples["H"])
    assert np.isfinite(extra["potential_energy"]).all()
    assert not np.array_equal(samples["H"][0], samples["H"][1])


@pytest.mark.slow
def test_post_warmup_state_continues(small, key):
    model, t, y = small
    mcmc = MCMC(alps.ALPSGibbs(model), num_warmup=5, num_samples=10, num_chains=2, chain_method="vectorized")
    mcmc.warmup(key, t, y)
    mcmc.run(jax.random.key(1), t, y)
    last = mcmc.last_state
    mcmc.post_warmup_state = last
    mcmc.run(mcmc.post_warmup_state.rng_key, t, y)
    assert mcmc.get_samples()["b"].shape == (20, 2)
    # Continuing is sampling from the last state: one sweep of it by hand is the first new draw.
    by_hand = mcmc.sampler.sample(last, (t, y), {})
    np.testing.assert_allclose(mcmc.get_samples(group_by_chain=True)["H"][:, 0], by_hand.z["H"], rtol=1e-12)


def test_potential_energy_is_the_programs(rough_model, rough_data, key):
    """Up to a constant: weights for latents change the density by the determinant of Phi only."""
    from numpyro.infer.util import log_density

    mcmc = run(rough_model, *rough_data, key=key, num_samples=6, num_warmup=3, num_chains=2)
    samples = mcmc.get_samples()
    energy = np.asarray(mcmc.get_extra_fields()["potential_energy"])
    joint = [
        float(log_density(rough_model, rough_data, {}, {name: value[k] for name, value in samples.items()})[0])
        for k in range(len(energy))
    ]
    np.testing.assert_allclose(np.ptp(joint + energy), 0.0, atol=1e-8)


def test_start_from_given_sites(small, key):
    model, t, y = small
    kernel = alps.ALPSGibbs(model)
    x = jnp.stack([jnp.sin(2 * jnp.pi * t / 7), jnp.cos(2 * jnp.pi * t / 5)])
    start = {"b": jnp.array([1.0, 0.0]), "x": x, "noise_variance": jnp.array([0.3, 0.4])}
    state = kernel.init(key, 0, start, (t, y), {})
    sites = kernel.postprocess_fn((t, y), {})(state.z)
    np.testing.assert_array_equal(sites["b"], [1, 0])
    np.testing.assert_allclose(sites["x"], x, atol=1e-8)
    np.testing.assert_allclose(sites["noise_variance"], [0.3, 0.4])
    with pytest.raises(ValueError, match=r"expected some of b, H, x, noise_variance, inclusion_prob, got \['c'\]"):
        kernel.init(key, 0, {"c": jnp.ones(2)}, (t, y), {})
    with pytest.raises(ValueError, match=r"expected b of shape \(3, 2\), got \(2,\)"):
        kernel.init(jax.random.split(key, 3), 0, {"b": jnp.ones(2)}, (t, y), {})


@pytest.mark.parametrize(("p", "rank"), [(2, 6), (1, 1), (9, 2)])
def test_shared_scale_leaves_the_prior_as_it_is(p, rank, key):
    """For a latent that is off, the target is the prior: its moments survive the step, within 5 standard errors."""
    from alps_ppl.conditionals import Statistics

    kernel = alps.ALPSGibbs(alps.ALPS({"x": alps.linear_periodic(3.0)}, p, noise_variance=0.1))
    stats = Statistics(None, None, jnp.zeros((p, rank)), None, None, jnp.zeros(rank, int))

    def one(key):
        H_key, w_key, step_key, u_key = jax.random.split(key, 4)
        H, w = jax.random.normal(H_key, (p, 1)), jax.random.normal(w_key, (rank,))
        normal, uniform = jax.random.normal(step_key, (1,)), jax.random.uniform(u_key, (1,))
        c = kernel._shared_scale(stats, H, w, jnp.ones((p, 1)), normal, uniform)
        return H * c, w / c[0], c[0]

    H, w, c = jax.lax.map(one, jax.random.split(key, 200_000), batch_size=20_000)
    assert (c != 1).mean() > 0.5
    for values, exact in (((H**2).mean((1, 2)), 1), ((H**4).mean((1, 2)), 3), ((w**2).mean(1), 1), ((w**4).mean(1), 3)):
        assert abs(values.mean() - exact) < 5 * values.std() / np.sqrt(len(values))


def test_without_latents(small, key):
    """The draws lack x; predictions and tables are those of the same run with it."""
    model, t, y = small
    runs = {}
    for keep in (True, False):
        kernel = alps.ALPSGibbs(model, keep_latents=keep)
        runs[keep] = MCMC(kernel, num_warmup=10, num_samples=20, progress_bar=False)
        runs[keep].run(key, t, y)
    assert set(runs[True].get_samples()) - set(runs[False].get_samples()) == {"x"}
    with_x, without = (alps.predict(runs[keep], model, t, y, np.linspace(0, 50, 5)) for keep in (True, False))
    xr.testing.assert_allclose(with_x, without)
    trees = {keep: alps.to_datatree(run, model, t, y) for keep, run in runs.items()}
    assert set(trees[True].children) - set(trees[False].children) == {"posterior_predictive", "log_likelihood"}
    pd.testing.assert_frame_equal(alps.inclusion_table(trees[True]), alps.inclusion_table(trees[False]))


def test_pickle(small):
    kernel = pickle.loads(pickle.dumps(alps.ALPSGibbs(small[0], blocks="paper")))
    assert kernel.blocks == "paper"


def test_keyword_data_and_lists(small, key):
    model, t, y = small
    mcmc = MCMC(alps.ALPSGibbs(model), num_warmup=1, num_samples=2, progress_bar=False)
    mcmc.run(key, np.asarray(t).tolist(), y=np.asarray(y).tolist())
    assert mcmc.get_samples()["b"].shape == (2, 2)


@pytest.mark.parametrize(
    "shape", [(1, 1), pytest.param((1, 3), marks=pytest.mark.slow), pytest.param((2, 1), marks=pytest.mark.slow)]
)
def test_tiny_and_constant_data(shape, key):
    """N = 1 or 2, a constant output, an output with a single observed cell, one with none."""
    n, p = shape
    y = np.ones((n, p))
    if p == 3:
        y = np.ones((5, 3))
        y[1:, 1] = np.nan
        y[:, 2] = np.nan
        n = 5
    model = alps.ALPS(
        {"a": kernels.Exp(scale=1.0), "b": kernels.Constant(1.0), "c": alps.linear_periodic(3.0)},
        p,
        noise_variance=dist.InverseGamma(2.0, 0.2),
    )
    samples = run(model, np.arange(n) * 1.0, y, key=key, num_samples=50, num_warmup=10).get_samples()
    assert all(np.isfinite(value).all() for value in samples.values())


def test_all_missing_output_keeps_its_prior(key):
    """H of an output without a cell is a prior draw: mean 0, variance s."""
    t = np.arange(10.0)
    y = np.stack([np.sin(t), np.full(10, np.nan)], 1)
    model = alps.ALPS({"x": kernels.ExpSquared(scale=1.0)}, 2, mixing_variance=[1.0, 4.0], noise_variance=0.1)
    H = run(model, t, y, key=key, num_samples=4_000).get_samples(group_by_chain=True)["H"][:, :, 1, 0]
    assert within(H, 0.0)
    assert within(H**2, 4.0)


@pytest.mark.slow
def test_parameter_free_and_zero_covariances(key):
    """An all-zero column under a linear covariance, which has no parameter: a latent of rank 0, in both engines."""
    inputs = np.stack([np.arange(12.0), np.zeros(12)], 1)
    covariances = {
        "slope": alps.on_column(kernels.DotProduct(), 0),
        "nothing": alps.on_column(kernels.DotProduct(), 1),
    }
    model = alps.ALPS(covariances, noise_variance=0.1)
    y = 0.2 * inputs[:, 0]
    mcmc = run(model, inputs, y, key=key, num_samples=200, num_warmup=50, num_chains=2)
    fit = alps.fit_svi(model, inputs, y, num_inducing=4, num_steps=500, rng_key=key, progress_bar=False)
    for posterior in (mcmc, fit):
        assert abs(alps.predict(posterior, model, inputs, y, inputs)["mean"][:, 0] - y).max() < 0.3
    assert np.isfinite(fit.losses).all()
    with pytest.raises(ValueError, match="latent 'slope' reads column 0 of inputs, whose shape is"):
        model.check(inputs[:, 0])


def test_errors(small, key):
    model, t, y = small
    with pytest.raises(ValueError, match="blocks: expected the name of a set"):
        alps.ALPSGibbs(model, blocks="fast")
    with pytest.raises(TypeError, match=r"expected an alps_ppl\.ALPS, got function"):
        alps.ALPSGibbs(lambda: None)
    with pytest.raises(ValueError, match="needs an InverseGamma prior"):
        alps.ALPSGibbs(alps.ALPS({"x": kernels.Exp(scale=1.0)}, noise_variance=dist.HalfNormal(1.0)))
    kernel = alps.ALPSGibbs(model)
    with pytest.raises(ValueError, match="needs data"):
        kernel.init(key, 0, None, (t,), {})
    with pytest.raises(ValueError, match="discrete program"):
        kernel.init(key, 0, None, (t, y), {"relaxed": True})
    rough = alps.ALPS({"rough": kernels.ExpSquared(scale=0.1)}, 2, noise_variance=0.1)
    with pytest.raises(ValueError, match=r"latent 'rough': .*more than max_rank = 5 features on 20 inputs.*left over"):
        alps.ALPSGibbs(rough, max_rank=5).init(key, 0, None, (t, y), {})
    mcmc = MCMC(kernel, num_warmup=1, num_samples=1, jit_model_args=True, progress_bar=False)
    with pytest.raises(TypeError, match="leave jit_model_args=True out"):
        mcmc.run(key, t, y)


def test_float32_warns_of_noise_it_cannot_resolve(key):
    with jax.enable_x64(False):
        model = alps.ALPS({"x": alps.linear_periodic(3.0)}, noise_variance=1e-9)
        t = np.arange(10, dtype=np.float32)
        with pytest.warns(UserWarning, match="switch on 64-bit"):
            alps.ALPSGibbs(model).init(jax.random.PRNGKey(0), 0, None, (t, np.cos(t)), {})


def test_float32_warns_of_inputs_it_rounds():
    with jax.enable_x64(False):
        model = alps.ALPS({"x": alps.linear_periodic(3.0)}, noise_variance=0.1)
        with pytest.warns(UserWarning, match="subtract the first time"):
            model.check(1.6e9 + np.arange(10.0), np.zeros(10))


@pytest.mark.parametrize("blocks", ["few outputs", "many outputs, few features", "paper", "all"])
def test_gates_are_held_open_for_half_of_the_warm_up(blocks, key):
    """All but those that can't be open; then they move, and not at all where a start of b or another start is given."""
    t, rng = np.arange(30.0), np.random.default_rng(0)
    y = rng.normal(size=(30, 3))
    latents = {name: alps.linear_periodic(period) for name, period in (("a", 5.0), ("b", 7.0), ("never", 11.0))}
    model = alps.ALPS(latents, 3, inclusion_prob=[0.01, 0.01, 0.0], noise_variance=1.0)
    kernel = alps.ALPSGibbs(model, blocks=blocks)
    state = kernel.init(jax.random.split(key, 20), 6, None, (t, y), {})
    assert (state.held == 3).all()
    held = []
    for _ in range(4):
        state = kernel.sample(state, (t, y), {})
        held.append(np.asarray(state.z["b"]))
    assert (np.stack(held[:3]) == [1, 1, 0]).all()
    assert held[3][:, :2].mean() < 0.9
    assert (state.held == 0).all()
    given = kernel.init(key, 6, {"b": np.zeros(3, int)}, (t, y), {})
    assert given.held == 0
    assert alps.ALPSGibbs(model, start="prior").init(key, 6, None, (t, y), {}).held == 0


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
    found = {}
    for start in ("held", "prior"):
        t, y = data.train_inputs, data.train_y
        mcmc = run(model, t, y, key=key, num_samples=50, num_warmup=200, num_chains=16, start=start, blocks="default")
        b = np.asarray(mcmc.get_samples(group_by_chain=True)["b"])
        found[start] = b[..., :3].mean(1).min(1) > 0.9
        assert b[..., 3].mean() < 0.1
    assert found["held"].all()
    assert not found["prior"].all()
