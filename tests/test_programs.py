"""Compiled programs that are kept: where, when not, and that another process asks for the same ones."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from click.testing import CliRunner

from alps_ppl.app import programs
from alps_ppl.app.cli import cli
from alps_ppl.model.leaves import by_name, from_names


@pytest.fixture
def updates(monkeypatch, tmp_path):
    """What JAX would be told, with no folder named so far and the user's cache in ``tmp_path``."""
    told = {}
    monkeypatch.setattr(programs.platformdirs, "user_cache_dir", lambda name, appauthor: str(tmp_path / "cache" / name))
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None, raising=False)
    monkeypatch.setattr(jax.config, "update", told.__setitem__)
    return told


def test_where_programs_are_kept(updates, tmp_path):
    """In a folder of this processor's, bounded in size."""
    folder = programs.keep_programs()
    assert folder.parent == tmp_path / "cache" / "alps_ppl"
    assert folder.is_dir()
    assert updates["jax_compilation_cache_dir"] == str(folder)
    assert updates["jax_compilation_cache_max_size"] == 500_000_000
    assert programs.keep_programs() == folder


def test_without_a_home_nothing_is_kept(updates, tmp_path):
    """Where the folder can't be made."""
    (tmp_path / "cache").write_text("a file in its place")
    assert programs.keep_programs() is None
    assert not updates


def test_nobodys_home_keeps_nothing(updates, monkeypatch):
    """As for a user whom the system doesn't know, without HOME; and where the folder's name isn't text."""

    def unknown(*_, **__):
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(programs.platformdirs, "user_cache_dir", unknown)
    assert programs.keep_programs() is None
    monkeypatch.setattr(programs.platformdirs, "user_cache_dir", lambda *_, **__: "/tmp/\udcff")
    assert programs.keep_programs() is None
    assert not updates


def test_what_a_kill_left_is_dropped(updates):
    """A program without the time of its last use, unless it may be being written."""
    folder = programs.keep_programs()
    for name in ("whole", "broken", "new"):
        (folder / f"{name}-cache").write_bytes(b"program")
    (folder / "whole-atime").write_bytes(b"when")
    for name in ("whole", "broken"):
        os.utime(folder / f"{name}-cache", (0, 0))
    programs.keep_programs()
    assert {path.name for path in folder.iterdir()} == {"whole-cache", "whole-atime", "new-cache"}


def test_a_folder_of_the_users_own_stays(updates, monkeypatch):
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", "/elsewhere", raising=False)
    assert programs.keep_programs() is None
    assert not updates


@pytest.mark.parametrize(("flag", "kept"), [([], 1), (["--no-cache"], 0)])
def test_the_commands_flag(monkeypatch, flag, kept):
    calls = []
    monkeypatch.setattr(programs, "keep_programs", lambda: calls.append(1))
    CliRunner().invoke(cli, [*flag, "report", "nowhere"])
    assert len(calls) == kept


@pytest.mark.parametrize("prior", [dist.InverseGamma(2.0, 0.3), dist.Beta(1.0, 3.0), dist.LogNormal(0.1, 2.0)])
def test_a_prior_from_its_named_leaves(prior):
    again = from_names(*by_name(prior))
    assert type(again) is type(prior)
    np.testing.assert_allclose(again.log_prob(0.4), prior.log_prob(0.4))
    assert from_names(*by_name(0.7)) == 0.7


MODEL = """
import jax, numpyro.distributions as dist
import alps_ppl as alps
model = alps.ALPS({"a": alps.linear_periodic(3.0)}, 2, inclusion_prob=dist.Beta(1.0, 2.0),
                  noise_variance=dist.InverseGamma(3.0, 0.5), private_memory=alps.private_memory([0.0, 1.0, 2.0]))
print(jax.tree_util.tree_flatten_with_path(model))
"""


def test_leaves_are_in_one_order_in_every_process():
    """Whatever the hashes of strings: a compiled program is found by the order of its arguments."""
    said = [
        subprocess.run(
            [sys.executable, "-c", MODEL],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[1],
        ).stdout.split("PyTreeDef")[0]
        for seed in ("1", "2")
    ]
    assert len(said[0]) > 100
    assert said[0] == said[1]
