"""The program simulated, for tests of the whole sampler: its prior's exact moments, and sweeps on data that change.

Two latents share a covariance (they can change places) but not their priors; cells are missing; the noise is learnt.
With ``memory``, the third latent has two copies, and each output a private memory; with ``unknown``, all covariances
have an unknown scale besides; with ``student``, noise is Student's.
"""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import reference
from jax import random
from numpyro.infer import Predictive
from scipy import special
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.gibbs import features
from alps_ppl.gibbs.moves import MOVES
from alps_ppl.gibbs.sweep import sweep
from alps_ppl.model.covariances import with_parameters
from alps_ppl.model.memory import OutputNoise, PrivateMemory
from alps_ppl.model.tails import noise_factors

TIMES = np.array([0.0, 0.6, 1.5, 2.1, 4.0])
OBSERVED = np.array([[1, 1], [0, 1], [1, 1], [1, 0], [1, 1]], bool)
NOISE_PRIOR = (3.0, 1.0)


MEMORY = PrivateMemory(np.array([0.0, 0.6, 0.95]), np.array([1.0, 0.8, 3.0]), np.log([0.5, 0.3, 0.2]))


RANGES = {"a": {"scale": (0.3, 4.0, 3)}, "b": {"scale": (0.3, 4.0, 3)}, "c": {"scale": (0.7, 5.0, 4)}}


STUDENT = {"noise_df": 3.0}


def small_model(memory=False, unknown=False, student=False):
    """Three latents of two outputs, all priors unequal."""
    more = {"copies": {"c": 2}, "private_memory": MEMORY} if memory else {}
    more |= {"covariance_ranges": RANGES} if unknown else {}
    more |= STUDENT if student else {}
    third = kernels.ExpSquared(scale=1.5) if unknown else alps.linear_periodic(2.5)
    return alps.ALPS(
        {"a": kernels.Exp(scale=1.0), "b": kernels.Exp(scale=1.0), "c": third},
        2,
        inclusion_prob=[0.3, 0.5, 0.8],
        mixing_variance=[[1.0, 0.5, 2.0], [0.7, 1.5, 0.3]],
        noise_variance=dist.InverseGamma(*NOISE_PRIOR),
        **more,
    )


def own_covariances():
    """C_g of every point of the grid at all times, (point, time, time)."""
    points = zip(MEMORY.share, MEMORY.lengthscale, strict=True)
    return np.array([reference.own_covariance(share, length, TIMES, TIMES) for share, length in points])


def own_precisions():
    """C_g^-1 of the times at which each output is observed, (point, output, time, time), zero elsewhere."""
    found = np.zeros((3, 2, 5, 5))
    for g, C in enumerate(own_covariances()):
        for i in range(2):
            seen = np.ix_(OBSERVED[:, i], OBSERVED[:, i])
            found[g, i][seen] = np.linalg.inv(C[seen])
    return found


@functools.cache
def _draws_of_the_program(memory, unknown, student):
    draw = Predictive(small_model(memory, unknown, student), num_samples=20_000, parallel=True)
    return jax.jit(lambda key: draw(key, TIMES))(random.key(20261128))


def prior(key, num, memory=False, unknown=False, student=False):
    """The program's own draws of all its sites, y included: ``num`` of a pool, since tracing it takes seconds."""
    chosen = random.choice(key, 20_000, (num,), replace=False)
    sites = {name: value[chosen] for name, value in _draws_of_the_program(memory, unknown, student).items()}
    if unknown:
        grids = small_model(memory, unknown).unknown_scales.items()
        points = [one.grid.nearest(sites[f"{name}.{one.path}"]) for name, one in grids]
        sites["scales"] = jnp.stack(points, -1)
    return sites


