"""What the documentation names is there."""

import pkgutil
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_on_a_page_exist(page):
    for name in set(re.findall(r"`(alps(?:_ppl)?\.[\w.]+)", page.read_text())):
        resolved = name if name.startswith("alps_ppl.") else "alps_ppl" + name.removeprefix("alps")
        assert pkgutil.resolve_name(resolved) is not None


def test_the_model_page_has_every_block():
    """No conditional is left out of its table."""
    from alps_ppl import conditionals

    text = next(page for page in PAGES if page.stem == "model").read_text()
    blocks = [name for name in vars(conditionals) if name.endswith("_conditional")]
    assert blocks
    assert all(f"alps_ppl.conditionals.{name}" in text for name in blocks)
