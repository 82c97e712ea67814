"""Simulation-based calibration (Talts et al. 2018) of the sampler: ranks of the truth among posterior draws.

``python tests/calibration.py`` draws docs/calibration.png. ``--extended`` is of the model with copies, private memories
and unknown scales instead, and writes docs/calibration_extended.json: a p-value of each quantity. With ``--states`` its
rough latents have Markov states, in docs/calibration_states.json.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
from jax import random
from mistakes import MISTAKES, possible
from scipy.stats import binom, norm
from simulation import OBSERVED, Simulation, log_likelihood, prior

from alps_ppl.gibbs.kernel import SETS
from alps_ppl.results import plots
from alps_ppl.results.calibration import Calibration, ranks

REPLICATIONS, REPLICATIONS_EXTENDED = 1_000, 400
LEVEL = 1e-4  # the probability with which a right sampler fails
NUM_WARMUP, NUM_DRAWS, THINNING = 100, 100, 10


def quantities(sites, y):
    """What is ranked, by name; H by its square, since only its product with x has a sign."""
    values = {f"H{i + 1}{j + 1}^2": sites["H"][i, j] ** 2 for i in range(2) for j in range(3)}
    for name in ("memory", "scales"):
        values |= {f"{name} {k + 1}": value for k, value in enumerate(sites.get(name, ()))}
    values |= {f"noise variance {i + 1}": sites["noise_variance"][i] for i in range(2)}
    return values | {"f": sites["f"][2, 0], "log likelihood": log_likelihood(sites, y)}


def _program(moves, extended, states):
    """The compiled draws of chains given y, (replication, draw, ...)."""
    simulation = Simulation(moves, states=states, memory=extended, unknown=extended)

    @jax.jit
    def chains(states, y):
        return jax.lax.map(lambda both: chain(*both), (states, y), batch_size=100 if extended else len(y))

    def chain(state, y):
        def draw(state, _):
            state, gate_prob = jax.lax.scan(step, state, None, THINNING)
            return state, (quantities(simulation.sites(state), y), gate_prob.mean(0))

        def step(state, _):
            state = simulation.sweep(state, y)
            return state, state.gate_prob

        _, draws = jax.lax.scan(draw, state, None, NUM_WARMUP // THINNING + NUM_DRAWS)
        return jax.tree.map(lambda values: values[NUM_WARMUP // THINNING :], draws)

    return simulation, chains


def calibrate(moves, key, mistake=None, *, extended=False, states=False, replications=REPLICATIONS) -> Calibration:
    """Sites and y from the program; the rank of each truth in a chain given y, which starts elsewhere in the prior.

    Ranks are uniform if the sampler is right and the draws all but independent.
    """
    keys = random.split(key, 3)
    simulation, chains = _program(moves, extended, states)
    truth = prior(keys[0], replications, extended, extended)
    y = jnp.where(OBSERVED, truth["y"], 0.0)
    with possible({name: name == mistake for name in MISTAKES}) if mistake else nullcontext():
        draws, gate_prob = chains(simulation.states(keys[1], replications), y)
    truth["f"] = jnp.einsum("rij,rj,rjt->rti", truth["H"], simulation.model.gates(truth["b"]), truth["x"])
    exact = jax.vmap(quantities)(truth, y)
    uniform = random.uniform(keys[2], (replications,))
    pit = {name: np.asarray(ranks(exact[name], values, uniform)) for name, values in draws.items()}
    return Calibration(pit, np.asarray(truth["b"]), np.asarray(gate_prob.mean(1)))


def uniformity(pit):
    """A p-value: the ECDF at 19 points against the binomial's tails, by Bonferroni's bound over the points."""
    points = np.arange(1, 20) / 20
    below = (pit[:, None] <= points).sum(0)
    tails = np.minimum(binom.cdf(below, len(pit), points), binom.sf(below - 1, len(pit), points))
    return min(1.0, 2 * len(points) * tails.min())


def gate_bins(result: Calibration, num_bins):
    """Gates and their probabilities, all latents together, in bins of as many gates each by rising probability."""
    b, q = result.gates.ravel(), result.gate_prob.ravel()
    return [(b[part], q[part]) for part in np.array_split(np.argsort(q), num_bins)]


def brier(result: Calibration):
    """The mean of (b - q)^2, its mean and its standard deviation if b ~ Bernoulli(q)."""
    b, q = result.gates.ravel(), result.gate_prob.ravel()
    variance = q * (1 - q)
    return ((b - q) ** 2).mean(), variance.mean(), np.sqrt((variance * (1 - 2 * q) ** 2).sum()) / len(b)


def p_values(result: Calibration):
    """By quantity; of the number of open gates in five bins (the smallest, by Bonferroni); of the Brier score."""
    values = {name: uniformity(pit) for name, pit in result.pit.items()}
    z = [(b - q).sum() / np.sqrt((q * (1 - q)).sum()) for b, q in gate_bins(result, 5)]
    values["gates"] = min(1.0, 5 * 2 * norm.sf(np.abs(z).max()))
    score, expected, sd = brier(result)
    return values | {"Brier score": 2 * norm.sf(abs(score - expected) / sd)}


def draw(result: Calibration, path):
    """The ECDFs of the ranks less the uniform's, and the gates' reliability curve."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    families = {name: "H squared" if "H" in name else name.rstrip(" 12") for name in result.pit}
    plots.plot_ranks(result.pit, families=families, ax=left)
    plots.plot_reliability(result, ax=right)
    score, expected, sd = brier(result)
    right.set_title(f"Brier score {score:.4f}, expected {expected:.4f} ± {sd:.4f}", fontsize="medium")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    numpyro.enable_x64()
    docs = Path(__file__).parents[1] / "docs"
    if sys.argv[1:] in (["--extended"], ["--states"]):
        states = sys.argv[1] == "--states"
        moves = [move for move in SETS["all"] if not (states and move == "gate_latent")]
        settings = {"extended": True, "states": states, "replications": REPLICATIONS_EXTENDED}
        result = calibrate(moves, random.key(0), **settings)
        score, expected, sd = brier(result)
        table = {"replications": REPLICATIONS_EXTENDED, "Brier score": [score, expected, sd], "p": p_values(result)}
        text = json.dumps(jax.tree.map(lambda number: float(f"{number:.3g}"), table), indent=1)
        (docs / f"calibration_{sys.argv[1][2:]}.json").write_text(text + "\n")
        print(text)
    else:
        draw(calibrate(SETS["marginal"], random.key(0)), docs / "calibration.png")
