"""``peers``: each peer on the same arrays, in a process of its own, cold and warm; absent ones are skipped."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pandas as pd

from benchmarks.peers.environments import OWN, python
from benchmarks.peers.scores import lines_of_code, scores, summary
from benchmarks.peers.tables import TABLES, Table
from benchmarks.timing import ROOT, progress, show

HERE = Path(__file__).parent


class Peer(NamedTuple):
    """A script, the environment that it runs in, the script's argument, and on how many data sets of the mixture."""

    script: str
    environment: str
    argument: str = ""
    num_seeds: int = 5


PEERS = {
    "alps vb": Peer("alps", OWN, "vb"),
    "alps Gibbs": Peer("alps", OWN, "gibbs"),
    "alps SVI": Peer("alps", OWN, "svi", 2),
    "oilmm": Peer("oilmm", "oilmm"),
    "GPJax OILMM": Peer("gpjax_oilmm", "gpjax"),
    "GPyTorch LMC": Peer("gpytorch_lmc", "gpytorch", "", 2),
    "MEFISTO": Peer("mefisto", "mofapy2", "", 1),
    "Prophetverse": Peer("prophetverse", "prophetverse", "", 1),
    "horseshoe, NUTS": Peer("numpyro_nuts", OWN, "horseshoe", 2),
    "DiscreteHMCGibbs": Peer("numpyro_nuts", OWN, "discrete", 1),
}


def answer(peer: Peer, table: Table, interpreter: Path, limit: float) -> tuple[dict, str]:
    """What the child's cold and warm fits left by name, and a word for what went wrong, empty where nothing did."""
    env = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    script = HERE / "scripts" / f"{peer.script}.py"
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        table.write(data)
        command = [interpreter, HERE / "child.py", script, data, folder, *filter(None, [peer.argument])]
        try:
            env |= {"PYTHONPATH": str(ROOT) if peer.environment == OWN else ""}
            done = subprocess.run(command, env=env, timeout=limit, capture_output=True, text=True)
            error = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            note = error[-1][:60] if done.returncode else ""
        except subprocess.TimeoutExpired:
            note = f"over {limit:.0f} s"
        found = {}
        for name in ("cold", "warm"):
            path = Path(folder) / f"{name}.npz"
            if path.exists():
                with np.load(path) as file:
                    found[name] = dict(file)
    return found, note


def measure(name: str, table: Table, folder: Path, limit: float) -> dict:
    """The row of a peer and a table: its seconds and scores, and a ``note`` where something is missing."""
    peer = PEERS[name]
    row = {"peer": name, "lines": lines_of_code(HERE / "scripts" / f"{peer.script}.py"), "note": ""}
    interpreter = python(folder, peer.environment)
    if interpreter is None:
        return row | {"note": "absent"}
    found, note = answer(peer, table, interpreter, limit)
    for fit, values in found.items():
        row |= {f"{fit} [s]": float(values["seconds"]), f"{fit} CPU [s]": float(values["cpu"])}
        row["MB"] = float(values["megabytes"])
    if found:
        try:
            row |= scores(table, found["cold"])
        except ValueError as error:
            note = str(error)
    return row | {"note": note}


def run(folder: Path, limit: float = 600.0, only: Sequence[str] = (), seeds: int = 5, out: Path | None = None):
    """Print a table of medians for each table. ``only`` names peers or tables, ``out`` a file that keeps the rows."""
    unknown = set(only) - PEERS.keys() - TABLES.keys()
    if unknown:
        known = ", ".join([*PEERS, *TABLES])
        raise click.ClickException(
            f"--only: expected peers or tables, got {', '.join(sorted(unknown))}; there are {known}"
        )
    peers = [name for name in PEERS if name in only] or list(PEERS)
    kept = json.loads(out.read_text()) if out and out.exists() else []
    kept = [row for row in kept if row["note"] != "absent"]  # it may be there now
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
    for name in [name for name in TABLES if name in only] or list(TABLES):
        for peer in peers:
            for seed in range(min(PEERS[peer].num_seeds, seeds)) if name == "noisy mixture" else (0,):
                case = {"table": name, "seed": seed, "peer": peer}
                if any(case.items() <= row.items() for row in kept):
                    continue
                progress(f"{peer} on {name}, seed {seed}")
                row = case | measure(peer, TABLES[name](seed), folder, limit) | {"load": os.getloadavg()[0]}
                kept.append(row)
                if out:
                    out.write_text(json.dumps(kept, indent=1) + "\n")
        rows = [row for peer in peers for row in kept if row["table"] == name and row["peer"] == peer]
        show(f"peers: {name}", summary(rows).to_dict("records"), _loads(rows))


def markdown(out: Path) -> str:
    """The rows that ``run`` kept as tables of a page."""
    parts = []
    rows = json.loads(out.read_text())
    for name in TABLES:
        here = [row for peer in PEERS for row in rows if row["table"] == name and row["peer"] == peer]
        if not here:
            continue
        frame = summary(here)
        head = [*frame.columns]
        lines = [[_text(column, value) for column, value in row.items()] for row in frame.to_dict("records")]
        body = "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *lines])
        parts.append(f"### {name}\n\n{body}\n\n{_loads(here)}")
    return "\n\n".join(parts)


def _text(column: str, value) -> str:
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return "–"
    digits = 3 if column in ("RMSE", "nlpd", "Brier") else 1 if column.endswith("[s]") else 0
    return f"{value:.{digits}f}"


def _loads(rows: list[dict]) -> str:
    loads = [row["load"] for row in rows]
    return f"The machine's load was {min(loads):.1f} to {max(loads):.1f}." if loads else ""


if __name__ == "__main__":
    click.echo(markdown(ROOT / "docs" / "peers.json"))
