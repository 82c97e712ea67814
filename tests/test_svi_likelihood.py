"""SVI's analytic likelihood: against quadrature and the mean of the sampled one, in fits, and where it can't be."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from numpyro import handlers
from numpyro.infer import TraceMeanField_ELBO
from problems import sines

import alps_ppl as alps
from alps_ppl.svi.guide import StructuredMeanField
from alps_ppl.svi.likelihood import LIKELIHOODS, expected_log_likelihood
from alps_ppl.svi.optimisation import compiled

T, Y, F = sines()
Y = np.where(np.random.default_rng(1).random(Y.shape) < 0.1, np.nan, Y)
Z = np.linspace(0, 39, 5)
LATENTS = {"7": alps.linear_periodic(7.0), "5": alps.linear_periodic(5.0)}
KNOWN = alps.ALPS(LATENTS, 2, noise_variance=[0.1, 0.3])
LEARNT = alps.ALPS(LATENTS, 2, copies={"7": 2}, noise_variance=dist.InverseGamma(2.0, 0.2))
TOGETHER = alps.ALPS(LATENTS, 2, shared_gates={"both": ["7", "5"]}, noise_variance=0.1)
ALWAYS = alps.ALPS(LATENTS, 2, always_on=["7", "5"], noise_variance=0.1)
SETTINGS = {"temperature": jnp.array(2.0)}


def arguments(model):
    return model, jnp.asarray(Z), jnp.asarray(T), jnp.asarray(Y)


def start(model):
    """SVI by both likelihoods, and the guide's parameters before the first step."""
    programs = [compiled(jax.tree.structure(model), 0.01, 1, None, likelihood) for likelihood in LIKELIHOODS]
    state = programs[0].init(jax.random.key(0), {}, jnp.array(0.66), *arguments(model))
    return [program.svi for program in programs], programs[0].svi.get_params(state)


def terms(svi, params, key, *arguments, **settings):
    """The loss and, by site, its terms."""
    loss = TraceMeanField_ELBO(sum_sites=False).loss
    sites = loss(key, params, svi.model, svi.guide, *arguments, **SETTINGS | settings)
    return sum(sites.values()), sites


@pytest.mark.parametrize("model", [KNOWN, LEARNT, TOGETHER], ids=["known", "learnt, copies", "one gate"])
def test_quadrature(model, key):
    """Given drawn gates, with missing cells; rounding alone is left."""
    t, y = jnp.asarray(T[:6]), jnp.asarray(Y[:6]).at[2, 1].set(jnp.nan)

    @jax.jit
    def draw(key):
        guide = StructuredMeanField(model, jnp.asarray(Z)).relaxed
        q = handlers.trace(handlers.seed(guide, key)).get_trace(t, y, **SETTINGS)
        moments = [value for name in "xH" for value in (q[name]["fn"].mean, q[name]["fn"].variance)]
        noise = q["noise_variance"]["fn"] if model.learns_noise else None
        log_noise = (noise.loc, noise.scale) if noise else (jnp.log(model.noise_variance), jnp.zeros(2))
        return expected_log_likelihood(model, q, y), (*moments, model.gates(q["b"]["value"]), log_noise)

    found, moments = jax.tree.map(np.asarray, draw(key))
    assert float(found) == pytest.approx(reference.expected_log_likelihood(*moments, np.asarray(y)), rel=1e-9)


@pytest.mark.slow
def test_the_sampled_loss_and_gradient_have_its_mean(key):
    """Of a minibatch, scaled up, with the same gates in both: within 6 MCSE over 2,000 draws, for each parameter."""
    both, params = start(LEARNT)
    _, z, t, y = arguments(LEARNT)
    batch = (LEARNT, z, t[::2], y[::2])

    @jax.jit
    def draws(params):
        def of(key):
            return [
                jax.value_and_grad(lambda p, svi=svi: terms(svi, p, key, *batch, num_times=len(t)), has_aux=True)(
                    params
                )
                for svi in both
            ]

        return jax.lax.map(of, jax.random.split(key, 2_000), batch_size=100)

    ((sampled, sites), gradient), ((analytic, other_sites), other_gradient) = jax.tree.map(np.asarray, draws(params))
    assert set(other_sites) - set(sites) == {"expected_log_likelihood"}
    for name in set(sites) & set(other_sites):
        np.testing.assert_allclose(sites[name], other_sites[name], rtol=1e-9)
    differences = jax.tree.leaves(jax.tree.map(np.subtract, (sampled, gradient), (analytic, other_gradient)))
    for difference in differences:
        assert (abs(difference.mean(0)) <= 6 * difference.std(0) / np.sqrt(2_000) + 1e-9).all()
    assert differences[0].std() / np.sqrt(2_000) < 0.02 * abs(analytic.mean())  # so that an error of scale is seen


def test_nothing_is_drawn_but_the_gates():
    """With certain gates and known noise the loss is the same for every key; the sampled one isn't."""
    both, params = start(ALWAYS)
    keys = jax.random.split(jax.random.key(0), 2)

    @jax.jit
    def losses(params):
        return [jax.vmap(lambda key, svi=svi: terms(svi, params, key, *arguments(ALWAYS))[0])(keys) for svi in both]

    (first, second), analytic = losses(params)
    assert abs(first - second) > 1.0
    np.testing.assert_allclose(analytic[0], analytic[1], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("is_double", [True, False], ids=["float64", "float32"])
def test_a_fit_finds_the_period(is_double, key):
    """In minibatches, with copies and learnt noise. There, too, both losses have one mean, within 6 MCSE."""
    settings = {"num_inducing": 5, "num_steps": 2_000, "batch_size": 20, "progress_bar": False}
    with jax.enable_x64(is_double), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*enable_x64")
        fit = alps.fit_svi(LEARNT, T, Y, rng_key=jax.random.key(0), likelihood="analytic", **settings)
        draws = fit.at(fit.inputs)
        f = np.asarray(draws.basis @ draws.gated_H.mean(0).T)
    assert f.dtype == fit.losses.dtype == (np.float64 if is_double else np.float32)
    np.testing.assert_array_equal(fit.inclusion_prob > 0.95, [True, True, False])
    assert abs(f - F).max() < 0.2
    if is_double:
        both, _ = start(LEARNT)
        keys = jax.random.split(key, 2_000)
        losses = [
            jax.lax.map(lambda key, svi=svi: terms(svi, fit.params, key, *arguments(LEARNT))[0], keys, batch_size=100)
            for svi in both
        ]
        difference = np.subtract(*losses)
        assert abs(difference.mean()) < 6 * difference.std() / np.sqrt(2_000)


@pytest.mark.parametrize(
    ("settings", "likelihood", "message"),
    [
        ({}, "exact", "likelihood: expected one of sampled, analytic, got 'exact'"),
        ({"noise_df": 4.0}, "analytic", "likelihood: with noise_df .* no closed form.*likelihood='sampled'"),
        ({"private_memory": alps.private_memory(T)}, "analytic", "likelihood: with private_memory .* no closed form"),
    ],
)
def test_refused(settings, likelihood, message):
    model = alps.ALPS(LATENTS, 2, noise_variance=0.1, **settings)
    with pytest.raises(ValueError, match=message):
        alps.fit_svi(model, T, Y, rng_key=jax.random.key(0), likelihood=likelihood)
