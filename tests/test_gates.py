"""Gates that latents share, latents without a gate, and a learnt inclusion probability.

The sampler's gates given H are compared with their enumeration in test_exact.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC
from numpyro.infer.util import log_density
from scipy.stats import beta, norm
from test_exact import BETA, COVARIANCES, GATE_OF, GATES, NAMES, Sampler, agree, shared_model, z_score

import alps_ppl as alps
from alps_ppl.gibbs.kernel import CHOICE, SETS
from alps_ppl.results.trees import prior_any


def test_program_is_the_priors_product():
    """By differences over (b, theta), x and H held: a shared gate and the Beta count once, a sure gate not at all."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 6, 5))
    noise = np.array([0.3, 0.7])
    model = shared_model(2, noise)
    assert list(model.gate_names) == GATES
    x, H, y = rng.normal(size=(5, 5)), rng.normal(size=(2, 5)), rng.normal(size=(5, 2))
    density = jax.jit(lambda sites: log_density(model, (t, y), {}, sites)[0])
    fast, slow = [], []
    for b, theta in (([1, 1, 0, 1], 0.3), ([1, 0, 0, 1], 0.8), ([1, 0, 1, 0], 0.8)):
        values = {"x": x, "H": H, "b": jnp.array(b), "inclusion_prob": theta}
        fast.append(float(density(values)))
        total = beta.logpdf(theta, *BETA) + sum(np.log(theta if on else 1 - theta) for on in b[1:])
        for i, n in np.ndindex(2, 5):
            f = sum(H[i, j] * b[GATE_OF[j]] * x[j, n] for j in range(5))
            total += norm(f, np.sqrt(noise[i])).logpdf(y[n, i])
        slow.append(total)
    np.testing.assert_allclose(np.diff(fast), np.diff(slow), atol=1e-6)


def without_data():
    """A single cell of huge noise: the posterior is the prior."""
    y = np.full((5, 3), np.nan)
    y[0, 0] = 0.0
    return shared_model(3, 1e8), np.arange(5.0), y


def keeps_the_prior(b, H, theta):
    """All (draw, chain, ...), b of gates."""
    second = BETA[0] * (BETA[0] + 1) / (sum(BETA) * (sum(BETA) + 1))
    z = {"theta": z_score(theta, 0.4), "theta^2": z_score(theta**2, second)}
    z |= {"b b'": z_score(b[..., 1] * b[..., 2], second)}
    z |= {f"b{g}": z_score(b[..., g], 0.4) for g in (1, 2, 3)}
    return agree(z | {f"H{i}{j}^2": z_score(H[..., i, j] ** 2, 1.0) for i, j in np.ndindex(3, 5)})


@pytest.fixture(scope="module")
def sampler():
    return Sampler(*without_data(), list(CHOICE))


@pytest.mark.slow
@pytest.mark.parametrize("moves", ["marginal", "joint_swap", "paper", "all"])
def test_without_data_the_posterior_is_the_prior(moves, sampler, key):
    """By all moves; the kernel adds marginal_gate to a set that has no move of shared gates."""
    draws = sampler.run(key, {*SETS[moves], *(["marginal_gate"] if moves == "joint_swap" else [])})
    assert keeps_the_prior(draws["b"][..., sampler.model.first], draws["H"], draws["inclusion_prob"])


@pytest.fixture(scope="module")
def harmonics():
    """A sawtooth-like wave of periods 8 and 4 in three outputs, a decoy, and a drift that is known to be there."""
    rng = np.random.default_rng(2)
    t = np.arange(60.0)
    phases = [np.sin(2 * np.pi * t / period + 0.3) for period in (8, 4)]
    y = np.stack(phases, 1) @ rng.normal(size=(2, 3)) + 0.3 * rng.normal(size=(60, 3))
    y[10:15, 1] = np.nan
    periods = {f"T={period}": alps.linear_periodic(period) for period in (8.0, 4.0, 5.0, 11.0)}
    model = alps.ALPS(
        periods | {"drift": COVARIANCES["slow"]},
        3,
        inclusion_prob=dist.Beta(1.0, 1.0),
        always_on=["drift"],
        shared_gates={"wave": ["T=8.0", "T=4.0"]},
        noise_variance=0.1,
    )
    return model, t, y


