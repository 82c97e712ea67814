"""The peers' parent: what it scores, what it writes down of a child, and what it skips. No peer is run."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from benchmarks import limit
from benchmarks.peers import environments, run, scores, tables


@pytest.fixture
def table():
    """Two held-out times of two outputs, one cell missing; the period 2 is there, 5 isn't, 2 is offered twice."""
    return tables.Table(
        train_inputs=np.arange(4.0),
        train_y=np.ones((4, 2)),
        test_inputs=np.array([4.0, 5.0]),
        dictionary={"periods": [5.0, 2.0, 2.0], "noise": (2.0, 0.2)},
        y=np.array([[1.0, np.nan], [0.0, 2.0]]),
        truth=np.array([[0.0, 7.0], [0.0, 2.0]]),
        is_on={5.0: False, 2.0: True},
    )


def test_scores_are_of_the_held_out_cells(table):
    answer = {"mean": np.array([[1.0, 9.0], [1.0, 4.0]]), "sd": np.full((2, 2), 2.0), "gates": np.array([0.9, 0.6])}
    found = scores.scores(table, answer)
    assert found["RMSE"] == pytest.approx(np.sqrt((1 + 1 + 4) / 3))
    assert found["nlpd"] == pytest.approx(-norm.logpdf([0.0, -1.0, -2.0], 0.0, 2.0).mean())
    assert (found["right"], found["false"]) == (1, 1)
    assert found["Brier"] == pytest.approx((0.1**2 + 0.6**2) / 2)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mean": np.zeros((3, 2))}, "expected shape"),
        ({"sd": np.zeros((2, 2))}, "positive sds"),
        ({"mean": np.full((2, 2), np.nan)}, "finite"),
        ({"gates": np.zeros(3)}, "expected 2 probabilities"),
    ],
)
def test_another_answer_is_no_score(table, changed, words):
    with pytest.raises(ValueError, match=words):
        scores.scores(table, {"mean": np.zeros((2, 2)), "sd": np.ones((2, 2))} | changed)


def test_only_code_counts_as_lines(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        '"""What\nit is."""\n\n# why\nimport os\n\n\ndef f(\n    x,\n):\n    """Docstring."""\n    return """a\nb"""\n'
    )
    assert scores.lines_of_code(script) == 6


def test_the_row_of_a_peer(table, tmp_path, monkeypatch):
    """A child that answers, one that fails after its first fit, one that is too slow, one without an interpreter."""
    monkeypatch.setattr(run, "HERE", tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "child.py").write_text(environments.Path(environments.__file__).with_name("child.py").read_text())
    fit = "import numpy as np, time\ncalls = []\n\ndef fit(inputs, y, new, dictionary, *why):\n    calls.append(1)\n"
    script = fit + "    if why == ('slow',): time.sleep(60)\n    if why and calls[1:]: raise ValueError('no more')\n"
    (tmp_path / "scripts" / "script.py").write_text(script + "    return np.zeros((2, 2)), np.ones((2, 2))\n")
    peers = {word: run.Peer("script", environments.OWN, word) for word in ("", "fails", "slow")}
    monkeypatch.setattr(run, "PEERS", peers | {"gone": run.Peer("script", "nowhere")})
    rows = {name: run.measure(name, table, tmp_path, 2.0 if name == "slow" else 60.0) for name in run.PEERS}
    assert [row["note"] for row in rows.values()] == ["", "ValueError: no more", "over 2 s", "absent"]
    assert [{"cold [s]", "warm [s]", "RMSE"} & row.keys() for row in rows.values()] == [
        {"cold [s]", "warm [s]", "RMSE"},
        {"cold [s]", "RMSE"},
        set(),
        set(),
    ]
    whole = scores.summary(list(rows.values()))
    assert list(whole.sets) == [1, 0, 0, 0]
    assert 5 < rows[""]["MB"] < 1_000


def test_rows_are_kept_and_absent_ones_asked_again(tmp_path, capsys):
    out, folder = tmp_path / "new" / "rows.json", tmp_path / "none"
    wanted = {"only": ("oilmm", "currencies"), "out": out}
    run.run(folder, **wanted)
    assert [(row["table"], row["peer"], row["note"]) for row in json.loads(out.read_text())] == [
        ("currencies", "oilmm", "absent")
    ]
    run.run(folder, **wanted)
    assert len(json.loads(out.read_text())) == 1
    assert capsys.readouterr().err.count("measuring") == 2
    assert "| oilmm |" in run.markdown(out)
    with pytest.raises(run.click.ClickException, match="got olimm"):
        run.run(folder, only=("olimm",))


def test_medians_are_over_data_sets():
    rows = [{"peer": "a", "note": "", "RMSE": value} for value in (1.0, 5.0, 2.0)]
    found = scores.summary([*rows, {"peer": "b", "note": "absent"}])
    assert list(found.RMSE[:1]) == [2.0]
    assert list(found.sets) == [3, 0]
    assert list(found.note) == ["", "absent"]


def test_peers_see_no_held_out_cell(tmp_path):
    """Of each table: what is written, and whether the cells to predict are cells that a fit has not seen."""
    for name, make in tables.TABLES.items():
        table = make(0)
        table.write(tmp_path / "data.npz")
        with np.load(tmp_path / "data.npz") as file:
            assert set(file) == {"train_inputs", "train_y", "test_inputs", "dictionary"}
        assert table.y.shape == (len(table.test_inputs), table.train_y.shape[1]), name
        shared = np.isin(table.test_inputs, table.train_inputs)
        seen = np.searchsorted(table.train_inputs, table.test_inputs[shared])
        assert not (~np.isnan(table.y[shared]) & ~np.isnan(table.train_y[seen])).any(), name


def test_every_environment_has_its_requirements():
    pinned = {path.stem for path in environments.REQUIREMENTS.glob("*.txt")}
    assert {peer.environment for peer in run.PEERS.values()} == pinned | {environments.OWN}
    assert environments.python(environments.REQUIREMENTS, environments.OWN) == environments.Path(sys.executable)


def test_operations_of_a_program_are_counted():
    """A product in a loop, a Cholesky factor and a triangular solve; the longer of two branches."""
    A = np.eye(6)

    def program(x):
        x = jax.lax.fori_loop(0, 5, lambda _, x: A @ x, x)
        tril = jnp.linalg.cholesky(A, symmetrize_input=False)
        x = jax.lax.linalg.triangular_solve(tril, x, left_side=True, lower=True)
        return jax.lax.cond(x[0, 0] > 0, lambda x: A @ (A @ x), lambda x: A @ x, x)

    product = 2 * 6 * 6 * 2
    flops, _ = limit.operations(jax.make_jaxpr(program)(np.ones((6, 2))).jaxpr)
    least = 5 * product + 6**3 / 3 + 36 * 2 + 2 * product
    assert least <= flops <= least + 4 * 36  # the mask of the factor, counters
