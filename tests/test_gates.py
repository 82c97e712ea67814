"""Gates that latents share, latents without a gate, and a learnt inclusion probability."""

import itertools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from numpyro.infer import MCMC
from numpyro.infer.util import log_density
from scipy.special import betaln
from scipy.stats import beta, norm
from test_exact import COVARIANCES, z_score
from test_gibbs import run

import alps_ppl as alps
from alps_ppl import gibbs

BETA = (2.0, 3.0)
NAMES = ["rough", "sine 2", "smooth", "sine 3", "slow"]
GATES = ["rough", "sines", "smooth", "slow"]  # in the order of their first latents
GATE_OF = [0, 1, 2, 1, 3]


def model_of(p, noise):
    """The rough latent is always on, the two sines share a gate, and theta ~ Beta(2, 3) governs the three gates."""
    return alps.ALPS(
        {name: COVARIANCES[name] for name in NAMES},
        p,
        inclusion_prob=dist.Beta(*BETA),
        always_on=["rough"],
        shared_gates={"sines": ["sine 2", "sine 3"]},
        noise_variance=noise,
    )


def log_prior(free):
    """Log p of the three free gates, theta integrated out: the Beta-Bernoulli."""
    on = sum(free)
    return betaln(BETA[0] + on, BETA[1] + len(free) - on) - betaln(*BETA)


def gate_posterior(covariances, H, noise, t, y):
    """P(b | Y, H) of the free gates by enumeration, and E[theta | Y, H]."""
    logs, thetas = {}, {}
    for free in itertools.product((0, 1), repeat=3):
        b = np.array([1, *free])[GATE_OF]
        logs[free] = reference.log_evidence(covariances, H, b, noise, t, y) + log_prior(free)
        thetas[free] = (BETA[0] + sum(free)) / (sum(BETA) + 3)
    weights = np.exp(np.array(list(logs.values())) - max(logs.values()))
    weights /= weights.sum()
    return dict(zip(logs, weights, strict=True)), weights @ np.array(list(thetas.values()))