@pytest.mark.slow
def test_svi_finds_the_shared_gate_and_theta(harmonics, key):
    """At the optimum q(theta) is the Beta that the gates' probabilities give (coordinate ascent's closed form)."""
    model, t, y = harmonics
    fit = alps.fit_svi(model, t, y, num_steps=1_500, num_inducing=15, rng_key=key, progress_bar=False)
    rho = dict(zip(model.latents, fit.inclusion_prob, strict=True))
    assert rho["drift"] == 1
    assert rho["T=8.0"] == rho["T=4.0"] > 0.9
    assert max(rho["T=5.0"], rho["T=11.0"]) < 0.2
    on = rho["T=8.0"] + rho["T=5.0"] + rho["T=11.0"]
    concentration = np.asarray(fit.params["inclusion_concentration"])
    assert concentration[0] / concentration.sum() == pytest.approx((1 + on) / 5, abs=0.1)
    tree = alps.to_datatree(fit, num_draws=50)
    assert tree["posterior"]["b"].sizes["latent"] == 5
    mcmc = MCMC(alps.ALPSGibbs(model), num_warmup=0, num_samples=2, progress_bar=False)
    mcmc.run(key, t, y, init_params=alps.init_from_svi(fit, key))
    assert mcmc.get_samples()["b"].shape == (2, 4)


@pytest.mark.slow
def test_gibbs_tree_and_table(harmonics, key):
    """The tree has a gate per latent; a group's prior counts a shared gate once and theta's spread."""
    model, t, y = harmonics
    lengths = {"num_warmup": 100, "num_samples": 200, "num_chains": 2}
    fit = alps.fit_gibbs(model, t, y, rng_key=key, progress_bar=False, **lengths)
    tree = alps.to_datatree(fit)
    b = tree["posterior"]["b"]
    assert (b.sel(latent="T=8.0") == b.sel(latent="T=4.0")).all()
    table = alps.inclusion_table(tree).set_index("latent")
    assert table.probability["wave"] > 0.95
    assert table.prior["wave"] == 0.5
    assert table.prior["drift"] == 1
    assert prior_any(model, [0, 1]) == pytest.approx(1 / 2)
    assert prior_any(model, [0, 2]) == pytest.approx(1 - 1 / 3)  # E[(1 - theta)^2] = 1/3
    prediction = alps.predict(fit, t[:3])
    assert np.isfinite(prediction["mean"]).all()


def test_always_on_counts_in_expected_active():
    covariances = {name: COVARIANCES[name] for name in NAMES}
    model = alps.ALPS(covariances, expected_active=2.0, always_on=["slow"], noise_variance=0.1)
    np.testing.assert_allclose(model.inclusion_prob, [0.25, 0.25, 0.25, 0.25, 1.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shared_gates": {"g": ["rough", "fast"]}}, r"shared_gates\['g'\]: .*fast"),
        ({"shared_gates": {"g": "rough"}}, r"shared_gates\['g'\]: .*'rough'"),
        ({"shared_gates": {"g": ["rough"], "h": ["rough"]}}, "shared_gates.*another gate"),
        ({"shared_gates": {"slow": ["rough", "sine 2"]}}, r"shared_gates\['slow'\]: .*name"),
        ({"shared_gates": {"g": ["rough", "slow"]}, "inclusion_prob": [0.1, 0.2, 0.3, 0.4, 0.5]}, "one inclusion_prob"),
        ({"always_on": "rough"}, "always_on: .*list"),
        ({"always_on": ["fast"]}, "always_on: .*fast"),
    ],
)
def test_wrong_gates(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        alps.ALPS({name: COVARIANCES[name] for name in NAMES}, noise_variance=0.1, **arguments)


def test_learnt_theta_starts_where_it_is_told(harmonics, key):
    model, t, y = harmonics
    fixed = alps.ALPS({"a": COVARIANCES["rough"]}, 3, noise_variance=0.1)
    for model_, theta, message in ((model, 1.0, "inclusion_prob .*between 0 and 1"), (fixed, 0.5, "inclusion_prob")):
        kernel = alps.ALPSGibbs(model_)
        kernel.bind(t, y)
        with pytest.raises(ValueError, match=f"init_params: .*{message}"):
            kernel.first_states(key, 0, {"inclusion_prob": np.array(theta)})
