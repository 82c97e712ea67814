"""Compiled programs, kept from one run of the command to the next by JAX's persistent cache."""

import hashlib
import os
import platform
import time
from pathlib import Path
from typing import Any

import jax
import platformdirs

MOST_BYTES = 500_000_000
# Another command may be writing one.
SECONDS_TO_WRITE = 60


def keep_programs() -> Path | None:
    """Have JAX keep compiled programs in the user's cache folder, which is returned.

    JAX drops those unused for longest beyond 500 MB. Without a folder that can be written to, or where
    ``JAX_COMPILATION_CACHE_DIR`` names one already, nothing changes. A program is for one kind of processor: each has a
    folder of its own, since several machines may share a home.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return None
    try:
        folder = Path(platformdirs.user_cache_dir("alps_ppl", appauthor=False)) / _processor()
        str(folder).encode("utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        _drop_what_a_kill_left(folder)
    except (OSError, RuntimeError, UnicodeEncodeError):  # RuntimeError: nobody's home is known
        return None
    if not os.access(folder, os.W_OK):
        return None
    config.update("jax_compilation_cache_max_size", MOST_BYTES)
    config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a run has two hundred small ones
    config.update("jax_compilation_cache_dir", str(folder))
    return folder


def _drop_what_a_kill_left(folder: Path) -> None:
    """JAX writes a program and then when it was used: one without the other is broken, and stops all later writes."""
    for program in folder.glob("*-cache"):
        is_whole = program.with_name(f"{program.name.removesuffix('-cache')}-atime").exists()
        if not is_whole and time.time() - program.stat().st_mtime > SECONDS_TO_WRITE:
            program.unlink(missing_ok=True)


def _processor() -> str:
    """A name for what this machine's processor can do."""
    able = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        able += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        pass
    return f"{platform.machine()}-{hashlib.sha256(able.encode()).hexdigest()[:12]}"
