"""``svi``: milliseconds per SVI step and seconds of compilation on the square wave."""

import json
from statistics import median
from time import perf_counter
from unittest import mock

import jax

import alps_ppl as alps
from alps_ppl import svi
from benchmarks.timing import Compilation, fresh, load, progress, show

MARK_MS = 2.3
NUM_INDUCING = (10, 20, 100)


def fit(name: str, **settings) -> dict:
    """A row: one ``fit_svi`` of the model file from a cold start, with its own settings but for these.

    A step's time is the median over the chunks of steps that ``fit_svi`` runs, the first (it compiles)
    left out.
    """
    module, model, inputs, y = load(name)
    settings = module.SVI | settings
    per_step: list[float] = []

    def timed(*arguments):
        steps = compiled_steps(*arguments)

        def call(state, losses, start, stop):
            begin = perf_counter()
            result = jax.block_until_ready(steps(state, losses, start, stop))
            per_step.append((perf_counter() - begin) / (stop - start))
            return result

        return call

    compiled_steps = svi._compiled_steps
    with mock.patch.object(svi, "_compiled_steps", timed), Compilation() as compilation:
        begin = perf_counter()
        alps.fit_svi(model, inputs, y, rng_key=jax.random.key(0), progress_bar=False, **settings)
        total = perf_counter() - begin
    return {
        "precision": str(inputs.dtype),
        "inducing": settings["num_inducing"],
        "steps": settings["num_steps"],
        "ms / step": 1e3 * median(per_step[1:]),
        "compile [s]": compilation.seconds(),
        "total [s]": total,
        "compile / total": compilation.seconds() / total,
    }


def run():
    """The file's own fit in 64-bit, then in 32-bit, then shorter ones with more inducing inputs."""
    progress("SVI, the file's settings in 64-bit")
    rows = [fit("square_wave")]
    progress("SVI, the same in 32-bit in a fresh process")
    code = "import json; from benchmarks import svi; print(json.dumps(svi.fit('square_wave')))"
    rows.append(json.loads(fresh("-c", code)))
    for num_inducing in NUM_INDUCING[1:]:
        progress(f"SVI, {num_inducing} inducing inputs")
        rows.append(fit("square_wave", num_inducing=num_inducing, num_steps=500))
    show(
        "svi: the square wave, 8 latents, 200 times",
        rows,
        f"mark: {MARK_MS} ms / step in 64-bit with 10 inducing inputs; measured {rows[0]['ms / step']:.2f}",
        "compile: wall seconds in which JAX traces, lowers or compiles; total: fit_svi, its final ELBO included",
    )
