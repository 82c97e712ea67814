"""Runs one peer's script in the peer's own interpreter, which needs NumPy: ``child.py SCRIPT DATA OUT ...``.

The first fit is cold: it counts the imports and what they compile. The second is warm. Each leaves a file in OUT.
"""

import importlib.util
import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path

BEGIN = time.perf_counter(), 0.0


def clock() -> tuple[float, float]:
    """Wall seconds, and CPU seconds of this process and of those it waited for."""
    return time.perf_counter(), sum(os.times()[:4])


def peak_megabytes() -> float:
    """Of this process; Linux' own count, since the other one begins with what the parent held."""
    try:
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(script: str, data: str, out: str, *arguments: str):
    """Fit twice, and write means, sds, the gates' probabilities where there are some, and what it took."""
    import numpy as np

    warnings.simplefilter("ignore")
    with np.load(data) as file:
        inputs = [file[name] for name in ("train_inputs", "train_y", "test_inputs")]
        dictionary = json.loads(str(file["dictionary"]))
    begin = BEGIN
    specification = importlib.util.spec_from_file_location("script", script)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for name in ("cold", "warm"):
        mean, sd, *gates = module.fit(*inputs, dictionary, *arguments)
        found = {"mean": np.asarray(mean), "sd": np.asarray(sd)} | ({"gates": np.asarray(gates[0])} if gates else {})
        seconds, cpu = np.subtract(clock(), begin)
        part = Path(out) / f"{name}.part.npz"
        np.savez(part, seconds=seconds, cpu=cpu, megabytes=peak_megabytes(), **found)
        part.replace(Path(out) / f"{name}.npz")  # a kill leaves all of a fit or nothing
        begin = clock()


if __name__ == "__main__":
    main(*sys.argv[1:])
