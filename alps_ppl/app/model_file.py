"""Model files: a user's Python file as a ``Problem``, and ``alps-ppl fit``'s own files in their places."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from alps_ppl.app.errors import BadInput
from alps_ppl.app.problem import Problem
from alps_ppl.model.alps import ALPS
from alps_ppl.tables.data import Data


def load_model_file(path: Path, settings: Mapping[str, Mapping[str, Any]] | None = None) -> Problem:
    """What a model file says: its data, its model, and its dicts with ``settings`` of "SVI", "VB" and "GIBBS" changed.

    Raises BadInput with the file's line where it can't be loaded, lacks a name, or its functions fail.
    """
    module = _module(path)
    changed = settings or {}
    data = _called(module, "data", Data)
    return Problem(
        path.name,
        data,
        _called(module, "model", ALPS, data),
        module.SVI | changed.get("SVI", {}),
        module.GIBBS | changed.get("GIBBS", {}),
        partial(_called, module, "baselines", dict, data) if hasattr(module, "baselines") else None,
        path.read_text(encoding="utf-8", errors="replace"),
        vb={**getattr(module, "VB", {}), **changed.get("VB", {})},
    )


def write_model_file(path: Path, source: str) -> None:
    """Write ``alps-ppl fit``'s file, never over another one: what is there and differs gets a name of its own."""
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != source:
        names = (path.with_name(f"{path.stem}.before{number}.py") for number in ("", *range(2, 1_000)))
        kept = next(name for name in names if not name.exists())
        path.replace(kept)
        click.echo(f"{path}: what was there is now {kept.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


def _module(path: Path) -> ModuleType:
    # A name of its own: a model file called numpy.py must not replace NumPy.
    name = f"_alps_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise BadInput(f"MODEL_FILE: expected a Python file (.py), got {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BadInput(f"{path}: can't be loaded: {type(error).__name__}: {error}") from error
    kinds = {"data": "a function", "model": "a function", "SVI": "a dict", "GIBBS": "a dict"}
    for name, kind in kinds.items():
        value = getattr(module, name, None)
        if not (callable(value) if kind == "a function" else isinstance(value, dict)):
            raise BadInput(f"{path}: expected it to define {name}, {kind}; a model file has data, model, SVI and GIBBS")
    return module


def _called(module: ModuleType, name: str, kind: type, *arguments: Any) -> Any:
    """What the model file's function returns; whatever it raises becomes one line that names the place."""
    path, function = str(module.__file__), getattr(module, name)
    file = Path(path).name
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        expected = f"{name}({'data' if arguments else ''})"
        got = f"{name}{inspect.signature(function)}"
        raise BadInput(f"{file}: expected the function {expected}, got {got}") from None
    try:
        value = function(*arguments)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        place = f"{file}, line {lines[-1]}, in {name}()" if lines else f"{file}: {name}()"
        raise BadInput(f"{place}: {type(error).__name__}: {error}") from error
    if not isinstance(value, kind):
        expected = f"an alps.{kind.__name__}" if kind in (Data, ALPS) else f"a {kind.__name__}"
        raise BadInput(f"{file}: {name}(): expected it to return {expected}, got {type(value).__name__}")
    return value
