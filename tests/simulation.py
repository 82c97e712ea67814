"""The program simulated, for tests of the whole sampler: the prior's exact moments, the sampler on data that change,
and mistakes to put into it.

Two latents share a covariance (they can change places) but not their priors; cells are missing; the noise is learnt.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from numpyro.infer import Predictive
from scipy import special
from tinygp import kernels

import alps_ppl as alps
from alps_ppl import conditionals as c
from alps_ppl import gibbs

TIMES = np.array([0.0, 0.6, 1.5, 2.1, 4.0])
OBSERVED = np.array([[1, 1], [0, 1], [1, 1], [1, 0], [1, 1]], bool)
NOISE_PRIOR = (3.0, 1.0)


def small_model():
    """Three latents of two outputs, all priors unequal."""
    return alps.ALPS(
        {"a": kernels.Exp(scale=1.0), "b": kernels.Exp(scale=1.0), "c": alps.linear_periodic(2.5)},
        2,
        inclusion_prob=[0.3, 0.5, 0.8],
        mixing_variance=[[1.0, 0.5, 2.0], [0.7, 1.5, 0.3]],
        noise_variance=dist.InverseGamma(*NOISE_PRIOR),
    )


@functools.cache
def _draws_of_the_program():
    draw = Predictive(small_model(), num_samples=20_000, parallel=True)
    return jax.jit(lambda key: draw(key, TIMES))(random.key(20261128))


def prior(key, num):
    """The program's own draws of all its sites, y included: ``num`` of a pool, since tracing it takes seconds."""
    chosen = random.choice(key, 20_000, (num,), replace=False)
    return {name: value[chosen] for name, value in _draws_of_the_program().items()}


class Simulation:
    """The model, and its kernel with the data y (time, output) as an argument of the compiled sweep."""

    def __init__(self, blocks):
        self.model = small_model()
        self.kernel = alps.ALPSGibbs(self.model, blocks=blocks)
        self.data = (TIMES, np.where(OBSERVED, 0.0, np.nan))
        self.kernel.init(random.key(0), 0, None, self.data, {})

    def states(self, key, num, sites=None):
        """First states of ``num`` chains, at ``sites`` where they are given; their ``stats`` are shared."""
        given = {name: sites[name] for name in ("b", "H", "x", "noise_variance")} if sites else None
        return self.kernel.init(random.split(key, num), 0, given, self.data, {})

    def sweep(self, state, y):
        """One sweep of a single chain given y: of the statistics, only the y-part changes with it."""
        filled = jnp.where(OBSERVED, y, 0.0)
        stats = state.stats._replace(
            projection=filled.T @ jnp.asarray(self.kernel._phi),
            sum_squares=(filled**2).sum(0),
            states=state.stats.states and state.stats.states._replace(sums=filled),
        )
        # The statistics that are carried on are those without data: the same in all chains.
        return self.kernel.sample(state._replace(stats=stats), self.data, {})._replace(stats=state.stats)

    def sites(self, state):
        """The program's sites and f (time, output)."""
        sites = self.kernel.postprocess_fn(self.data, {})(state.z)
        return sites | {"f": (sites["x"].T * sites["b"]) @ sites["H"].T}


def log_likelihood(sites, y):
    """Of the observed cells."""
    log_prob = dist.Normal(sites["f"], jnp.sqrt(sites["noise_variance"])).log_prob(y)
    return jnp.where(OBSERVED, log_prob, 0.0).sum()


def summaries(sites, y):
    """What is averaged, by name."""
    b, H, x, f, log_noise = sites["b"], sites["H"], sites["x"], sites["f"], jnp.log(sites["noise_variance"])
    return {
        "b": b,
        "b b'": jnp.stack([b[0] * b[1], b[0] * b[2], b[1] * b[2]]),
        "|H|": jnp.abs(H),
        "H^2": H**2,
        "b |H|": b * jnp.abs(H),
        "x^2": x**2,
        "x x'": x[:, 1:] * x[:, :-1],
        "log noise": log_noise,
        "(log noise)^2": log_noise**2,
        "b log noise": b * log_noise[:, None],
        "f^2": f**2,
        "log likelihood": log_likelihood(sites, y),
    }


