"""The notebooks: each .py and its .ipynb hold the same code, and run from top to bottom."""

import re
import warnings
from pathlib import Path

import jupytext
import nbclient
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.py"))
each_notebook = pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook, kind):
    return [cell.source for cell in notebook.cells if cell.cell_type == kind]


def test_there_are_notebooks():
    assert NOTEBOOKS


@each_notebook
@pytest.mark.parametrize("kind", ["code", "markdown"])
def test_script_and_notebook_are_paired(script, kind):
    paired = script.with_suffix(".ipynb")
    assert paired.is_file(), f"run: jupytext --to ipynb --execute notebooks/{script.name}"
    assert cells(jupytext.read(script), kind) == cells(jupytext.read(paired), kind), f"jupytext --sync {script.name}"


@each_notebook
def test_kept_outputs_are_whole_and_clean(script):
    """Every figure and table is there, in order, with no warning, error or path of the machine that made it."""
    notebook = jupytext.read(script.with_suffix(".ipynb"))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    texts = [o.get("text", "") for o in outputs]
    texts += [o.get("data", {}).get(kind, "") for o in outputs for kind in ("text/plain", "text/html")]
    assert not [text for text in texts if re.search(r"site-packages|/(?:home|root|tmp|work|Users)/|[A-Z]:\\", text)]


@pytest.mark.slow
@each_notebook
def test_notebook_runs(script, monkeypatch):
    """At its quick size, in its own folder, as a reader would; a cell that raises fails the test."""
    monkeypatch.setenv("ALPS_NOTEBOOK_QUICK", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel chooses its own
    notebook = jupytext.read(script)
    resources = {"metadata": {"path": str(script.parent)}}
    with warnings.catch_warnings():
        for module in ("jupyter_client", "jupyter_core", "nbclient", "zmq"):
            warnings.filterwarnings("ignore", module=module)
        nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
    noise = [o.text for cell in notebook.cells for o in cell.get("outputs", []) if o.get("name") == "stderr"]
    assert not noise
