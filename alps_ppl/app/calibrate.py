"""``calibrate``: tables simulated in the shape of one, each fitted, and how often the fits are right."""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import numpy as np
import pandas as pd
from jaxtyping import Array

from alps_ppl import checks
from alps_ppl.app.cores import num_cores
from alps_ppl.app.kept_rows import ROWS
from alps_ppl.app.many import FITS, MOST_OF_A_TASK, check_many, run_many
from alps_ppl.app.run import fingerprint, versions
from alps_ppl.app.simulated import Shape, found_rows, simulate
from alps_ppl.checkpoints import replacing
from alps_ppl.model.alps import ALPS
from alps_ppl.results.calibration import Calibration
from alps_ppl.tables.data import Data

TRUTHS = ("table", "prior")
FIRST = "first_fit.npz"
# So many are fitted first, and say how long the others take.
TIMED = 2
COLUMNS = ("table", "on", "probability", "r_hat", "covered", "unseen", "pit", "seconds", "error")


def calibrate(
    table: Data | pd.DataFrame,
    model: ALPS | Callable[[Data], ALPS],
    *,
    rng_key: Array,
    num_tables: int = 40,
    truth: str = "table",
    engine: str = "gibbs",
    executor: Executor | None = None,
    num_workers: int | None = None,
    folder: str | Path | None = None,
    progress_bar: bool = True,
    tell: Callable[[str], None] | None = None,
    **settings: Any,
) -> Calibration:
    """Simulate tables of this one's times and missing cells, of which the truth is known, and fit each.

    Returns a ``Calibration``: ``rates``, how often each process comes on in tables without it and with it; ``gates``
    and ``gate_prob``; ``tables`` with the coverage of 90 % bands; ``pit``, the ranks of the truth; and all of it as an
    ArviZ ``tree``.

    Parameters
    ----------
    table
        A ``Data``, or a DataFrame of outputs whose index are the times.
    model
        An ``ALPS``, or a function that makes one of the ``Data``.
    rng_key
        A JAX key.
    num_tables
        How many are simulated.
    truth
        "table": loadings, noise, memories and scales are draws of a first fit of the table; gates, latents and noise
        are drawn anew from the prior, and each table is centred and scaled as this one is. That is how often one is
        right on tables like this. "prior": all is drawn from the prior. A right sampler is then calibrated whatever
        the table, and the ranks are uniform: a check of the engine.
    engine
        "gibbs", or "vb", which is quick and takes no rough processes.
    executor, num_workers, folder, progress_bar
        As in ``fit_many``. In ``folder`` the first fit and each finished table are kept, from where a run that was
        killed goes on.
    tell
        Gets a line that says about how long it takes, after two tables.
    settings
        Of ``fit_gibbs`` or ``fit_vb``.

    Raises a TypeError or ValueError for what is none of these, and a ValueError where no table could be fitted.
    """
    checks.prng_key(rng_key)
    checks.whole_number("num_tables", num_tables)
    if truth not in TRUTHS:
        raise ValueError(f"truth: expected one of {TRUTHS}, got {truth!r}")
    checks.instance("table", table, Data | pd.DataFrame, "a Data or a DataFrame")
    data = table if isinstance(table, Data) else Data(table.index, table)
    built = model if isinstance(model, ALPS) or not callable(model) else model(data)
    checks.instance("model", built, ALPS, "an ALPS, or a function that makes one of a Data")
    if list(built.outputs) != data.outputs:
        raise ValueError(f"model: expected the table's outputs {data.outputs}, got {list(built.outputs)}")
    if len(data.train_inputs) < 2:
        raise ValueError("table: expected at least two times with a cell; no process shows in one")
    free = np.flatnonzero(~built.certain[built.first])
    if not len(free):
        raise ValueError("model: expected a process that may be on or off, got inclusion_prob of 0 and 1 only")
    check_many(engine, settings, executor, num_workers)
    path = None if folder is None else Path(folder)
    keys = jax.random.split(rng_key, 3)
    shape = Shape(built, data.inputs, data.train, truth == "prior")
    near: dict[str, np.ndarray] = {}
    if truth == "table":
        near = _first_fit(data, built, keys[0], num_tables, engine, path, progress_bar, settings)
    items = [(f"table {k + 1}", one) for k, one in enumerate(simulate(shape, near, keys[1], num_tables))]
    ask = partial(
        run_many,
        answer=partial(found_rows, shape),
        rng_key=keys[2],
        engine=engine,
        settings=settings,
        columns=COLUMNS,
        most_of_a_task=1 if engine == "gibbs" else MOST_OF_A_TASK,
        executor=executor,
        folder=path,
        question=fingerprint(built, data.inputs, data.train, settings | {"truth": truth}, keys[2], versions()),
        content=lambda one: one["y"].tobytes() + one["b"].tobytes(),
    )
    timed = []
    if path is None or not (path / ROWS).exists():
        # By one process, where there are some: it compiles for the first, and the second has the time that each needs.
        timed = [ask(items[:TIMED], progress_bar=False, num_workers=0 if num_workers == 0 else 1)]
        if tell is not None and num_tables > TIMED and executor is None:
            tell(_estimate(timed[0].seconds.tolist(), num_tables - TIMED, num_workers))
    # In a folder those are found again.
    parts, left = (timed, items[TIMED:]) if path is None else ([], items)
    if left:
        parts.append(ask(left, progress_bar=progress_bar, num_workers=num_workers))
    return _result(pd.concat(parts, ignore_index=True), built, free, truth)


