"""q as fitted: its draws, its bound on the evidence, and what a file keeps of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpyro.infer import Predictive, TraceMeanField_ELBO

from alps_ppl import checks
from alps_ppl.model.alps import ALPS
from alps_ppl.model.draws import LatentDraws, Samples
from alps_ppl.model.memory import NUMBERS_AT_A_TIME, UnknownMemoryNoise, own_memories
from alps_ppl.model.tails import spread_evenly
from alps_ppl.svi.guide import StructuredMeanField

NUM_DRAWS = 1000


@dataclass(frozen=True, repr=False)
class SVIFit:
    """What ``fit_svi`` returns.

    Parameters
    ----------
    model
        The ``ALPS`` that was fitted, with the covariance parameters that were learnt, if any.
    inputs, y
        What was fitted: (time,) or (time, column), and (time, output), NaN where missing.
    params
        The guide's, in NumPyro's names.
    losses, temperatures
        (step,) each: estimates of minus the ELBO of the *relaxed* model in nats, and the temperature of each. Losses
        at different temperatures can't be compared.
    elbo, elbo_mcse
        A lower bound on the log evidence of the *discrete* model, in nats, and its Monte Carlo error.
    restart_elbos
        That bound of every restart, by the same random numbers, NaN for one that failed; differences below
        ``elbo_mcse`` are ties.
    """

    engine: ClassVar[str] = "svi"

    model: ALPS
    inputs: Float[Array, "time *column"]
    y: Float[Array, "time output"]
    params: dict[str, Array]
    losses: Float[np.ndarray, " step"]
    temperatures: Float[np.ndarray, " step"]
    elbo: float = float("nan")
    elbo_mcse: float = float("nan")
    restart_elbos: list[float] = field(default_factory=list)

    @property
    def guide(self) -> StructuredMeanField:
        """The family, of which ``params`` choose the member."""
        return StructuredMeanField(self.model, self.params["inducing_inputs"])

    @property
    def inclusion_prob(self) -> Float[np.ndarray, " latent"]:
        """rho_j = q(b_j > 1/2), the activation probability of each latent."""
        return np.asarray(self.guide.inclusion_prob(self.params))

    @cached_property
    def samples(self) -> Samples:
        """One chain of 1,000 independent draws of the program's sites, (1, draw, ...), gates Bernoulli.

        x is drawn from its marginals: independent over times given q, so a draw isn't a path. With a private memory it
        is one.
        """
        paths: dict[str, Callable] = {"x": lambda: self.draw(NUM_DRAWS, names=("x",))["x"][None]}
        if self.model.private_memory is not None:
            paths["own_memory"] = self._own_memory
        return Samples({name: value[None] for name, value in self.draw(NUM_DRAWS).items()}, **paths)

    def _own_memory(self) -> Float[Array, "1 draw time output"]:
        """A path of each output's memory for every draw, given the draw and y."""
        draws = self.draw(NUM_DRAWS, names=("x", "b", "H", "noise_variance", "memory"))
        f = jnp.einsum("sjt,sij->sti", draws["x"], self.model.gated_H(draws))
        draws = {"f": f, "memory": draws["memory"], "s2": self.model.noise_variances(draws)}
        paths, _ = _own_of_f(self.model, self.inputs, self.y, self.inputs, draws, jax.random.key(0))
        return jnp.swapaxes(paths, 0, 1)[None]

    @property
    def sample_stats(self) -> dict[str, Array]:
        """``gate_prob`` (1, draw, gate): rho in every draw."""
        rho = jax.nn.sigmoid(self.params["b_logits"])
        return {"gate_prob": jnp.broadcast_to(rho, (1, NUM_DRAWS, len(rho)))}

    def draw(
        self,
        num_draws: int,
        rng_key: Array | None = None,
        *,
        names: tuple[str, ...] = ("b", "H", "noise_variance", "inclusion_prob", "memory"),
    ) -> dict[str, Array]:
        """Independent draws of the program's sites from q, (draw, ...); x from its marginals at ``inputs``.

        With a private memory x is a path, and its point is drawn given all else.

        Parameters
        ----------
        num_draws
            How many.
        rng_key
            Key 0 if left out.
        names
            Which sites; those that aren't in this model are passed over.
        """
        learns = {"noise_variance": self.model.learns_noise, "inclusion_prob": self.model.learns_inclusion}
        learns["memory"] = self.model.private_memory is not None
        names = tuple(name for name in names if learns.get(name, True))
        key = jax.random.key(0) if rng_key is None else rng_key
        return _draw(self.model, self.params, key, self.inputs, self.y, num_draws=num_draws, names=names)

    def at(self, new_inputs: Float[Array, "new *column"], num_draws: int = NUM_DRAWS) -> LatentDraws:
        """What ``num_draws`` draws say of the latents at new inputs: each is its own one feature, of weight 1.

        With a private memory the features are the inducing variables: a memory's forecast needs the latents' paths.
        """
        if self.model.private_memory is not None:
            return _paths_at(self.model, self.params, self.inputs, self.y, new_inputs, num_draws=num_draws)
        sites = self.draw(num_draws, names=("b", "H", "noise_variance"))
        mean, variance = _marginals(self.model, self.params, new_inputs)
        m = len(self.model.latents)
        noise = self.model.noise_variances(sites)
        if (tails := self.model.tails) is not None:
            noise = noise * spread_evenly(tails, *noise.shape)
        ones = jnp.ones((num_draws, m), mean.dtype)
        return LatentDraws(self.model.gated_H(sites), noise, ones, mean.T, np.arange(m), variance)

    def arrays(self) -> dict[str, tuple[tuple[str, ...], Any]]:
        """What a file keeps of this fit, {name: (dims, values)}: the guide's parameters and the run."""
        # A latent's name, as in "day/night.scale", may have a slash, which divides a file's groups.
        named = {f"param_{quote(name, safe='')}": np.asarray(value) for name, value in self.params.items()}
        params = {name: (tuple(f"{name}_{k}" for k in range(value.ndim)), value) for name, value in named.items()}
        run = {
            "losses": (("step",), self.losses),
            "temperatures": (("step_planned",), self.temperatures),
            "restart_elbos": (("restart",), np.asarray(self.restart_elbos, float)),
            "elbo": ((), self.elbo),
            "elbo_mcse": ((), self.elbo_mcse),
        }
        return params | run

    @classmethod
    def from_arrays(
        cls, model: ALPS, inputs: Array, y: Array, arrays: Mapping[str, np.ndarray], samples: Mapping, stats: Mapping
    ) -> "SVIFit":
        """The fit again.

        Parameters
        ----------
        model, inputs, y
            What was fitted.
        arrays
            The values of ``arrays()`` by name.
        samples, stats
            Not used: q has them.
        """
        params = {unquote(n[6:]): jnp.asarray(value) for n, value in arrays.items() if n.startswith("param_")}
        return cls(
            model,
            inputs,
            y,
            params,
            arrays["losses"],
            arrays["temperatures"],
            elbo=float(arrays["elbo"]),
            elbo_mcse=float(arrays["elbo_mcse"]),
            restart_elbos=arrays["restart_elbos"].tolist(),
        )

    def __repr__(self):
        gates = ", ".join(f"{n}: {r:.3f}" for n, r in zip(self.model.latents, self.inclusion_prob, strict=True))
        return f"SVIFit(elbo={self.elbo:.2f}, inclusion_prob={{{gates}}})"


