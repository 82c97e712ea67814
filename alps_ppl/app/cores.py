"""The processor's cores: JAX's devices, which a sampler's chains share, or one for each of many processes."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

# As many chains there are, if nobody says otherwise.
MOST = 4
FLAG = "--xla_force_host_platform_device_count"


def share_cores() -> None:
    """Have JAX, which mustn't have started yet, take each core that this process may use for a device, four at most.

    Where ``XLA_FLAGS`` says how many already, nothing changes.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if FLAG in flags:
        return
    os.environ["XLA_FLAGS"] = f"{flags} {FLAG}={min(num_cores(), MOST)}".strip()


def num_cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux's
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def a_core_each() -> Iterator[None]:
    """The environment in which to start processes of which each takes one core, but for what the user has set."""
    flags = re.sub(rf"\s*{FLAG}=\d+", "", os.environ.get("XLA_FLAGS", "")).strip()
    values = {name: os.environ.get(name, "1") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")}
    values["XLA_FLAGS"] = flags or "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
