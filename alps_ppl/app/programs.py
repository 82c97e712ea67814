"""Compiled programs, kept from one run of the command to the next by JAX's persistent cache."""

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import jax
import platformdirs

MOST_BYTES = 500_000_000
# Of a program that compiles in less, reading it back would save little.
LEAST_SECONDS = 0.0


def keep_programs() -> Path | None:
    """Have JAX keep compiled programs in the user's cache folder, which is returned.

    JAX drops those unused for longest beyond 500 MB. Without a folder that can be written to, or where
    ``JAX_COMPILATION_CACHE_DIR`` names one already, nothing changes. A program is for one kind of processor: each has a
    folder of its own, since several machines may share a home.
    """
    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None:
        return None
    folder = Path(platformdirs.user_cache_dir("alps_ppl", appauthor=False)) / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    config.update("jax_compilation_cache_max_size", MOST_BYTES)
    config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    config.update("jax_compilation_cache_dir", str(folder))
    return folder


def _processor() -> str:
    """A name for what this machine's processor can do."""
    able = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        able += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        pass
    return f"{platform.machine()}-{hashlib.sha256(able.encode()).hexdigest()[:12]}"