@partial(jax.jit, static_argnames=("num_draws", "names"))
def _draw(model: ALPS, params, rng_key, inputs, y, *, num_draws: int, names: tuple[str, ...]):
    guide = StructuredMeanField(model, params["inducing_inputs"])
    needed = names if "memory" not in names else (*names, "x", "b", "H", "noise_variance")
    draw = Predictive(guide.discrete, params=params, num_samples=num_draws, return_sites=needed, parallel=True)
    sites = draw(rng_key, inputs)
    if "memory" not in names:
        return sites
    f = jnp.einsum("sjt,sij->sti", sites["x"], model.gated_H(sites))
    point = _memory_given(model, inputs, y, f, model.noise_variances(sites), jax.random.fold_in(rng_key, 1))
    return {name: value for name, value in sites.items() if name in names} | {"memory": point}


def _memory_given(model: ALPS, inputs, y, f, noise_variance, rng_key) -> Int[Array, "draw output"]:
    """The points of the outputs' private memories from their conditional, for each draw of f (draw, time, output)."""
    grid: Any = model.private_memory

    def points(draw):
        f, variance, key = draw
        own = UnknownMemoryNoise(f, variance, grid, inputs, observed=y)
        return jax.random.categorical(key, own.log_points(jnp.nan_to_num(y)), axis=0)

    size = len(grid.share) * y.size
    at_a_time = max(1, min(len(f), NUMBERS_AT_A_TIME // size))
    return jax.lax.map(points, (f, noise_variance, jax.random.split(rng_key, len(f))), batch_size=at_a_time)


@jax.jit
def _marginals(model: ALPS, params, new_inputs):
    return StructuredMeanField(model, params["inducing_inputs"]).sparse_process(new_inputs, params).marginals()


@partial(jax.jit, static_argnames="num_draws")
def _paths_at(model: ALPS, params, inputs, y, new_inputs, *, num_draws: int) -> LatentDraws:
    """``SVIFit.at`` with a private memory."""
    guide, key = StructuredMeanField(model, params["inducing_inputs"]), jax.random.key(0)
    sites = _draw(model, params, key, inputs, y, num_draws=num_draws, names=("b", "H", "noise_variance"))
    gated, s2 = model.gated_H(sites), model.noise_variances(sites)
    grid: Any = model.private_memory
    here, ahead = (guide.sparse_process(rows, params) for rows in (inputs, new_inputs))
    keys = jax.random.split(jax.random.fold_in(key, 2), 3)
    inducing = here.sample_inducing(keys[0], (num_draws,))
    (A_T, residual), (new_A_T, new_residual) = here.given_inducing(), ahead.given_inducing()
    open_ = jnp.sqrt(residual) * jax.random.normal(keys[1], (num_draws, *residual.shape), y.dtype)
    f = jnp.einsum("sjt,sij->sti", jnp.einsum("jkt,sjk->sjt", A_T, inducing) + open_, gated)
    memory = _memory_given(model, inputs, y, f, s2, keys[2])
    own = _own_of_f(model, inputs, y, new_inputs, {"f": f, "memory": memory, "s2": s2}, None)
    m, num_inducing = inducing.shape[1:]
    return LatentDraws(
        gated,
        s2 * (1 - grid.at(memory).share),
        inducing.reshape(num_draws, -1),
        new_A_T.reshape(m * num_inducing, -1).T,
        np.repeat(np.arange(m), num_inducing),
        new_residual,
        None,
        *own,
    )


@jax.jit
def _own_of_f(model: ALPS, inputs, y, new_inputs, draws, rng_key):
    grid: Any = model.private_memory
    return own_memories(lambda draw: draw["f"], grid, inputs, y, new_inputs, draws, rng_key)


def discrete_elbo(fit: SVIFit, rng_key: Array, *, num_particles: int = 1000) -> tuple[float, float]:
    """An estimate of the discrete model's ELBO at the fit's q, its gates Bernoulli, and its Monte Carlo error.

    It bounds log p(Y) of the model as written; the relaxed loss bounds the relaxed model's evidence.

    Parameters
    ----------
    fit
        Of ``fit_svi``.
    rng_key
        A JAX key.
    num_particles
        How many draws of q it is the mean of.
    """
    checks.prng_key(rng_key)
    losses = _discrete_losses(fit.model, fit.params, fit.inputs, fit.y, jax.random.split(rng_key, num_particles))
    return -float(losses.mean()), float(losses.std() / np.sqrt(num_particles))


@jax.jit
def _discrete_losses(model: ALPS, params, inputs, y, keys):
    guide, loss = StructuredMeanField(model, params["inducing_inputs"]), TraceMeanField_ELBO().loss
    program = partial(model.program, sum_out=True)
    return jax.lax.map(lambda key: loss(key, params, program, guide.discrete, inputs, y), keys, batch_size=50)


def init_from_svi(fit: SVIFit, rng_key: Array, *, num_chains: int = 1) -> dict[str, Array]:
    """Draws of the program's sites from q, one per chain, for a sampler's ``init_params`` to start from.

    Parameters
    ----------
    fit
        Of ``fit_svi``.
    rng_key
        A JAX key.
    num_chains
        With more than one, every site gets a leading chain axis.
    """
    checks.instance("fit", fit, SVIFit, "what fit_svi returned")
    checks.whole_number("num_chains", num_chains)
    checks.prng_key(rng_key)
    sites = fit.draw(num_chains, rng_key, names=("b", "H", "x", "noise_variance", "inclusion_prob", "memory"))
    return sites if num_chains > 1 else {name: value[0] for name, value in sites.items()}
