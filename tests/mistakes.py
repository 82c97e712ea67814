"""Mistakes that are easy to make, to put into the sampler: every one has to fail a test.

``python tests/mistakes.py`` prints the table of docs/negative_controls.md, which says what catches which. A mistake
stands for a function of the sampler; it takes the right one and ``on``, which may be traced, so that one compiled
program does for all mistakes.
"""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from alps_ppl.gibbs import conditionals as c
from alps_ppl.gibbs import moves


class Mistake(NamedTuple):
    """``function`` stands for ``module.name`` within ``move``; ``others`` is what else a sweep needs to show it.

    Where it is in a conditional, ``block`` is its case in test_conditionals.py.
    """

    function: Callable
    module: ModuleType
    name: str
    move: str
    others: tuple[str, ...] = ()
    block: str | None = None


class OldGate(c.GateAndBlock):
    """The block drawn as the old gate says, and the gate with the block integrated out: the wrong order."""

    def __init__(self, right, on, old):
        super().__init__(right.logits, right.on, right.off)
        self.wrong, self.old = on, old

    def transform(self, uniform, noise):
        right, noise = super().transform(uniform, noise), noise.reshape(self.on.event_shape)
        block = jnp.where(self.old, c.standard_draw(self.on, noise), c.standard_draw(self.off, noise))
        return jnp.where(self.wrong, right.at[1:].set(block.reshape(-1)), right)

    def log_prob(self, value):
        gate, block = value[..., 0] == 1, value[..., 1:].reshape(*value.shape[:-1], *self.on.event_shape)
        log_gate = jax.nn.log_sigmoid(jnp.where(gate, self.logits, -self.logits))
        return log_gate + jnp.where(self.old, self.on.log_prob(block), self.off.log_prob(block))


def printed_gate(right, on, moments, H, b, noise_variance, inclusion_logits, j, gate_of=None):
    logits = right(moments, H, b, noise_variance, inclusion_logits, j, gate_of).logits
    log_prob = jax.nn.log_sigmoid(inclusion_logits[j])
    # theta e^c / (e^c + theta)
    prob = jnp.exp(log_prob) * jax.nn.sigmoid(logits - inclusion_logits[j] - log_prob)
    return dist.Bernoulli(jnp.where(on, prob, jax.nn.sigmoid(logits)))


def column_of_the_old_gate(right, on, moments, H, b, *rest):
    return OldGate(right(moments, H, b, *rest), on, b[jnp.atleast_1d(rest[-1])[0]] == 1)


def latent_of_the_old_gate(right, on, likelihood, gated_weights, inclusion_logits, j, own):
    old = (gated_weights.at[own].get(mode="fill", fill_value=0.0) != 0).any()
    return OldGate(right(likelihood, gated_weights, inclusion_logits, j, own), on, old)


def noise_without_half(right, on, stats, residual_squares, prior):
    conditional = right(stats, residual_squares, prior)
    return dist.InverseGamma(conditional.concentration + jnp.where(on, 0.5, 0) * stats.num_observed, conditional.rate)


def missing_cell_counted(right, on, stats, residual_squares, prior):
    return right(stats._replace(num_observed=stats.num_observed + jnp.where(on, 1.0, 0)), residual_squares, prior)


def scale_without_volume(right, on, *arguments):
    conditional = right(*arguments)
    return conditional._replace(power=jnp.where(on, 0, conditional.power))


def s_as_standard_deviation(right, on, moments, b, noise_variance, mixing_variance):
    return right(moments, b, noise_variance, mixing_variance ** jnp.where(on, 2.0, 1))


def gates_forgotten(right, on, stats, H, b, noise_variance):
    return right(stats, H, jnp.where(on, 1, b), noise_variance)


def prior_of_gates_only(right, on, model, H, b, logits):
    return right(model, jnp.where(on, 0, H), b, logits)


def prior_of_H_only(right, on, model, H, b, logits):
    return right(model, H, b, jnp.where(on, 0, logits))


