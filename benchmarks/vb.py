"""``vb``: coordinate ascent beside SVI's steps and the sampler's gates: the square wave and the noisy mixture."""

from time import perf_counter

import jax
import numpy as np

import alps_ppl as alps
from alps_ppl.app.model_file import load_model_file
from benchmarks.timing import ROOT, progress, show

PAPER_STEPS, TIMED_STEPS, SEEDS = 20_000, 2_000, 5


def run():
    """Second fits, so that nothing compiles; SVI's seconds are those of 2,000 steps, times ten."""
    rows = []
    for name in ("square_wave", "noisy_mixture"):
        progress(f"vb, svi and gibbs of {name}")
        problem = load_model_file(ROOT / "models" / f"{name}.py")
        data = problem.model, problem.data.train_inputs, problem.data.train_y
        quiet = {"progress_bar": False}
        alps.fit_vb(*data, rng_key=jax.random.key(0), **quiet)
        svi_settings = {key: value for key, value in problem.svi.items() if key != "num_steps"}
        alps.fit_svi(*data, rng_key=jax.random.key(0), num_steps=TIMED_STEPS, **svi_settings, **quiet)
        gibbs = alps.fit_gibbs(*data, rng_key=jax.random.key(0), **problem.gibbs, **quiet)
        timed = [_timed(alps.fit_vb, *data, rng_key=jax.random.key(seed), **quiet) for seed in range(SEEDS)]
        fits, seconds = [fit for fit, _ in timed], [each for _, each in timed]
        _, of_svi = _timed(
            alps.fit_svi, *data, rng_key=jax.random.key(1), num_steps=TIMED_STEPS, **svi_settings, **quiet
        )
        whole = alps.fit_svi(*data, rng_key=jax.random.key(1), **problem.svi, **quiet)
        of_svi *= PAPER_STEPS / TIMED_STEPS
        apart = max((_probabilities(fit) - _probabilities(gibbs)).abs().max() for fit in fits)
        rows.append(
            {"": name, "vb [s]": float(np.median(seconds)), "20,000 SVI steps [s]": of_svi}
            | {"ratio": of_svi / float(np.median(seconds)), "vb's bound": min(fit.elbo for fit in fits)}
            | {"SVI's bound": whole.elbo, "largest difference to Gibbs": apart}
        )
    show(f"vb: {SEEDS} seeds, all starts and moves", rows)


def _probabilities(fit):
    """Of processes; equal ones, of which either may be the one that is on, as one."""
    table = alps.inclusion_table(fit)
    whole = table.members == table.groupby("group").members.transform("max")
    return table[whole].set_index("latent").probability


def _timed(fit, *arguments, **settings):
    begin = perf_counter()
    found = fit(*arguments, **settings)
    jax.block_until_ready(found.samples["H"])
    return found, perf_counter() - begin