def test_program_is_the_priors_product():
    """By differences over (b, theta), x and H held: a shared gate and the Beta count once, a sure gate not at all."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 6, 5))
    noise = np.array([0.3, 0.7])
    model = model_of(2, noise)
    assert list(model.gate_names) == GATES
    x, H, y = rng.normal(size=(5, 5)), rng.normal(size=(2, 5)), rng.normal(size=(5, 2))
    fast, slow = [], []
    for b, theta in (([1, 1, 0, 1], 0.3), ([1, 0, 0, 1], 0.8), ([1, 0, 1, 0], 0.8)):
        values = {"x": x, "H": H, "b": jnp.array(b), "inclusion_prob": theta}
        fast.append(float(log_density(model, (t, y), {}, values)[0]))
        total = beta.logpdf(theta, *BETA) + sum(np.log(theta if on else 1 - theta) for on in b[1:])
        for i, n in np.ndindex(2, 5):
            f = sum(H[i, j] * b[GATE_OF[j]] * x[j, n] for j in range(5))
            total += norm(f, np.sqrt(noise[i])).logpdf(y[n, i])
        slow.append(total)
    np.testing.assert_allclose(np.diff(fast), np.diff(slow), atol=1e-6)


@pytest.mark.parametrize(
    "moves", [("marginal_gate",), ("gate",), pytest.param(("gate_latent", "gate"), marks=pytest.mark.slow)], ids=str
)
def test_all_gate_vectors_with_H_held(moves, monkeypatch, key):
    """P(b | Y, H) of every likely gate vector, E[b], and E[theta], against their enumeration."""
    rng = np.random.default_rng(5)
    t = np.sort(rng.uniform(0, 6, 8))
    H, noise = rng.normal(size=(2, 5)) * 0.5, np.array([0.8, 1.1])
    y = rng.normal(size=(8, 2))
    y[rng.uniform(size=y.shape) < 0.2] = np.nan
    model = model_of(2, noise)

    class Held:
        def transform(self, _):
            return jnp.asarray(H)

    monkeypatch.setattr(gibbs, "mixing_conditional", lambda *_: Held())
    mcmc = run(model, t, y, key=key, num_samples=2_000, num_chains=16, num_warmup=100, blocks=moves)
    samples = mcmc.get_samples(group_by_chain=True)
    b = np.asarray(samples["b"])
    assert b.shape[-1] == 4
    assert (b[..., 0] == 1).all()
    exact, theta = gate_posterior(model.covariances, H, noise, t, y)
    z = {f"b={v}": z_score((b[..., 1:] == v).all(-1), q) for v, q in exact.items() if q > 0.01}
    z["theta"] = z_score(samples["inclusion_prob"], theta)
    gate_prob = mcmc.get_extra_fields(group_by_chain=True)["gate_prob"]
    means = sum(q * np.array(v) for v, q in exact.items())
    z |= {f"gate_prob{g}": z_score(gate_prob[..., g + 1], means[g]) for g in range(3)}
    assert max(np.abs(list(z.values()))) < norm.isf(1e-4 / 2 / len(z))


@pytest.mark.parametrize(
    "blocks", ["default", *(pytest.param(name, marks=pytest.mark.slow) for name in ("paper", "all"))]
)
def test_sites_keep_their_prior_without_data(blocks, key):
    """With a single cell of huge noise the posterior is the prior, whatever the moves."""
    model = model_of(3, 1e8)
    t, y = np.arange(5.0), np.full((5, 3), np.nan)
    y[0, 0] = 0.0
    mcmc = run(model, t, y, key=key, num_samples=2_000, num_chains=16, num_warmup=100, blocks=blocks)
    samples = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    theta, b, H = samples["inclusion_prob"], samples["b"], samples["H"]
    second = BETA[0] * (BETA[0] + 1) / (sum(BETA) * (sum(BETA) + 1))
    z = [z_score(theta, 0.4), z_score(theta**2, second), z_score(b[..., 1] * b[..., 2], second)]
    z += [z_score(b[..., g], 0.4) for g in (1, 2, 3)]
    z += [z_score(H[..., i, j] ** 2, 1.0) for i in range(3) for j in range(5)]
    assert np.abs(z).max() < norm.isf(1e-4 / 2 / len(z))


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
    fit = alps.fit_svi(model, t, y, num_steps=3_000, num_inducing=15, rng_key=key, progress_bar=False)
    rho = dict(zip(model.latents, fit.inclusion_prob, strict=True))
    assert rho["drift"] == 1
    assert rho["T=8.0"] == rho["T=4.0"] > 0.9
    assert max(rho["T=5.0"], rho["T=11.0"]) < 0.2
    on = rho["T=8.0"] + rho["T=5.0"] + rho["T=11.0"]
    concentration = np.asarray(fit.params["inclusion_concentration"])
    assert concentration[0] / concentration.sum() == pytest.approx((1 + on) / 5, abs=0.1)
    tree = alps.to_datatree(fit, model, t, y, num_draws=50)
    assert tree["posterior"]["b"].sizes["latent"] == 5
    mcmc = MCMC(alps.ALPSGibbs(model), num_warmup=0, num_samples=2, progress_bar=False)
    mcmc.run(key, t, y, init_params=alps.init_from_svi(fit, key))
    assert mcmc.get_samples()["b"].shape == (2, 4)


def test_gibbs_tree_and_table(harmonics, key):
    """The tree has a gate per latent; a group's prior counts a shared gate once and theta's spread."""
    model, t, y = harmonics
    mcmc = run(model, t, y, key=key, num_samples=200, num_chains=2, num_warmup=100)
    tree = alps.to_datatree(mcmc, model, t, y)
    b = tree["posterior"]["b"]
    assert (b.sel(latent="T=8.0") == b.sel(latent="T=4.0")).all()
    table = alps.inclusion_table(tree).set_index("latent")
    assert table.probability["T=8.0"] == table.probability["T=4.0"] > 0.95
    assert table.prior["T=8.0"] == 0.5
    assert table.prior["drift"] == 1
    assert model.prior_any([0, 1]) == pytest.approx(1 / 2)
    assert model.prior_any([0, 2]) == pytest.approx(1 - 1 / 3)  # E[(1 - theta)^2] = 1/3
    prediction = alps.predict(mcmc, model, t, y, t[:3])
    assert np.isfinite(prediction["mean"]).all()


def test_always_on_counts_in_expected_active():
    covariances = {name: COVARIANCES[name] for name in NAMES}
    model = alps.ALPS(covariances, expected_active=2.0, always_on=["slow"], noise_variance=0.1)
    np.testing.assert_allclose(model.inclusion_prob, [0.25, 0.25, 0.25, 0.25, 1.0])


def test_subset_keeps_what_belongs_to_each_latent():
    s = np.arange(1.0, 11.0).reshape(2, 5)
    model = alps.ALPS(
        {name: COVARIANCES[name] for name in NAMES},
        2,
        inclusion_prob=[0.1, 0.2, 0.3, 0.2, 0.5],
        mixing_variance=s,
        shared_gates={"sines": ["sine 2", "sine 3"]},
        covariance_bounds={"slow": {"scale": (1.0, 9.0)}, "rough": {"scale": (0.5, 2.0)}},
        noise_variance=0.1,
    )
    smaller = model.subset(["slow", "sine 3", "smooth"])
    assert smaller.latents == ("smooth", "sine 3", "slow")
    assert smaller.gate_names == ("smooth", "sines", "slow")
    np.testing.assert_array_equal(smaller.gate_of, [0, 1, 2])
    np.testing.assert_array_equal(smaller.mixing_variance, s[:, [2, 3, 4]])
    np.testing.assert_array_equal(smaller.inclusion_prob, [0.3, 0.2, 0.5])
    assert smaller.covariance_bounds == {"slow": {"scale": (1.0, 9.0)}}
    draw = smaller.subset(["sine 3"])
    assert draw.gates(jnp.array([1])).shape == (1,)
    with pytest.raises(ValueError, match=r"latents: expected some of .*, got \['fast'\]"):
        model.subset(["fast"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shared_gates": {"g": ["rough", "fast"]}}, r"shared_gates\['g'\]: expected some of the latents"),
        ({"shared_gates": {"g": "rough"}}, r"shared_gates: expected \{gate: \[latents\]\}"),
        ({"shared_gates": {"g": ["rough"], "h": ["rough"]}}, "none of them in another gate"),
        ({"shared_gates": {"slow": ["rough", "sine 2"]}}, "'slow' is a latent's name"),
        (
            {"shared_gates": {"g": ["rough", "slow"]}, "inclusion_prob": [0.1, 0.2, 0.3, 0.4, 0.5]},
            r"expected one inclusion_prob for its latents, got \[0.1, 0.5\]",
        ),
        ({"always_on": "rough"}, "always_on: expected a list"),
        ({"always_on": ["fast"]}, "always_on: expected a list of some of the latents"),
        ({"inclusion_prob": dist.Beta(jnp.ones(5), 1.0)}, r"one Beta prior for all gates, got batch shape \(5,\)"),
    ],
)
def test_wrong_gates(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        alps.ALPS({name: COVARIANCES[name] for name in NAMES}, noise_variance=0.1, **arguments)


def test_shared_gates_need_a_move(key):
    with pytest.raises(ValueError, match="latents that share a gate need marginal_gate or gate"):
        alps.ALPSGibbs(model_of(2, 0.1), blocks=["gate_column"])
    assert "marginal_gate" in alps.ALPSGibbs(model_of(3, 0.1)).moves


def test_learnt_theta_starts_where_it_is_told(harmonics, key):
    model, t, y = harmonics
    fixed = alps.ALPS({"a": COVARIANCES["rough"]}, 3, noise_variance=0.1)
    for model_, message in ((model, "probabilities strictly between 0 and 1, got 1"), (fixed, "fixed in this model")):
        mcmc = MCMC(alps.ALPSGibbs(model_), num_warmup=0, num_samples=1, progress_bar=False)
        with pytest.raises(ValueError, match=f"inclusion_prob .*{message}"):
            mcmc.run(key, t, y, init_params={"inclusion_prob": np.ones(())})
