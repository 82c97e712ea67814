"""``svi``: milliseconds per SVI step and seconds of compilation on the square wave."""

import json
from time import perf_counter

import jax

import alps_ppl as alps
from benchmarks.timing import Clock, Compilation, fresh, load, progress, show

MARK_MS = 2.3
NUM_INDUCING = (10, 20, 100)


def fit(name: str, **settings) -> dict:
    """A row: one ``fit_svi`` of the model file from a cold start, with its own settings but for these."""
    problem, model, inputs, y = load(name)
    settings, clock, key = problem.svi | settings, Clock(), jax.random.key(0)
    with Compilation() as compilation:
        begin = perf_counter()
        alps.fit_svi(model, inputs, y, rng_key=key, progress_bar=False, checkpoints=clock, **settings)
        total = perf_counter() - begin
    return {
        "precision": str(inputs.dtype),
        "inducing": settings["num_inducing"],
        "steps": settings["num_steps"],
        "ms / step": 1e3 * clock.seconds(settings["num_steps"]),
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
