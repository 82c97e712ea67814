"""The program simulated, for tests of the whole sampler: its prior's exact moments, and sweeps on data that change.

Two latents share a covariance (they can change places) but not their priors; cells are missing; the noise is learnt.
"""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from numpyro.infer import Predictive
from scipy import special
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import features
from alps_ppl.gibbs.moves import MOVES
from alps_ppl.gibbs.sweep import sweep

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
    """Sweeps of the small model, with y (time, output) as an argument of the compiled program."""

    def __init__(self, moves, *, states=False):
        self.model = small_model()
        self.kernel = alps.ALPSGibbs(self.model, moves=moves, start="prior")
        # With states, the two rough latents have Markov states and the third has features.
        with mock.patch.object(features, "LOW_RANK", 2 if states else features.LOW_RANK):
            self.kernel.bind(TIMES, np.where(OBSERVED, 0.0, np.nan))
        assert (self.kernel.features.space is not None) == states
        self.phi = jnp.asarray(self.kernel.features.phi())

    def states(self, key, num, sites=None):
        """First states of ``num`` chains, at ``sites`` where they are given."""
        given = {name: sites[name] for name in ("b", "H", "x", "noise_variance")} if sites else None
        return self.kernel.first_states(random.split(key, num), 0, given)

    def sweep(self, state, y):
        """One sweep of a single chain given y: of the statistics, only the y-part changes with it."""
        filled = jnp.where(OBSERVED, y, 0.0)
        stats = self.kernel.stats
        stats = stats._replace(
            projection=filled.T @ self.phi,
            sum_squares=(filled**2).sum(0),
            states=stats.states and stats.states._replace(sums=filled),
        )
        return sweep(self.kernel.plan, self.model, stats, state)

    def sites(self, state):
        """The program's sites and f (time, output)."""
        z = state.z
        x = self.kernel.features.latents(z["weights"], self.phi)
        return {**z, "x": x, "f": (x.T * z["b"]) @ z["H"].T}


def choose(on):
    """Sweeps compiled within leave out the moves of which ``on`` {move: bool}, which may be traced, is false.

    So one program does for all sets of moves: compiling one takes ten seconds, running it one.
    """
    changed = {name: MOVES[name]._replace(step=_if(flag, MOVES[name].step)) for name, flag in on.items()}
    return mock.patch.dict(MOVES, changed)


def _if(flag, step):
    def done_or_not(target, chain, numbers):
        def leave_out(chain):
            probs = jax.eval_shape(do, chain).gate_probs[len(chain.gate_probs) :]
            nothing = [jnp.full(prob.shape, jnp.nan, prob.dtype) for prob in probs]
            return chain._replace(gate_probs=(*chain.gate_probs, *nothing))

        def do(chain):
            return step(target, chain, numbers)

        return jax.lax.cond(flag, do, leave_out, chain)

    return done_or_not


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
