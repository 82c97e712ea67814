"""The interpreters: one virtual environment per peer, since their pins exclude one another; ours is the running one."""

import subprocess
import sys
import venv
from pathlib import Path

import click

REQUIREMENTS = Path(__file__).parent / "requirements"
OWN = "own"


def python(folder: Path, environment: str) -> Path | None:
    """The environment's interpreter, None where it hasn't been made."""
    found = Path(sys.executable) if environment == OWN else folder.absolute() / environment / "bin" / "python"
    return found if found.exists() else None


def install(folder: Path) -> dict[str, str]:
    """Make those that aren't there from their pinned requirements; a word for each: "made", "there", "failed"."""
    words = {}
    for requirements in sorted(REQUIREMENTS.glob("*.txt")):
        name = requirements.stem
        words[name] = "there"
        if python(folder, name) is None:
            click.echo(f"  installing {name} ...", err=True)
            part = folder / f"{name}.part"
            venv.create(part, with_pip=True, clear=True)
            pip = [part / "bin" / "python", "-m", "pip", "install", "--quiet", "--requirement", requirements]
            words[name] = "failed" if subprocess.run(pip).returncode else "made"
            if words[name] == "made":
                part.rename(folder / name)
    return words
