"""The notebooks as pages of the site, with the outputs that they keep: nothing is executed."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
OPEN = (
    """*This page is `notebooks/{name}.ipynb` as it was last run. [Notebooks](../notebooks.md) says how to open it.*"""
)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add a page for each notebook, and its pictures, which mkdocs calls for before it reads the navigation."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        pictures: list[bytes] = []
        title, *rest = _cells(json.loads(path.read_text()), f"{path.stem}_", pictures)
        page = "\n\n".join([title.replace("\n\n", f"\n\n{OPEN.format(name=path.stem)}\n\n", 1), *rest])
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for number, picture in enumerate(pictures, 1):
            files.append(File.generated(config, f"notebooks/{path.stem}_{number}.png", content=picture))


def _cells(notebook: dict[str, Any], prefix: str, pictures: list[bytes]) -> Iterator[str]:
    """Each cell and output as Markdown; the pictures' bytes go to ``pictures``, in the order of their numbers."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        yield _prose(source) if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        for output in cell.get("outputs", []):
            data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            if "image/png" in data:
                pictures.append(base64.b64decode(data["image/png"]))
                name = f"{prefix}{len(pictures)}.png"
                yield f"[![Figure {len(pictures)}]({name})]({name})"  # a tap shows its full size
            elif "text/html" in data:
                yield _table(data["text/html"])
            else:
                text = "".join(output.get("text", "")) or data["text/plain"]
                yield f"``` {{ .text .output }}\n{text.rstrip()}\n```"


def _table(html: str) -> str:
    """A data frame without pandas' own style, and the index's name in the head's first row, not in one of its own."""
    html = re.sub(r"<table[^>]*>", "<table>", re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL))
    index = r"(<th>)(</th>(?:\s*<th>[^<]*</th>)+\s*</tr>)\s*<tr>\s*<th>([^<]+)</th>(?:\s*<th></th>)+\s*</tr>"
    return re.sub(r"\n\s*\n", "\n", re.sub(index, r"\1\3\2", html)).strip().replace("<div>", '<div class="frame">', 1)


def _prose(text: str) -> str:
    """Formulas as MathML, which browsers draw by themselves, and the names of the docs' pages as links to them."""
    text = re.sub(r"`?docs/(\w+)\.md`?", r"[docs/\1.md](../\1.md)", text)
    return re.sub(r"(\$\$?)(.+?)\1", lambda found: _formula(found[2], found[1] == "$$"), text, flags=re.DOTALL)


def _formula(latex: str, block: bool) -> str:
    formula = convert(latex.replace("\n", " ").replace("'", "\N{PRIME}"), display="block" if block else "inline")
    formula = formula.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")  # "is distributed as", with space about it
    return f'<span class="formula">{formula}</span>'  # a line that begins with <math> would be a paragraph of its own
