"""The gallery's pages: their tables are what the functions make, and their commands say what the pages conclude."""

import pandas as pd
import pytest
from runs import command

from alps_ppl.app import figures
from experiments import gallery

SMALL = [
    "--set", "GIBBS.num_warmup=100", "--set", "GIBBS.num_samples=150", "--set", "GIBBS.num_chains=2", "--no-progress",
]  # fmt: skip
HOUSES = 20


@pytest.mark.parametrize("name", gallery.TABLES)
def test_the_table_is_what_the_function_makes(name):
    made, _ = gallery.TABLES[name](0)
    kept = pd.read_csv(gallery.FOLDER / f"{name}.csv", index_col=0, parse_dates=True)
    pd.testing.assert_frame_equal(kept, made, check_freq=False, check_index_type=False, check_dtype=False)


@pytest.mark.parametrize("name", gallery.TOLD)
def test_a_page_has_its_command_its_table_and_its_figures(name):
    text = (gallery.FOLDER / f"{name}.md").read_text()
    words = [words for words in gallery.commands(name) if words[0] == "alps-ppl"]
    assert words
    assert (gallery.FOLDER / f"{name}.csv").exists() == (f"]({name}.csv)" in text) == (name in gallery.TABLES)
    assert gallery.figures_of(name)
    assert all((gallery.FOLDER / f"{figure}.png").exists() for figure in gallery.figures_of(name))
    assert f"({name}.md)" in (gallery.FOLDER / "index.md").read_text()


def holds(told):
    """Whether all holds that has to."""
    return all(value for value in told.values() if isinstance(value, bool))


@pytest.mark.slow
@pytest.mark.parametrize("name", gallery.TABLES)
def test_a_page_concludes_what_its_command_says(name, monkeypatch):
    """By the first of its commands, a short run without its figures."""
    monkeypatch.setattr(figures, "draw", lambda *_: None)
    table, truth = gallery.TABLES[name](0)
    words = gallery.commands(name)[0]
    with gallery.workplace(name, table):
        status, _, error = command(*words[1:], *SMALL)
        assert status == 0, error
        told = gallery.TOLD[name](gallery.folder_of(words), truth)
    assert holds(told), told


@pytest.mark.slow
def test_a_thousand_tables():
    """Twenty of them."""
    make, fit = gallery.commands("thousand")
    with gallery.workplace("thousand", None):
        gallery.execute([*make, "--number", str(HOUSES)])
        status, _, error = command(*fit[1:], "--workers", "0", "--no-progress")
        assert status == 0, error
        told = gallery.TOLD["thousand"](gallery.folder_of(fit), {})
        assert pd.read_csv(gallery.folder_of(fit) / "inclusion.csv").table.nunique() == HOUSES
    assert holds(told), told
