"""What a NumPyro user would do instead: a horseshoe in the gates' place with NUTS, or DiscreteHMCGibbs on our program.

Two chains one after another, of few draws: they are slow. Outputs have no memory of their own here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, DiscreteHMCGibbs
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs.features import latent_features
from benchmarks.others import horseshoe

numpyro.enable_x64()
DRAWS = {"horseshoe": (300, 300), "discrete": (50, 50)}


def fit(train_inputs, train_y, test_inputs, dictionary, sampler):
    """Means and sds of y, and of the program with gates their probabilities."""
    periods = dictionary["periods"]
    covariances = {f"{period} {n}": alps.linear_periodic(period) for n, period in enumerate(periods)}
    covariances |= {f"memory {scale}": kernels.Exp(scale=scale) for scale in dictionary["memories"]}
    copies = dict.fromkeys(list(covariances)[: len(periods)], dictionary["copies"])
    noise = dist.InverseGamma(*dictionary["noise"])
    model = alps.ALPS(covariances, train_y.shape[1], copies=copies, noise_variance=noise)
    inputs, y = model.check(train_inputs, train_y)
    basis = latent_features(model.covariances, inputs, names=model.latents, states=False)
    kernel = NUTS(horseshoe(model, inputs)) if sampler == "horseshoe" else DiscreteHMCGibbs(NUTS(model))
    warmup, samples = DRAWS[sampler]
    mcmc = MCMC(
        kernel, num_warmup=warmup, num_samples=samples, num_chains=2, chain_method="sequential", progress_bar=False
    )
    mcmc.run(jax.random.key(0), inputs, y)
    draws = mcmc.get_samples()
    if sampler == "horseshoe":
        H, w, gates = draws["loadings"], draws["w"], []
    else:
        H, w = model.gated_H(draws), basis.weights(draws["x"])
        b = np.asarray(model.gates(draws["b"]))
        of = np.array([float(name.split()[0]) for name in model.latents if not name.startswith("memory")])
        gates = [[b[:, : len(of)][:, of == period].any(1).mean() for period in np.unique(periods)]]
    phi = basis.phi(test_inputs)
    f = jax.vmap(lambda H, w: basis.latents(w, phi).T @ H.T)(H, w)
    return f.mean(0), jnp.sqrt(f.var(0) + draws["noise_variance"].mean(0)), *gates
