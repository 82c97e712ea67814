"""What the documentation names is there."""

import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import alps_ppl as alps
from alps_ppl.gibbs import conditionals, kernel

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_on_a_page_exist(page):
    for name in set(re.findall(r"`(alps(?:_ppl)?\.[\w.]+)", page.read_text())):
        resolved = name if name.startswith("alps_ppl.") else "alps_ppl" + name.removeprefix("alps")
        assert pkgutil.resolve_name(resolved) is not None


def test_the_sampler_page_has_every_conditional_and_every_set_of_moves():
    text = (DOCS / "sampler.md").read_text()
    names = [name for name in vars(conditionals) if name.endswith("_conditional")]
    assert names
    assert all(f"`alps_ppl.gibbs.conditionals.{name}`" in text for name in names)
    assert all(f'| "{name}" |' in text for name in ("default", *kernel.SETS))


def test_the_api_page_has_every_public_name():
    text = (DOCS / "api.md").read_text()
    assert sorted(re.findall(r"^::: alps_ppl\.(\w+)$", text, re.MULTILINE)) == sorted(set(alps.__all__) - {"plots"})


def test_the_conda_recipe_is_of_the_package():
    """Names, lower bounds, Python, version, command and summary; an extra of a dependency is packages of its own."""
    recipe = yaml.safe_load((DOCS.parent / "conda" / "meta.yaml").read_text())
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    of_extras = {"h5netcdf": "", "h5py": "", "xarray-einstats": ""}
    expected = [f"python{project['requires-python']}", *project["dependencies"]]
    needed = dict(re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=(\S+)", line).groups() for line in expected)
    needed["matplotlib-base"] = needed.pop("matplotlib")  # conda's name of it without Qt
    run = dict(re.fullmatch(r"([\w-]+)(?: >=(\S+))?", line).groups("") for line in recipe["requirements"]["run"])
    assert run == needed | of_extras
    assert recipe["package"] == {"name": project["name"], "version": project["version"]}
    assert recipe["build"]["entry_points"] == [f"{name} = {place}" for name, place in project["scripts"].items()]
    assert recipe["about"]["summary"] == project["description"]
