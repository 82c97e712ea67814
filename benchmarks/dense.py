"""The paper's Gibbs sampler as App. C writes it: all latents from one nm x nm Gaussian, the gates given them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from alps_ppl.gibbs.conditionals import gate_conditional, mixing_conditional
from alps_ppl.gibbs.gaussians import PrecisionNormal
from alps_ppl.gibbs.products import Moments
from alps_ppl.model.covariances import grams


class DenseState(NamedTuple):
    """``z``: b, H and x; the data's part is held by the kernel."""

    z: dict[str, jax.Array]
    rng_key: jax.Array


class DensePaper:
    """``init`` and ``sample`` as a NumPyro kernel's; no missing cells, fixed noise, one chain a state."""

    def __init__(self, model, inputs, y):
        self.model, self.y = model, y
        K = grams(model.covariances, inputs, inputs)
        jitter = 1e-6 * jnp.eye(len(inputs))
        self.prior = jax.scipy.linalg.block_diag(*jnp.linalg.inv(K + jitter))

    def init(self, rng_key):
        """From the prior of b and H."""
        p, m = self.model.mixing_variance.shape
        rng_key, b_key, H_key = jax.random.split(rng_key, 3)
        b = jax.random.bernoulli(b_key, self.model.inclusion_prob).astype(float)
        H = jax.random.normal(H_key, (p, m)) * np.sqrt(self.model.mixing_variance)
        return DenseState({"b": b, "H": H, "x": jnp.zeros((m, len(self.y)))}, rng_key)

    def sample(self, state):
        """All latents given b and H, then each gate, then H."""
        model, y, n = self.model, self.y, len(self.y)
        b, H = state.z["b"], state.z["H"]
        rng_key, x_key, b_key, H_key = jax.random.split(state.rng_key, 4)
        noise = jnp.asarray(model.noise_variance)
        loadings = (H * b) / noise[:, None]
        precision = self.prior + jnp.kron((H * b).T @ loadings, jnp.eye(n))
        x = PrecisionNormal((loadings.T @ y.T).reshape(-1), precision).sample(x_key).reshape(-1, n)
        p = len(noise)
        products = Moments(jnp.broadcast_to(x @ x.T, (p, *H.shape[1:], H.shape[1])), y.T @ x.T)
        logits = jnp.asarray(model.inclusion_logits)

        def gate(b, step):
            j, key = step
            return b.at[j].set(gate_conditional(products, H, b, noise, logits, j).sample(key).astype(float)), None

        b, _ = jax.lax.scan(gate, b, (jnp.arange(len(b)), jax.random.split(b_key, len(b))))
        H = mixing_conditional(products, b, noise, jnp.asarray(model.mixing_variance)).sample(H_key)
        return DenseState({"b": b, "H": H, "x": x}, rng_key)