@functools.cache
def prior_means():
    """The exact means of ``summaries`` (and of the gates' probabilities) when y is drawn too."""
    model = small_model()
    prob, s = model.inclusion_prob, model.mixing_variance
    variance, lagged = np.ones((3, 5)), np.ones((3, 4))
    for j, covariance in enumerate(model.covariances):
        for n in range(4):
            lagged[j, n] = covariance.evaluate(TIMES[n], TIMES[n + 1])
    shape, rate = NOISE_PRIOR
    log_noise = np.log(rate) - special.digamma(shape)
    abs_H = np.sqrt(2 * s / np.pi)
    return {
        "b": prob,
        "b b'": np.array([prob[0] * prob[1], prob[0] * prob[2], prob[1] * prob[2]]),
        "|H|": abs_H,
        "H^2": s,
        "b |H|": prob * abs_H,
        "x^2": variance,
        "x x'": lagged,
        "log noise": np.full(2, log_noise),
        "(log noise)^2": np.full(2, special.polygamma(1, shape) + log_noise**2),
        "b log noise": np.tile(prob * log_noise, (2, 1)),
        "f^2": np.tile(s @ prob, (5, 1)),
        "log likelihood": -0.5 * OBSERVED.sum() * (np.log(2 * np.pi) + log_noise + 1),
        "gate_prob": prob,
    }


class OldGate(c.GateAndBlock):
    """The block drawn as the old gate says, and the gate with the block integrated out: the wrong order."""

    def __init__(self, right, old):
        super().__init__(right.logits, right.on, right.off)
        self.old = old

    def transform(self, uniform, noise):
        block = jnp.where(self.old, c.standard_draw(self.on, noise), c.standard_draw(self.off, noise))
        return super().transform(uniform, noise).at[1:].set(block)

    def log_prob(self, value):
        gate, block = value[..., 0] == 1, value[..., 1:]
        log_gate = jax.nn.log_sigmoid(jnp.where(gate, self.logits, -self.logits))
        return log_gate + jnp.where(self.old, self.on.log_prob(block), self.off.log_prob(block))


def _printed_gate(moments, H, b, noise_variance, inclusion_logits, j, gate_of=None):
    right = gate_conditional(moments, H, b, noise_variance, inclusion_logits, j, gate_of)
    prob = jax.nn.sigmoid(inclusion_logits[j])
    # theta e^c / (e^c + theta)
    return dist.Bernoulli(prob * jax.nn.sigmoid(right.logits - inclusion_logits[j] - jnp.log(prob)))


def _column_of_the_old_gate(moments, H, b, noise_variance, mixing_variance, inclusion_logits, j):
    right = gate_and_column_conditional(moments, H, b, noise_variance, mixing_variance, inclusion_logits, j)
    return OldGate(right, b[j] == 1)


def _latent_of_the_old_gate(likelihood, gated_weights, inclusion_logits, j, own):
    right = gate_and_latent_conditional(likelihood, gated_weights, inclusion_logits, j, own)
    return OldGate(right, (gated_weights.at[own].get(mode="fill", fill_value=0.0) != 0).any())


def _noise_without_half(stats, moments, H, b, prior):
    right = noise_conditional(stats, moments, H, b, prior)
    return dist.InverseGamma(right.concentration + 0.5 * stats.num_observed, right.rate)


def _prior_of_gates_only(kernel, H, b, logits):
    return log_prior(kernel, jnp.zeros_like(H), b, logits)


gate_conditional, gate_and_column_conditional = c.gate_conditional, c.gate_and_column_conditional
gate_and_latent_conditional, noise_conditional = c.gate_and_latent_conditional, c.noise_conditional
log_prior = alps.ALPSGibbs._log_prior

# By what it is: the function put in the place of the conditional of that name, the moves of a sweep that
# shows it, and the block of test_conditionals.py.
MISTAKES = {
    "the paper's printed gate": ("gate_conditional", _printed_gate, "paper", "gate-1"),
    "column drawn by the old gate": (
        "gate_and_column_conditional",
        _column_of_the_old_gate,
        "collapsed",
        "gate_and_column-1",
    ),
    "latent drawn by the old gate": (
        "gate_and_latent_conditional",
        _latent_of_the_old_gate,
        ("gate_latent",),
        "gate_and_latent-1",
    ),
    "no half in the noise's shape": ("noise_conditional", _noise_without_half, "collapsed", "noise"),
    "swap without H's prior": ("_log_prior", _prior_of_gates_only, ("gate_column", "marginal_swap"), None),
    "exchange without H's prior": ("_log_prior", _prior_of_gates_only, ("gate_column", "exchange"), None),
}


def put_in(mistake, monkeypatch):
    """The mistake, in the kernel and in the module of conditionals."""
    name, wrong, *_ = MISTAKES[mistake]
    if name == "_log_prior":
        monkeypatch.setattr(alps.ALPSGibbs, name, wrong)
        return
    monkeypatch.setattr(gibbs, name, wrong)
    monkeypatch.setattr(c, name, wrong)
