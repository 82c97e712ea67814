"""``cold``: what a user waits for, from a cold start: the square wave by both engines, and what compiles."""

import json
import tempfile
from pathlib import Path
from time import perf_counter

import jax
import numpyro

import alps_ppl as alps
from benchmarks.timing import Compilation, fresh, load, progress, show

MARK_S, MARK_COMPILE_S = 60, 5


def engines() -> list[dict]:
    """A row per engine: its first fit in this process with the file's settings, and its compilation by stage."""
    numpyro.enable_x64()
    problem, model, inputs, y = load("square_wave")
    rows = []
    for engine, fit in {"svi": alps.fit_svi, "gibbs": alps.fit_gibbs}.items():
        with Compilation() as compilation:
            begin = perf_counter()
            fit(model, inputs, y, rng_key=jax.random.key(0), progress_bar=False, **problem.settings(engine))
            total = perf_counter() - begin
        functions = compilation.functions()
        rows.append(
            {
                "engine": engine,
                "total [s]": total,
                **{f"{stage} [s]": compilation.seconds(stage) for stage in ("trace", "lower", "compile")},
                "all three [s]": compilation.seconds(),
                "share": compilation.seconds() / total,
                "programs": len(functions),
                "largest": ", ".join(f"{name} {s:.2f} s" for name, s in functions.head(3).items()),
            }
        )
    return rows


def run():
    """The command line in a fresh process, then both engines in another one, with a clock on compilation."""
    progress("alps-ppl run models/square_wave.py in a fresh process")
    with tempfile.TemporaryDirectory() as out:
        begin = perf_counter()
        fresh(
            "-m",
            "alps_ppl.app.cli",
            "--no-cache",
            "run",
            "models/square_wave.py",
            "--engine",
            "svi,gibbs",
            "--out",
            out,
        )
        total = perf_counter() - begin
        summary = json.loads((Path(out) / "summary.json").read_text())
    seconds = {engine: summary[engine]["seconds"] for engine in ("svi", "gibbs")}
    rest = total - sum(seconds.values())
    show(
        "cold: alps-ppl run models/square_wave.py --engine svi,gibbs",
        [{"total [s]": total, **{f"{name} [s]": s for name, s in seconds.items()}, "rest [s]": rest}],
        f"mark: done within {MARK_S} s; rest: imports, predictions, figures, files",
    )
    progress("what compiles, in a fresh process")
    code = "import json; from benchmarks import cold; print(json.dumps(cold.engines()))"
    rows = json.loads(fresh("-c", code))
    largest = [f"{row['engine']}, largest programs: {row.pop('largest')}" for row in rows]
    note = f"mark: the sampler's compilation takes no more than {MARK_COMPILE_S} s; nested traces count once"
    show("cold: JAX's tracing, lowering and compiling", rows, note, *largest)
