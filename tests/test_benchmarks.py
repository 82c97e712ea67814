"""The benchmarks' command line starts, and the quickest group prints its table."""

import subprocess
import sys
from pathlib import Path

import pytest


def benchmarks(*arguments):
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", "benchmarks", *arguments], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_names_the_groups():
    assert (
        "import, svi, likelihood, gibbs, vb, many, schur, states, weather, large, rows, limit, cold and peers"
        in " ".join(benchmarks("--help").split())
    )


@pytest.mark.slow
def test_import_prints_its_table_and_loads_no_plotting():
    out = benchmarks("import")
    for package in ("jax", "numpyro", "alps_ppl"):
        assert any(line.split()[:1] == [package] for line in out.splitlines())
    assert "xarray: none" in out
