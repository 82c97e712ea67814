"""What the groups share: fresh processes, a clock of JAX's compilation, model files, and the table."""

import datetime
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from statistics import median
from time import perf_counter

import click
import jax
import numpy as np
import pandas as pd

import alps_ppl as alps
from alps_ppl.app.model_file import load_model_file
from alps_ppl.app.problem import Problem

ROOT = Path(__file__).parents[1]
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


class Compilation:
    """A context that records the time spans in which JAX traces, lowers and compiles."""

    def __init__(self):
        self.spans: list[tuple[float, float, str, str]] = []  # start, end, stage, function

    def __enter__(self):
        jax.monitoring.register_event_time_span_listener(self._record)
        return self

    def __exit__(self, *exception):
        jax.monitoring.unregister_event_time_span_listener(self._record)

    def _record(self, event: str, start: float, end: float, fun_name: str = "", **kwargs):
        if event in STAGES:
            self.spans.append((start, end, STAGES[event], fun_name))

    def seconds(self, *stages: str) -> float:
        """Wall seconds in these stages (all of them if none is named); nested spans count once."""
        total, until = 0.0, 0.0
        for start, end, stage, _ in sorted(self.spans):
            if not stages or stage in stages:
                total += max(0.0, end - max(start, until))
                until = max(until, end)
        return total

    def functions(self) -> pd.Series:
        """Seconds of XLA's own compilation by function, the largest first."""
        compiled = [(name, end - start) for start, end, stage, name in self.spans if stage == "compile"]
        return pd.DataFrame(compiled, columns=["name", "s"]).groupby("name").s.sum().sort_values(ascending=False)


class Clock:
    """Stands in a fit where its checkpoints do, and notes when each chunk of steps or sweeps ends."""

    def __init__(self):
        self.ends: list[float] = []

    def part(self, name: str, steps: str) -> "Clock":
        """The same clock for every part of a fit."""
        return self

    def resume(self, state):
        """Every part begins anew."""
        return 0, state

    def is_due(self, *, last: bool = False) -> bool:
        """Nothing is written."""
        self.ends.append(perf_counter())
        return False

    def seconds(self, num_steps: int) -> float:
        """Of a step or sweep, in a fit of so many: the median over its chunks but the first, which compiles."""
        return median(np.diff(self.ends)) / max(1, num_steps // 100)


def fresh(*arguments: str) -> str:
    """The stdout of Python with these arguments in a fresh process, without a compilation cache."""
    env = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with status {done.returncode}:\n{done.stderr}")
    return done.stdout


def load(name: str) -> tuple[Problem, alps.ALPS, jax.Array, jax.Array]:
    """(problem, model, inputs, y) of ``models/name.py``, as the command line fits them."""
    problem = load_model_file(ROOT / "models" / f"{name}.py")
    return problem, problem.model, *problem.model.check_data(problem.data.train_inputs, problem.data.train_y)


def progress(text: str):
    """Say on stderr what is being measured."""
    click.echo(f"  measuring {text} ...", err=True)


def show(title: str, rows: list[dict], *notes: str):
    """Print the title, the machine and the date, the rows as an aligned table, and the notes."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("alps-ppl", "jax", "jaxlib", "numpyro"))
    load_now = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    click.echo(f"\n== {title}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores{load_now}"
    blas = os.environ.get("OPENBLAS_NUM_THREADS", "not set")
    click.echo(f"{datetime.datetime.now():%Y-%m-%d %H:%M}, {machine}, OPENBLAS_NUM_THREADS {blas}")
    click.echo(f"Python {platform.python_version()}, {versions}")
    click.echo(pd.DataFrame(rows).to_string(index=False, na_rep="", float_format="{:.3g}".format))
    for note in notes:
        click.echo(note)