def copies(right, on, target, chain, propose, orders, uniform, *rest):
    # The later of the two latents stays where it is.
    orders = jnp.where(on, jnp.maximum(orders, jnp.arange(orders.shape[1])), orders)
    return right(target, chain, propose, orders, uniform, *rest)


COLUMN = ("gate_column",)
MISTAKES = {
    "the paper's printed gate": Mistake(printed_gate, c, "gate_conditional", "gate", block="gate-1"),
    "column drawn by the old gate": Mistake(
        column_of_the_old_gate, c, "gate_and_column_conditional", "gate_column", block="gate_and_column-1"
    ),
    "latent drawn by the old gate": Mistake(
        latent_of_the_old_gate, c, "gate_and_latent_conditional", "gate_latent", block="gate_and_latent-1"
    ),
    "gates forgotten in the latents": Mistake(
        gates_forgotten, c, "weights_conditional", "latents", COLUMN, block="weights"
    ),
    "s as a standard deviation": Mistake(s_as_standard_deviation, c, "mixing_conditional", "mixing", COLUMN, "H"),
    "no half in the noise's shape": Mistake(noise_without_half, c, "noise_conditional", "noise", COLUMN, "noise"),
    "a missing cell counted": Mistake(missing_cell_counted, c, "noise_conditional", "noise", COLUMN, "noise"),
    "scale without its volume": Mistake(scale_without_volume, c, "scale_conditional", "scale", COLUMN),
    "exchange without H's prior": Mistake(prior_of_gates_only, moves, "log_prior", "exchange", COLUMN),
    "swap without H's prior": Mistake(prior_of_gates_only, moves, "log_prior", "marginal_swap", COLUMN),
    "swap that copies": Mistake(copies, moves, "_metropolis", "marginal_swap", COLUMN),
    "walk without H's prior": Mistake(prior_of_gates_only, moves, "log_prior", "marginal_walk", COLUMN),
    "marginal gate without its prior": Mistake(prior_of_H_only, moves, "log_prior", "marginal_gate"),
}


@contextmanager
def possible(on: Mapping[str, Any]):
    """Sweeps compiled within make the mistakes of which ``on``, by name, is true."""
    steps = {}
    for name, mistake in MISTAKES.items():
        step = steps.get(mistake.move, moves.MOVES[mistake.move].step)
        steps[mistake.move] = _with(step, mistake, on[name])
    changed = {move: moves.MOVES[move]._replace(step=step) for move, step in steps.items()}
    with mock.patch.dict(moves.MOVES, changed):
        yield


def _with(step, mistake, on):
    def mistaken(target, chain, numbers):
        with put_in(mistake, on):
            return step(target, chain, numbers)

    return mistaken


@contextmanager
def put_in(mistake: Mistake, on: Any = True):
    """The mistake in the place of the right function."""
    right = getattr(mistake.module, mistake.name)
    with mock.patch.object(mistake.module, mistake.name, partial(mistake.function, right, on)):
        yield


def table():
    """The table's rows: what each mistake does to the three tests."""
    import calibration
    import test_conditionals
    import test_geweke
    from jax import random

    key = random.key(20261128)
    print("| mistake | moves | conditional | Geweke | calibration |\n|---|---|---|---|---|")
    for name, mistake in MISTAKES.items():
        # The others are in every sweep.
        chosen = [move for move in (mistake.move, *mistake.others) if not moves.MOVES[move].always]
        violation = f"{test_conditionals.violation_with(mistake):.0e}" if mistake.block else "-"
        z, of = test_geweke.largest(test_geweke.z_scores_with(name, key))
        values = calibration.p_values(calibration.calibrate(chosen, key, name))
        smallest = min(values, key=values.get)
        missed = "" if values[smallest] < calibration.LEVEL / len(values) else ": missed"
        cells = [name, ", ".join(chosen), violation, f"{z:.0f} ({of})", f"{values[smallest]:.0e} ({smallest}){missed}"]
        print("|", " | ".join(cell.replace("|", r"\|") for cell in cells), "|", flush=True)


if __name__ == "__main__":
    import mistakes  # as the tests do: what is put in has to be there once
    import numpyro

    numpyro.enable_x64()
    mistakes.table()
