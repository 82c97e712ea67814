"""alps_ppl's three engines, with the model files' settings."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from tinygp import kernels

import alps_ppl as alps

numpyro.enable_x64()


def fit(train_inputs, train_y, test_inputs, dictionary, engine):
    """Means, sds, and each period's probability: of either latent where it is offered twice."""
    periods, memories = dictionary["periods"], dictionary["memories"]
    cycles = {f"{period} {n}": alps.linear_periodic(period) for n, period in enumerate(periods)}
    rough = {f"memory {scale}": kernels.Exp(scale=scale) for scale in memories}
    white = {f"white {n}": alps.white() for n in range(dictionary["white"])}
    model = alps.ALPS(
        cycles | rough | white,
        train_y.shape[1],
        copies=dict.fromkeys(cycles, dictionary["copies"]),
        private_memory=alps.private_memory(train_inputs) if dictionary["own_memory"] else None,
        noise_variance=dist.InverseGamma(*dictionary["noise"]),
    )
    function, settings = {
        "vb": (alps.fit_vb, {}),
        "gibbs": (alps.fit_gibbs, {"num_chains": 2, "num_samples": 700} if memories else {"start": "dispersed"}),
        "svi": (alps.fit_svi, {"num_inducing": 60, "num_steps": 4_000} if memories else {}),
    }[engine]
    key = jax.random.key(0)
    found = function(model, train_inputs, train_y, rng_key=key, progress_bar=False, **settings)
    forecast = alps.predict(found, test_inputs)
    table = alps.inclusion_table(found)
    whole = table[table.members == table.groupby("group").members.transform("max")]
    prob = dict(zip(whole.latent.str.split().str[0], whole.probability, strict=True))
    return forecast["mean"].values, forecast["sd"].values, [prob[str(period)] for period in np.unique(periods)]
