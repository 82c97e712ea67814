"""The sampler against exact posteriors: all gate vectors with H held, and predictions with H integrated out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from conftest import periodic
from scipy.stats import norm
from test_gibbs import array_stats, run
from tinygp import kernels

import alps_ppl as alps
from alps_ppl import gibbs
from alps_ppl.prediction import posterior_draws
from benchmarks.cases import stand_ins

COVARIANCES = {
    "rough": kernels.Exp(scale=1.0),
    "smooth": kernels.ExpSquared(scale=1.5),
    "sine 2": alps.linear_periodic(2.0),
    "sine 3": alps.linear_periodic(3.0),
    "slow": kernels.Matern32(scale=4.0),
    "periodic": periodic(1.3),
    "sine 5": alps.linear_periodic(5.0),
    "smoother": kernels.ExpSquared(scale=3.0),
}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def z_score(draws, exact):
    """Of the mean of draws (chain, draw) of an expectation, by its Monte Carlo standard error."""
    draws = np.asarray(draws, float)
    return (draws.mean() - exact) / array_stats.mcse(draws, chain_axis=0, draw_axis=1)


@pytest.mark.parametrize("move", ["gate", "gate_latent", "marginal_gate"])
@pytest.mark.parametrize(("m", "p"), [(4, 1), slow(5, 3), slow(8, 2)])
def test_all_gate_vectors_with_H_held(move, m, p, monkeypatch, key):
    """P(b | Y, H) of every likely gate vector, E[b_j | Y, H] and E[f | Y, H], by each move that doesn't draw H.

    H is held by a conditional that always "draws" it. A fifth of the cells is missing, one row whole.
    """
    rng = np.random.default_rng(m)
    t = np.sort(rng.uniform(0, 6, 8))
    covariances = dict(list(COVARIANCES.items())[:m])
    H = rng.normal(size=(p, m)) * 0.7
    prob, noise = rng.uniform(0.2, 0.8, m), rng.uniform(0.5, 1.0, p)
    y = rng.normal(size=(8, p))
    y[rng.uniform(size=y.shape) < 0.2] = np.nan
    y[3] = np.nan
    model = alps.ALPS(covariances, p, inclusion_prob=prob, noise_variance=noise)

    class Held:
        def transform(self, _):
            return jnp.asarray(H)

    monkeypatch.setattr(gibbs, "mixing_conditional", lambda *_: Held())
    mcmc = run(model, t, y, key=key, num_samples=2_000, num_chains=16, num_warmup=100, blocks=(move,))
    samples = mcmc.get_samples(group_by_chain=True)
    assert (np.asarray(samples["H"]) == H).all()

    exact, means = reference.gate_posterior(model.covariances, H, noise, prob, t, y)
    f_mean = reference.posterior_mean_of_f(model.covariances, H, noise, prob, t, y, t)
    b = np.asarray(samples["b"])
    f = np.einsum("pj,cdj,cdjt->cdtp", H, b, samples["x"])
    gate_prob = mcmc.get_extra_fields(group_by_chain=True)["gate_prob"]
    z = {f"b={v}": z_score((b == v).all(-1), q) for v, q in exact.items() if q > 0.01}
    z |= {f"b{j}": z_score(b[..., j], means[j]) for j in range(m)}
    z |= {f"gate_prob{j}": z_score(gate_prob[..., j], means[j]) for j in range(m)}
    z |= {f"f{i}": z_score(f[:, :, n, i], f_mean[n, i]) for n, i in np.ndindex(f_mean.shape)}
    # At most 1e-4 for all of them together.
    assert max(np.abs(list(z.values()))) < norm.isf(1e-4 / 2 / len(z))


@pytest.mark.slow
def test_predictions_with_H_integrated_out(oracle, exact_model, key):
    """Mean and sd of f at new times, and the gates, by quadrature over H for every gate vector."""
    o = oracle("alps_exact")
    arguments = (exact_model.covariances, exact_model.mixing_variance, o["noise_var"], o["theta"], o["t"])
    gates, at_times, _ = reference.quadrature_posterior(*arguments, o["y"], o["t"])
    np.testing.assert_allclose(gates, o["E_b"], atol=1e-6)
    np.testing.assert_allclose(at_times, o["posterior_mean_f_at_t"], atol=1e-6)

    y = np.array(o["y"])
    y[[1, 6]] = np.nan
    t_new = np.array([0.35, 1.0, 2.6, 4.3, 5.0])
    gates, mean, variance = reference.quadrature_posterior(*arguments, y, t_new)
    mcmc = run(exact_model, o["t"], y, key=key, num_samples=1_000, num_chains=16)
    b = mcmc.get_samples(group_by_chain=True)["b"]
    predicted = alps.predict(mcmc, exact_model, o["t"], y, t_new, include_noise=False, num_draws=16_000)
    first = predicted["mean"].values[:, 0]
    second = predicted["sd"].values[:, 0] ** 2 + first**2
    # Their Monte Carlo errors, from what each draw adds to them.
    draws = posterior_draws(mcmc, exact_model, jnp.asarray(o["t"]), jnp.asarray(t_new), 16_000)
    H = draws.gated_H[:, 0]
    f = jnp.einsum("sk,nk,sk->sn", draws.weights, draws.basis, H[:, draws.owner])
    added = np.stack([f, f**2 + H**2 @ draws.latent_variance]).reshape(2, 16, 1_000, -1)
    np.testing.assert_allclose(added.mean((1, 2)), [first, second], atol=1e-9)
    z = [z_score(b[..., j], gates[j]) for j in range(2)]
    z += [z_score(added[0, ..., n], mean[n]) for n in range(5)]
    z += [z_score(added[1, ..., n], variance[n] + mean[n] ** 2) for n in range(5)]
    assert np.abs(z).max() < norm.isf(1e-4 / 2 / len(z))


@pytest.mark.slow
def test_latents_that_can_stand_in_for_each_other(key):
    """Where every known sampler's chains disagree: a long run of another set of moves gives the default's answer.

    The default flips gates with all latents integrated out; the other has columns of H, swaps and walks beside its own
    gate, and starts with all gates on. Both start far from each other's answer.
    """
    model, t, y = stand_ins()
    default = run(model, t, y, key=key, blocks="default", num_warmup=300, num_samples=1_000, start="dispersed")
    others = ["gate_column", "marginal_swap", "marginal_walk", "marginal_gate", "scale"]
    other = run(model, t, y, key=jax.random.fold_in(key, 1), blocks=others, num_samples=1_000, start="on")
    ours, reference_ = (
        np.asarray(mcmc.get_extra_fields(group_by_chain=True)["gate_prob"]) for mcmc in (default, other)
    )
    for j in range(len(model.latents)):
        a, b = ours[..., j], reference_[..., j]
        mcse = np.hypot(*(array_stats.mcse(draws, chain_axis=0, draw_axis=1) for draws in (a, b)))
        assert abs(a.mean() - b.mean()) < 5 * mcse, model.latents[j]
        assert array_stats.rhat(a, chain_axis=0, draw_axis=1) < 1.02, model.latents[j]
