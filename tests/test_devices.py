"""Several devices and processes: large tables' sums, and the sampler's chains."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from alps_ppl.app import cores

PROCESS = """
import sys
import jax, numpy as np, numpyro
numpyro.enable_x64()
port, index, count, out = sys.argv[1:]
if int(count) > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=int(count), process_id=int(index))
from tests import test_streaming as here
import alps_ppl as alps
t, y = here.table()
parts = list(here.chunks(t, y, 100))[int(index)::int(count)]
draws = {}
found = [alps.sum_rows(here.model(), parts, span=(t[0], t[-1]), progress_bar=False)]
if int(count) == 1:
    found.append(alps.sum_rows(here.model(t), parts, span=(t[0], t[-1]), progress_bar=False))
stats = [part for rows in found for part in (rows.stats.gram[rows.stats.pattern], rows.stats.projection,
    rows.stats.sum_squares, rows.stats.num_observed, rows.loc, rows.scale)]
if int(count) == 1:
    private = found[1].stats.private
    stats += [private.gram[:, found[1].stats.pattern], *private[2:]]
    lengths = {"num_warmup": 3, "num_samples": 5, "num_chains": 4}
    fit = alps.fit_gibbs(here.model(), found[0], rng_key=jax.random.key(0), progress_bar=False, **lengths)
    draws = {"draws_of_H": fit.sites["H"], "gate_prob": fit.sample_stats["gate_prob"]}
np.savez(out, *map(np.asarray, stats), **draws, rows=[rows.num_rows for rows in found], kept=np.sort(found[0].inputs))
"""


@pytest.mark.slow
def test_devices_and_processes_share_the_work(tmp_path):
    """One process and device; four devices; two processes of two devices each, over loopback. Sums and draws agree."""

    def run(devices, count=1):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        files = [tmp_path / f"{devices}_{index}_of_{count}.npz" for index in range(count)]
        flags = f"--xla_force_host_platform_device_count={devices}"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", PROCESS, port, str(index), str(count), str(file)],
                env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for index, file in enumerate(files)
        ]
        for process in processes:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-2000:]
        return [np.load(file) for file in files]

    (one,), (four,), two = run(1), run(4), run(2, 2)
    for other in (four, *two):
        np.testing.assert_array_equal(other["rows"], one["rows"][: len(other["rows"])])
        np.testing.assert_array_equal(other["kept"], one["kept"])
        for name in set(other.files) - {"rows", "kept"}:
            # Eight sweeps make more of rounding.
            tolerance = 1e-12 if name.startswith("arr") else 1e-6
            np.testing.assert_allclose(
                other[name], one[name], rtol=tolerance, atol=tolerance * np.abs(one[name]).max(), err_msg=name
            )


def test_the_command_takes_each_core_for_a_device(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--other")
    for count, devices in ((1, 1), (3, 3), (64, 4)):
        monkeypatch.setenv("XLA_FLAGS", "--other")
        monkeypatch.setattr(cores.os, "sched_getaffinity", lambda _, count=count: set(range(count)), raising=False)
        cores.share_cores()
        cores.share_cores()
        assert os.environ["XLA_FLAGS"] == f"--other {cores.FLAG}={devices}"


def test_one_of_many_processes_takes_one_core(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for given, flags in (("", "intra_op_parallelism_threads=1"), ("--other", "--other")):
        monkeypatch.setenv("XLA_FLAGS", given)
        cores.share_cores()
        before = dict(os.environ)
        with cores.a_core_each():
            assert os.environ["OMP_NUM_THREADS"] == "1"
            assert os.environ["XLA_FLAGS"].endswith(flags)
            assert cores.FLAG not in os.environ["XLA_FLAGS"]
        assert dict(os.environ) == before
