"""The structured mean-field family over the model's sites (paper, section 3 and App. B.1)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints

from alps_ppl.model.alps import ALPS, PRIOR_TEMPERATURE
from alps_ppl.model.processes import SparseGaussianProcess
from alps_ppl.svi.temperature import LOWEST


class StructuredMeanField:
    """App. B.1: q(X, X^z, H, b) = p(X | X^z) q(X^z) q(H) q(b), a NumPyro guide for ``model``.

    The sites are the model's, in its order: ``x`` ~ SparseGaussianProcess, ``b`` ~ a concrete
    distribution at ``temperature``, ``H`` ~ independent normals, and, where they are learnt, ``noise_variance`` ~
    a log-normal and ``inclusion_prob`` ~ a Beta. The inducing inputs (inducing, *column) are shared by the latents
    and learnt.

    NumPyro's ``TraceMeanField_ELBO`` of this guide is the paper's ELBO:

    - B.2, the expected log-likelihood: a Monte Carlo mean over draws of x(t), H and b (in closed form given b:
      ``alps_ppl.svi.likelihood``);
    - B.3, the KL of b: a Monte Carlo mean over the same draws, as two concrete distributions have no closed form;
    - B.4, the KL of X^z: the closed form in ``alps_ppl.model.processes``;
    - B.5, the KL of H: NumPyro's closed form for two normals.

    ``SVI(model, guide, optim, TraceMeanField_ELBO()).run(key, steps, inputs, y, relaxed=True)`` works
    as for any guide, at a constant temperature; ``fit_svi`` anneals it and keeps the gates in logit space.
    """

    def __init__(self, model: ALPS, inducing_inputs: Float[Array, "inducing *column"]):
        self.model = model
        self.inducing_inputs = inducing_inputs

    def __call__(
        self,
        inputs: Float[Array, "time *column"],
        y: Any = None,
        *,
        relaxed: bool = False,
        temperature: float | Float[Array, ""] = LOWEST,
        num_times: int | None = None,
    ):
        """The guide of the relaxed program. Raises a ValueError for the discrete one.

        Parameters
        ----------
        inputs, y
            As the program's; of ``y`` only the variances are used, as where learnt noise starts.
        relaxed
            Must be True.
        temperature
            Of the concrete gates, positive.
        num_times
            Not used: the program's.
        """
        if not relaxed:
            raise ValueError(
                "SVI needs the relaxed program: a Bernoulli gate has no gradient. Pass relaxed=True to svi.init, "
                "svi.update or svi.run (it reaches model and guide), or call alps.fit_svi, which does"
            )
        if not isinstance(temperature, jax.core.Tracer) and not temperature > 0:
            raise ValueError(f"temperature: expected a positive number, got {temperature}")
        self.relaxed(*self.model.check(inputs, y), temperature=temperature)

    def relaxed(self, inputs: Array, y: Array | None, *, temperature: float | Float[Array, ""]) -> None:
        """App. B.3: the family with concrete gates at ``temperature``; those that are fixed are at the prior's."""
        temperature = jnp.where(self.model.certain[self.model.first], PRIOR_TEMPERATURE, temperature)
        self._sites(inputs, y, lambda logits: dist.RelaxedBernoulliLogits(temperature.astype(logits.dtype), logits))

    def discrete(self, inputs: Array, y: Array | None = None) -> None:
        """The same q with a Bernoulli gate, for draws from the fit: rho_j = q(b_j > 1/2) is its mean."""
        self._sites(inputs, y, lambda logits: dist.Bernoulli(logits=logits))

    def inclusion_prob(self, params: dict) -> Float[Array, " latent"]:
        """rho_j = sigmoid(logit_j) = q(b_j > 1/2), whatever the temperature (E[b_j] does depend on it)."""
        return self.model.gates(jax.nn.sigmoid(params["b_logits"]))

    def sparse_process(self, inputs: Float[Array, "time *column"], params: dict) -> SparseGaussianProcess:
        """q(x) at ``inputs``, from the guide's parameters."""
        scale = jnp.exp(params["log_scale"])
        return SparseGaussianProcess(
            self.model.learnt_covariances(params),
            inputs,
            params["inducing_inputs"],
            scale[:, None] * params["x_loc"],
            scale[:, None, None] * params["x_scale_tril"],
            jitter=self.model.jitter,
            paths=self.model.private_memory is not None,
        )

    def _sites(self, inputs, y, gate):
        model = self.model
        dtype = inputs.dtype
        m, p, num_inducing = len(model.latents), len(model.outputs), len(self.inducing_inputs)
        prior_scale = jnp.sqrt(jnp.asarray(model.mixing_variance, dtype))

        # x and H both at zero would be a saddle point of the ELBO: they start at random, small and broad.
        params = {
            "inducing_inputs": numpyro.param("inducing_inputs", jnp.asarray(self.inducing_inputs, dtype)),
            "x_loc": numpyro.param("x_loc", lambda key: 0.3 * jax.random.normal(key, (m, num_inducing), dtype)),
            "x_scale_tril": numpyro.param(
                "x_scale_tril",
                jnp.broadcast_to(0.3 * jnp.eye(num_inducing, dtype=dtype), (m, num_inducing, num_inducing)),
                constraint=constraints.softplus_lower_cholesky,
            ),
            # The likelihood leaves the scale of (x_j, H_:j) free: c x_j, H_:j / c. The KLs decide it, along a
            # ravine with steep walls, which an optimiser descends only if the scale is a coordinate of its own.
            "log_scale": numpyro.param("log_scale", jnp.zeros(m, dtype)),
            **model.covariance_params(dtype),
        }
        scale = jnp.exp(params["log_scale"])
        numpyro.sample("x", self.sparse_process(inputs, params), infer={"event_dims": ["latent", "time"]})
        if model.learns_inclusion:
            prior = model.inclusion_prior
            concentration = numpyro.param(
                "inclusion_concentration",
                jnp.stack([jnp.asarray(prior.concentration1, dtype), jnp.asarray(prior.concentration0, dtype)]),
                constraint=constraints.softplus_positive,
            )
            numpyro.sample("inclusion_prob", dist.Beta(*concentration))
        with model.gate_plate:
            logits = numpyro.param("b_logits", jnp.zeros(len(model.gate_names), dtype))
            # Where theta is 0 or 1, q(b_j) is the prior: a gate that is fixed costs no KL.
            certain = model.certain[model.first]
            numpyro.sample("b", gate(jnp.where(certain, model.site_logits.astype(dtype), logits)))
        with numpyro.plate("output", p):
            # In prior sds, so that an optimiser's steps mean the same in any unit of the outputs.
            H_loc = numpyro.param("H_loc", lambda key: 0.3 * jax.random.normal(key, (p, m), dtype))
            H_scale = numpyro.param("H_scale", jnp.full((p, m), 0.3, dtype), constraint=constraints.softplus_positive)
            unit = prior_scale / scale
            numpyro.sample("H", dist.Normal(unit * H_loc, unit * H_scale).to_event(1), infer={"event_dims": ["latent"]})
            if model.learns_noise:
                loc = numpyro.param("noise_loc", _half_the_variance(y, p, dtype))
                scale = numpyro.param("noise_scale", jnp.full(p, 0.3, dtype), constraint=constraints.softplus_positive)
                numpyro.sample("noise_variance", dist.LogNormal(loc, scale))


def _half_the_variance(y, num_outputs: int, dtype) -> Float[Array, " output"]:
    """Where the learnt noise starts: the log of half of each output's variance (0 where it has none)."""
    if y is None:
        return jnp.zeros(num_outputs, dtype)
    variance = jnp.nanvar(y, axis=0)
    return jnp.log(jnp.where(variance > 0, 0.5 * variance, 1.0))
