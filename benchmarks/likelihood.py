"""``likelihood``: SVI's gradients and fits with the sampled and the analytic expected log likelihood (App. B.2)."""

from statistics import mean

import jax
import jax.numpy as jnp
import numpy as np

import alps_ppl as alps
from alps_ppl.svi.inducing import initial_inducing_inputs
from alps_ppl.svi.likelihood import LIKELIHOODS
from alps_ppl.svi.optimisation import compiled
from alps_ppl.svi.temperature import HIGHEST, LOWEST
from benchmarks.timing import Clock, load, progress, show

SEEDS = range(5)
NUM_GRADIENTS = 1_000
NUM_PARTICLES = 8_000
# After which part of the steps, all at the lowest temperature, and at which temperatures gradients are compared.
PARTS, TEMPERATURES = (0.02, 1.0), (LOWEST, HIGHEST)
LENGTHS = (0.125, 0.25, 0.5, 0.8, 1.0)
GROUPS = {"x": ("x_", "log_", "inducing"), "H": ("H_",), "gates": ("b_",), "noise": ("noise",)}


def gradient_variances(name: str, num_steps: int) -> list[dict]:
    """Per state and temperature, how many times the variance of the sampled gradient is the analytic one's.

    Summed over the parameters in the optimiser's coordinates, of all and of each kind; one fit.
    """
    problem, model, inputs, y = load(name)
    arguments = (model, initial_inducing_inputs(inputs, problem.svi["num_inducing"]), inputs, y)
    programs = {
        likelihood: compiled(jax.tree.structure(model), problem.svi["learning_rate"], 1, None, likelihood)
        for likelihood in LIKELIHOODS
    }
    temperatures = jnp.full(num_steps, LOWEST)
    # An SVI knows its constraints from its init.
    state, _ = (of.init(jax.random.key(0), {}, temperatures[0], *arguments) for of in programs.values())
    rows, losses, begin = [], jnp.zeros(num_steps), 0
    for part in PARTS:
        end = int(part * num_steps)
        state, losses, _ = programs["sampled"].steps(state, losses, begin, end, temperatures, *arguments)
        begin, params = end, programs["sampled"].svi.optim.get_params(state.optim_state)
        for temperature in TEMPERATURES:
            sampled, analytic = (_variances(of.svi, params, temperature, arguments) for of in programs.values())
            row = {"model": name, "after steps": end, "temperature": temperature}
            row["all"] = sum(sampled.values()) / sum(analytic.values())
            for kind, starts in GROUPS.items():
                own = [p for p in sampled if p.startswith(starts)]
                row[kind] = sum(sampled[p] for p in own) / sum(analytic[p] for p in own) if own else np.nan
            rows.append(row)
    return rows


def _variances(svi, params: dict, temperature: float, arguments: tuple) -> dict[str, float]:
    def loss(params, key):
        constrained = svi.constrain_fn(params)
        return svi.loss.loss(key, constrained, svi.model, svi.guide, *arguments, temperature=jnp.array(temperature))

    keys = jax.random.split(jax.random.key(1), NUM_GRADIENTS)
    gradients = jax.jit(lambda params: jax.lax.map(lambda key: jax.grad(loss)(params, key), keys))(params)
    return {name: float(value.var(0).sum()) for name, value in gradients.items()}


def fits(name: str, num_steps: int) -> list[dict]:
    """Per number of steps, each with its whole schedule: both fits' bounds and seconds, means over the seeds.

    The bounds are of the discrete model, by draws that both fits of a seed share. Seconds are those of the steps.
    """
    problem, model, inputs, y = load(name)
    rows = []
    for steps in (int(part * num_steps) for part in LENGTHS):
        progress(f"{name}: fits of {steps} steps")
        elbos, seconds = ({likelihood: [] for likelihood in LIKELIHOODS} for _ in range(2))
        for seed in SEEDS:
            for likelihood in LIKELIHOODS:
                clock, key = Clock(), jax.random.key(seed)
                own = problem.svi | {"num_steps": steps, "likelihood": likelihood}
                fit = alps.fit_svi(model, inputs, y, rng_key=key, progress_bar=False, checkpoints=clock, **own)
                elbos[likelihood].append(alps.discrete_elbo(fit, key, num_particles=NUM_PARTICLES)[0])
                seconds[likelihood].append(steps * clock.seconds(steps))
        gains = np.subtract(elbos["analytic"], elbos["sampled"])
        row = {"model": name, "steps": steps}
        row |= {f"{likelihood} ELBO": f"{mean(elbos[likelihood]):.1f}" for likelihood in LIKELIHOODS}
        row |= {"gain": f"{gains.mean():.1f} ({gains.min():.1f} to {gains.max():.1f})"}
        row |= {f"{likelihood} [s]": mean(seconds[likelihood]) for likelihood in LIKELIHOODS}
        rows.append(row)
    return rows


def run():
    """The square wave and the noisy mixture."""
    names = {"square_wave": 10_000, "noisy_mixture": 10_000}
    progress("gradients")
    show(
        "likelihood: variance of the sampled gradient over that of the analytic one",
        [row for name, steps in names.items() for row in gradient_variances(name, steps)],
    )
    show(
        f"likelihood: fits with {len(SEEDS)} seeds, sampled and analytic in turn",
        [row for name, steps in names.items() for row in fits(name, steps)],
        "gain: of the analytic fit's ELBO over the sampled one's of the same seed, mean and range, in nats",
    )