class Simulation:
    """Sweeps of the small model, with y (time, output) as an argument of the compiled program."""

    def __init__(self, moves, *, states=False, memory=False, unknown=False, student=False):
        self.model = small_model(memory, unknown, student)
        self.kernel = alps.ALPSGibbs(self.model, moves=moves, start="prior")
        # With states, the two rough latents have Markov states and the third has features.
        with mock.patch.object(features, "LOW_RANK", 2 if states else features.LOW_RANK):
            self.kernel.bind(TIMES, np.where(OBSERVED, 0.0, np.nan))
        assert (self.kernel.features.space is not None) == states
        self.phi = jnp.asarray(self.kernel.features.phi())

    def states(self, key, num, sites=None):
        """First states of ``num`` chains, at ``sites`` where they are given."""
        names = ("b", "H", "x", "noise_variance", "memory", "scales", "noise_factor")
        given = {name: sites[name] for name in names if name in sites} if sites else None
        state = self.kernel.first_states(random.split(key, num), 0, given)
        if given and "scales" in given:  # what x's own weights are is ill-conditioned; y comes after them
            features = sum(self.kernel.plan.layout.ranks)
            weights = state.z["weights"].at[:, :features].set(random.normal(random.fold_in(key, 1), (num, features)))
            state = state._replace(z=state.z | {"weights": weights})
        return state

    def sweep(self, state, y):
        """One sweep of a single chain given y: of the statistics, only the y-part changes with it."""
        filled = jnp.where(OBSERVED, y, 0.0)
        stats = self.kernel.stats
        stats = stats._replace(
            projection=filled.T @ self.phi,
            sum_squares=(filled**2).sum(0),
            states=stats.states and stats.states._replace(sums=filled),
            private=stats.private and self._private(stats.private, filled),
            cells=stats.cells and stats.cells._replace(y=filled),
        )
        return sweep(self.kernel.plan, self.model, stats, state)

    def _private(self, private, filled):
        """Densely, where the package has a filter."""
        weighted = jnp.einsum("gits,si->git", own_precisions(), filled)
        projection = jnp.einsum("git,tr->gir", weighted, self.phi)
        return private._replace(
            projection=projection[..., : private.projection.shape[-1]],
            sum_squares=jnp.einsum("git,ti->gi", weighted, filled),
        )

    def redraw(self, key, sites):
        """Y given all sites."""
        noise = random.normal(key, sites["f"].shape)
        if "noise_factor" in sites:
            v = jnp.asarray(self.model.tails.variance)[sites["noise_factor"]]
            if "memory" not in sites:
                noise *= jnp.sqrt(v)
            else:
                white = (1 - MEMORY.share)[:, None, None] * np.eye(5)
                path = jnp.linalg.cholesky(own_covariances() - white + 1e-12 * np.eye(5))[sites["memory"]]
                other = random.normal(random.fold_in(key, 1), sites["f"].shape)
                share = jnp.asarray(MEMORY.share)[sites["memory"]]
                noise = jnp.sqrt((1 - share) * v) * noise + jnp.einsum("its,si->ti", path, other)
        elif "memory" in sites:
            factors = jnp.linalg.cholesky(own_covariances())[sites["memory"]]
            noise = jnp.einsum("its,si->ti", factors, noise)
        return sites["f"] + jnp.sqrt(sites["noise_variance"]) * noise

    def sites(self, state):
        """The program's sites and f (time, output)."""
        z = state.z
        held = self.kernel.features.held_weights(z["weights"], z.get("scales"))
        x = self.kernel.features.latents(held, self.phi)
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
    f, noise_variance = sites["f"], sites["noise_variance"]
    if "noise_factor" in sites:
        noise_variance *= jnp.asarray(noise_factors(STUDENT["noise_df"]).variance)[sites["noise_factor"]]
    if "memory" in sites:
        observed = jnp.where(OBSERVED, y, jnp.nan)
        return OutputNoise(f, noise_variance, MEMORY.at(sites["memory"]), jnp.asarray(TIMES), observed).log_prob(y)
    return jnp.where(OBSERVED, dist.Normal(f, jnp.sqrt(noise_variance)).log_prob(y), 0.0).sum()


