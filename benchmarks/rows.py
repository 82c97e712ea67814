"""``rows``: a table too long to hold: one pass over a Parquet file, then sweeps that cost the same for any number."""

import json
import resource
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import alps_ppl as alps
from benchmarks.timing import fresh, progress, show

PERIODS = (6.0, 8.0, 12.0, 24.0, 84.0, 168.0, 720.0, 2190.0, 8766.0)
OUTPUTS = 10
# Rows without and with private memories; the mark's 10^8 are read off the line.
SIZES = {"white": (100_000, 1_000_000, 10_000_000), "memories": (100_000, 1_000_000)}
MARK_MINUTES, MARK_GIB, MARK_ROWS = 15.0, 2.0, 10**8


def write(path: Path, num_rows: int) -> None:
    """Minutes of ten outputs with a daily and a weekly cycle in noise, a row group at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    H = rng.normal(size=(2, OUTPUTS))
    names = ["t", *(f"y{k}" for k in range(OUTPUTS))]
    with pq.ParquetWriter(path, pa.schema([(name, pa.float64()) for name in names])) as file:
        for start in range(0, num_rows, 250_000):
            t = np.arange(start, min(start + 250_000, num_rows)) / 60.0
            y = np.sin(2 * np.pi * t[:, None] / (24.0, 168.0)) @ H + rng.normal(size=(len(t), OUTPUTS))
            file.write_table(pa.table([t, *y.T], names=names))


def measure(kind: str, num_rows: int, path: str) -> dict:
    """The pass, and what a sweep costs afterwards; memory is this process's peak."""
    numpyro.enable_x64()
    table = alps.ParquetRows(path, time="t")
    has_memory = kind == "memories"
    model = alps.ALPS(
        {f"T={T:g}": alps.linear_periodic(T) for T in PERIODS},
        table.outputs,
        noise_variance=dist.InverseGamma(2.0, 0.2),
        private_memory=alps.private_memory(np.linspace(*table.span, 1_000)) if has_memory else None,
    )
    start = perf_counter()
    rows = alps.sum_rows(model, table, progress_bar=False)
    seconds = perf_counter() - start
    alps.fit_gibbs(model, rows, rng_key=jax.random.key(0), num_warmup=10, num_samples=500, progress_bar=False)
    again = perf_counter()
    fit = alps.fit_gibbs(model, rows, rng_key=jax.random.key(1), num_warmup=10, num_samples=500, progress_bar=False)
    sweep = (perf_counter() - again) / (510 * 4)
    right = (fit.inclusion_prob > 0.5) == np.isin(PERIODS, (24.0, 168.0))
    return {
        "outputs' own part": kind,
        "rows": num_rows,
        "pass [s]": seconds,
        "rows / s": num_rows / seconds,
        "ms / sweep and chain": 1e3 * sweep,
        "gates right": f"{right.sum()} of {len(right)}",
        "peak memory [GiB]": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30,
    }


def run():
    """A fresh process for each, since a process's peak memory never falls."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, sizes in SIZES.items():
            for num_rows in sizes:
                progress(f"{num_rows:,} rows, {kind}")
                path = Path(folder) / f"{num_rows}.parquet"
                if not path.exists():
                    write(path, num_rows)
                rows.append(json.loads(fresh("-m", "benchmarks.rows", kind, str(num_rows), str(path))))
    of_white = [row for row in rows if row["outputs' own part"] == "white"]
    (n0, s0), (n1, s1) = ((row["rows"], row["pass [s]"]) for row in (of_white[0], of_white[-1]))
    minutes = (s1 + (MARK_ROWS - n1) * (s1 - s0) / (n1 - n0)) / 60
    show(
        "rows: one pass over a Parquet file, nine cycles, ten outputs, 64-bit",
        rows,
        f"mark: 10^8 rows in {MARK_MINUTES:g} minutes and {MARK_GIB:g} GiB; the line through the first and the "
        f"last size says {minutes:.1f} minutes",
        "a sweep: 510 of four chains, the second fit, its start included",
    )


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