def _first_fit(
    data: Data,
    model: ALPS,
    rng_key: Array,
    num: int,
    engine: str,
    folder: Path | None,
    progress_bar: bool,
    settings: dict[str, Any],
) -> dict[str, np.ndarray]:
    """Draws of what a table is like, evenly spread over those of a fit: (table, ...) by site."""
    kept = None if folder is None else folder / FIRST
    identity = fingerprint(model, data.train_inputs, data.train_y, settings | {"num": num}, rng_key, versions())
    if kept is not None and (found := _kept(kept, f"{engine} {identity}")) is not None:
        return found
    fit = FITS[engine](model, data.train_inputs, data.train_y, rng_key=rng_key, progress_bar=progress_bar, **settings)
    sites = fit.thin(num)
    names = [name for name in ("H", "noise_variance", "memory", *model.scale_sites) if name in sites]
    chosen = np.arange(num) % len(sites["H"])
    near = {name: np.asarray(sites[name])[chosen] for name in names}
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as temporary, temporary.open("wb") as file:
            np.savez(file, identity=f"{engine} {identity}", **near)  # type: ignore[arg-type]
    return near


def _kept(path: Path, identity: str) -> dict[str, np.ndarray] | None:
    """What an earlier run left of the first fit, if it was the same run."""
    try:
        with np.load(path) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError, BadZipFile):
        return None
    return found if str(found.pop("identity", "")) == identity else None


def _estimate(seconds: list[float], left: int, num_workers: int | None) -> str:
    """A line that says about how long ``left`` more tables take, by the first one's seconds and the next one's."""
    workers = max(1, min(left, num_cores() if num_workers is None else num_workers))
    each = seconds[-1]
    compilation = max(0.0, seconds[0] - each) if num_workers != 0 else 0.0  # each process does that
    more = compilation + each * -(-left // workers)
    unit, of = ("s", 1) if more < 100 else ("min", 60) if more < 100 * 60 else ("h", 3600)
    by = f", {workers} at a time" if workers > 1 else ""
    return (
        f"{TIMED} tables took {seconds[0]:.0f} s and {each:.0f} s: {left} more take about {more / of:.0f} {unit}{by}."
    )


def _result(found: pd.DataFrame, model: ALPS, free: np.ndarray, truth: str) -> Calibration:
    right = found[found.error == ""]
    if right.empty:
        raise ValueError(f"table: no simulated one could be fitted, the first for this: {found.error.iloc[0]}")
    gates, prob = (np.array(right[name].tolist())[:, free] for name in ("on", "probability"))
    pit = {name: np.array([ranks[name] for ranks in right.pit]) for name in right.pit.iloc[0]}
    names = [model.gate_names[k] for k in free]
    tables = found[["table", "covered", "unseen", "r_hat", "seconds", "error"]]
    return Calibration(pit, gates.astype(bool), prob, names, tables, truth)