def summaries(sites, y):
    """What is averaged, by name."""
    b, H, x, f, log_noise = sites["b"], sites["H"], sites["x"], sites["f"], jnp.log(sites["noise_variance"])
    found = {}
    if "memory" in sites:
        point = jax.nn.one_hot(sites["memory"], 3)
        found = {"memory": point, "memory log noise": point * log_noise[:, None], "memory f^2": point * (f**2).T[:, :1]}
    if "scales" in sites:
        scale = [jax.nn.one_hot(k, size) for k, size in zip(sites["scales"], (3, 3, 4), strict=True)]
        parts = zip(scale, b[:3], x[:3, 0] * x[:3, 1], strict=True)
        found |= {f"scale {j}": jnp.stack([at, gate * at, lag * at]) for j, (at, gate, lag) in enumerate(parts)}
        found["scale f^2"] = jnp.outer(scale[2], f[0] ** 2)
    if "noise_factor" in sites:
        factor = jnp.asarray(noise_factors(STUDENT["noise_df"]).variance)[sites["noise_factor"]]
        found |= {"log factor": jnp.log(factor), "log factor squared": jnp.log(factor) ** 2}
        found |= {"log factor log noise": jnp.log(factor) * log_noise, "1 / factor f^2": f**2 / factor}
        found |= {"log factors": jnp.log(factor)[1:] * jnp.log(factor)[:-1]}
    return found | {
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
def prior_means(memory=False, unknown=False, student=False):
    """The exact means of ``summaries`` (and of the gates' probabilities) when y is drawn too."""
    model = small_model(memory, unknown, student)
    prob, s = model.inclusion_prob, model.mixing_variance
    variance, lagged = np.ones((len(prob), 5)), np.ones((len(prob), 4))
    scaled = {}
    for j, (covariance, name) in enumerate(zip(model.covariances, model.copy_of, strict=True)):
        at = [covariance]
        weights = np.ones(1)
        if unknown:
            one = model.unknown_scales[name]
            at = [with_parameters(covariance, {one.path: value}) for value in one.grid.values]
            weights = np.exp(one.grid.log_prior)
        lags = np.array([[k.evaluate(TIMES[n], TIMES[n + 1]) for n in range(4)] for k in at])
        lagged[j] = weights @ lags
        if unknown and j < 3:
            scaled[f"scale {j}"] = np.stack([weights, prob[j] * weights, weights * lags[:, 0]])
            if j == 2:
                scaled["scale f^2"] = np.outer(weights, s @ prob)
    shape, rate = NOISE_PRIOR
    log_noise = np.log(rate) - special.digamma(shape)
    abs_H = np.sqrt(2 * s / np.pi)
    found, half_log_det = scaled, 0.0
    if memory:
        point = np.exp(MEMORY.log_prior)
        found |= {"memory": np.tile(point, (2, 1)), "memory log noise": np.tile(point * log_noise, (2, 1))}
        found["memory f^2"] = np.outer(s @ prob, point)
        for i in range(2):
            seen = np.ix_(OBSERVED[:, i], OBSERVED[:, i])
            half_log_det += 0.5 * point @ [np.linalg.slogdet(C[seen])[1] for C in own_covariances()]
    log_factor = 0.0
    if student:
        factor, mass = model.tails.variance, np.exp(model.tails.log_prior)
        log_factor, ones = mass @ np.log(factor), np.ones((5, 2))
        found |= {"log factor": log_factor * ones, "log factor squared": mass @ np.log(factor) ** 2 * ones}
        found |= {"log factor log noise": log_factor * log_noise * ones, "log factors": log_factor**2 * ones[1:]}
        found |= {"1 / factor f^2": mass @ (1 / factor) * np.tile(s @ prob, (5, 1))}
    means = {
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
        "log likelihood": -0.5 * OBSERVED.sum() * (np.log(2 * np.pi) + log_noise + log_factor + 1) - half_log_det,
        "gate_prob": prob[model.first],
    }
    if memory and student:  # log |C| has no closed form
        del means["log likelihood"]
    return found | means
