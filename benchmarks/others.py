"""Samplers that a NumPyro user would take instead, for the same data."""

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import CustomGibbs, DiscreteGibbs, Gibbs

import alps_ppl as alps
from alps_ppl.gibbs.conditionals import mixing_conditional, weights_conditional
from alps_ppl.gibbs.features import latent_features
from alps_ppl.gibbs.products import Moments
from alps_ppl.gibbs.statistics import statistics


def composite_gibbs(model: alps.ALPS, inputs, y) -> Gibbs:
    """NumPyro's composite kernel on the same program: its own move for the gates, the paper's for x and H."""
    basis = latent_features(model.covariances, inputs, names=model.latents)
    stats, phi = statistics(basis, y), basis.phi()
    noise, s = jnp.asarray(model.noise_variance), jnp.asarray(model.mixing_variance)

    def latents(rng_key, gibbs_sites, hmc_sites):
        block = weights_conditional(stats, hmc_sites["H"], hmc_sites["b"].astype(float), noise)
        return {"x": basis.latents(block.sample(rng_key), phi)}

    def mixing(rng_key, gibbs_sites, hmc_sites):
        x = hmc_sites["x"]
        xx = jnp.broadcast_to(x @ x.T, (len(noise), len(x), len(x)))
        return {"H": mixing_conditional(Moments(xx, y.T @ x.T), hmc_sites["b"].astype(float), noise, s).sample(rng_key)}

    return Gibbs([(DiscreteGibbs(model), ["b"]), (CustomGibbs(latents), ["x"]), (CustomGibbs(mixing), ["H"])])


def horseshoe(model: alps.ALPS, inputs):
    """No gates: the columns of H have horseshoe scales ``b`` (latent), latents are Phi_j w_j; a program for NUTS.

    The site "loadings" is H times its scales. Noise is fixed or learnt as the model has it, a NaN of y is missing.
    """
    basis = latent_features(model.covariances, inputs, names=model.latents, states=False)
    phi, shape = basis.phi(), model.mixing_variance.shape

    def program(inputs, y):
        overall = numpyro.sample("overall", dist.HalfCauchy(1.0))
        scales = numpyro.sample("b", dist.HalfCauchy(1.0).expand(shape[1:]).to_event(1))
        H = overall * scales * numpyro.sample("H", dist.Normal().expand(shape).to_event(2))
        numpyro.deterministic("loadings", H)
        w = numpyro.sample("w", dist.Normal().expand(basis.owner.shape).to_event(1))
        noise = model.noise_variance
        if model.learns_noise:
            noise = numpyro.sample("noise_variance", noise.expand(shape[:1]).to_event(1))
        seen = ~jnp.isnan(y)
        y_given = dist.Normal(basis.latents(w, phi).T @ H.T, jnp.sqrt(jnp.asarray(noise))).mask(seen).to_event(2)
        numpyro.sample("y", y_given, obs=jnp.where(seen, y, 0.0))

    return program
