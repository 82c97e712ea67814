"""Checkpoints: files in which a long run leaves its state, and from which the same run goes on after it was killed."""

import os
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

# No more than this share of a run's time goes into writing, however large its state is.
WRITING = 0.05


@dataclass
class Checkpoints:
    """A folder with one file for each part of a run, written at most every ``seconds`` (0: after each chunk).

    ``say`` is told what was found there. Files of another ``fingerprint`` aren't used, and are overwritten.
    """

    folder: Path
    fingerprint: str
    seconds: float = 30.0
    say: Callable[[str], Any] = print

    def part(self, name: str, steps: str) -> "Checkpoint":
        """The file of one part; ``steps``: what it counts, for messages."""
        return Checkpoint(self, self.folder / f"{name}.npz", steps)


@dataclass
class Checkpoint:
    """One part's file: ``resume`` first; after each chunk, if it ``is_due``, ``write``."""

    checkpoints: Checkpoints
    path: Path
    steps: str
    due: float = field(init=False)

    def __post_init__(self):
        self.due = time.monotonic() + self.checkpoints.seconds

    def resume(self, like: Any) -> tuple[int, Any]:
        """The step reached and the state then, a tree of arrays as ``like``; 0 and ``like`` itself to start with."""
        if not self.path.exists():
            return 0, like
        try:
            with np.load(self.path) as file:
                if str(file["fingerprint"]) != self.checkpoints.fingerprint:
                    self.checkpoints.say(
                        f"{self.path}: of another model, data, settings, seed or version; starting anew"
                    )
                    return 0, like
                leaves, tree = jax.tree.flatten(like)
                saved = [file[f"leaf_{n}"] for n in range(len(leaves))]
                step = int(file["step"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            self.checkpoints.say(f"{self.path}: can't be read as a checkpoint; starting anew")
            return 0, like
        self.checkpoints.say(f"{self.path}: going on after {step} {self.steps}")
        return step, jax.tree.unflatten(tree, map(_from_numpy, saved, leaves))

    def is_due(self, *, last: bool = False) -> bool:
        """Whether it is time to write: after ``seconds``, and always at the end of the part."""
        return last or time.monotonic() >= self.due

    def write(self, step: int, state: Any) -> None:
        """The file as a whole or not at all: a kill leaves the one before."""
        start = time.monotonic()
        arrays: dict[str, Any] = {f"leaf_{n}": _to_numpy(leaf) for n, leaf in enumerate(jax.tree.leaves(state))}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as path, path.open("wb") as file:
            np.savez(file, fingerprint=np.array(self.checkpoints.fingerprint), step=np.array(step), **arrays)
        now = time.monotonic()
        wait = self.checkpoints.seconds
        self.due = now + (max(wait, (now - start) / WRITING) if wait else 0)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """What is written to the path given takes the place of ``path`` at the end, all at once."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _to_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _from_numpy(array: np.ndarray, like: Any) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=jax.random.key_impl(like))
    return jax.numpy.asarray(array)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(getattr(leaf, "dtype", np.dtype(float)), jax.dtypes.prng_key)
