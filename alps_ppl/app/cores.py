"""The processor's cores as JAX's devices, which the sampler's chains share."""

import os

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
    affinity = getattr(os, "sched_getaffinity", None)  # Linux's
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    os.environ["XLA_FLAGS"] = f"{flags} {FLAG}={min(cores, MOST)}".strip()
