"""The same question of many tables: ``fit_many``, and what one worker does with some of them."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
from jaxtyping import Array
from tqdm.auto import tqdm

from alps_ppl import checks
from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.model.alps import ALPS
from alps_ppl.results.inclusion import inclusion_table, log_joint_r_hat
from alps_ppl.results.trees import tree_of
from alps_ppl.tables.data import Data
from alps_ppl.vb.fit import fit_vb

ENGINES = ("vb", "gibbs")
COLUMNS = ["table", "latent", "engine", "probability", "prior", "r_hat", "elbo", "times", "outputs", "seconds", "error"]
# So many tables are a worker's task at most, and so many tasks each worker gets at least.
MOST_OF_A_TASK, TASKS_OF_A_WORKER = 20, 4
ROWS = "rows.jsonl"
# A worker is one of many: it takes one core.
ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
ONE_CORE |= {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}

# What makes a table's data, model and settings of the sampler in the worker.
Make = Callable[[Any], tuple[Data, ALPS, dict[str, Any]]]


def fit_many(
    tables: Mapping[str, Data | pd.DataFrame],
    model: ALPS | Callable[[Data], ALPS],
    *,
    rng_key: Array,
    engine: str = "vb",
    executor: Executor | None = None,
    num_workers: int | None = None,
    folder: str | Path | None = None,
    progress_bar: bool = True,
    **settings: Any,
) -> pd.DataFrame:
    """Ask each of many tables which processes are behind it.

    Returns a row per table and process: table, latent, engine, ``probability`` and its prior, the gate's ``r_hat`` or
    the table's ``elbo``, how many times and outputs were fitted, seconds, and ``error``. A table that can't be fitted
    is one row with its error. Tables of one shape share their compiled programs, and so do those of nearly as many
    rows. The numbers don't depend on the executor.

    Parameters
    ----------
    tables
        By name: a ``Data``, or a DataFrame of outputs whose index are the times.
    model
        An ``ALPS`` for all of them, or a function of a ``Data``. Other processes have to be able to import that: it is
        a module's function, or ``functools.partial`` of one.
    rng_key
        A JAX key; each table has one of its own, by its name.
    engine
        "vb", which takes a tenth of a second for a table of few features, or "gibbs".
    executor
        Any of ``concurrent.futures``' kind, Dask's ``Client().get_executor()`` for one. None: new processes.
    num_workers
        How many new processes; None: one a core. 0: none, all is done here.
    folder
        Where the rows of finished tables are kept; a run that was killed goes on from there.
    progress_bar
        Whether to show one.
    settings
        Of ``fit_vb`` or ``fit_gibbs``.

    Raises a TypeError or ValueError for what is none of these.
    """
    checks.prng_key(rng_key)
    if not isinstance(tables, Mapping) or not tables:
        raise TypeError(f"tables: expected {{name: Data or DataFrame}} of at least one, got {checks.short(tables)}")
    if not isinstance(model, ALPS) and not callable(model):
        raise TypeError(f"model: expected an ALPS or a function of a Data, got {type(model).__name__}")
    items = [(str(name), table) for name, table in tables.items()]
    return run_many(
        items,
        partial(_of_table, model),
        rng_key=rng_key,
        engine=engine,
        executor=executor,
        num_workers=num_workers,
        folder=folder,
        progress_bar=progress_bar,
        settings=settings,
    )


def _of_table(model: ALPS | Callable[[Data], ALPS], table: Data | pd.DataFrame) -> tuple[Data, ALPS, dict[str, Any]]:
    data = table if isinstance(table, Data) else Data(table.index, table)
    return data, model if isinstance(model, ALPS) else model(data), {}


def run_many(
    items: list[tuple[str, Any]],
    make: Make,
    *,
    rng_key: Array,
    engine: str,
    settings: dict[str, Any],
    executor: Executor | None = None,
    num_workers: int | None = None,
    folder: str | Path | None = None,
    progress_bar: bool = True,
) -> pd.DataFrame:
    """``fit_many`` of what ``make`` makes data and models of; ``items`` have names."""
    names = [name for name, _ in items]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"tables: expected names that differ, got {checks.short(twice)} more than once")
    if engine not in ENGINES:
        raise ValueError(f"engine: expected one of {ENGINES}, got {engine!r}")
    if num_workers is not None:
        checks.whole_number("num_workers", num_workers, least=0)
    job = partial(
        fit_some,
        make,
        engine,
        settings,
        np.asarray(jax.random.key_data(rng_key)),
        bool(jax.config.read("jax_enable_x64")),
    )
    kept = None if folder is None else Kept(Path(folder), [engine, repr(sorted(settings.items())), str(rng_key)])
    rows = [] if kept is None else kept.read(names)
    done = {row["table"] for row in rows}
    left = [item for item in items if item[0] not in done]
    with tqdm(total=len(items), initial=len(done), desc=f"{engine} of tables", disable=not progress_bar) as bar:
        for found in _finished(job, left, executor, num_workers):
            rows += found
            if kept is not None:
                kept.write(found)
            bar.update(len({row["table"] for row in found}))
    place = {name: k for k, name in enumerate(names)}
    rows.sort(key=lambda row: place[row["table"]])
    return pd.DataFrame(rows, columns=COLUMNS)


def fit_some(
    make: Make, engine: str, settings: dict[str, Any], key_data: np.ndarray, x64: bool, items: list[tuple[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of some tables; a worker's task."""
    numpyro.enable_x64(x64)
    rng_key, rows = jax.random.wrap_key_data(jnp.asarray(key_data)), []
    for name, table in items:
        begin = time.perf_counter()
        try:
            data, model, of_table = make(table)
            own_key = jax.random.fold_in(rng_key, _number_of(name))
            whole = settings if engine == "vb" else of_table | settings
            rows += _rows(name, data, model, engine, own_key, whole, begin)
        except Exception as error:
            text = str(error) if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {error}"
            empty = dict.fromkeys(COLUMNS[3:9], np.nan)
            failed = {"table": name, "latent": "", "engine": engine, **empty}
            rows.append(failed | {"seconds": round(time.perf_counter() - begin, 3), "error": text.partition("\n")[0]})
    return rows


def _rows(
    name: str, data: Data, model: ALPS, engine: str, rng_key: Array, settings: dict[str, Any], begin: float
) -> list[dict[str, Any]]:
    if list(model.outputs) != data.outputs:
        raise ValueError(f"model: its outputs {checks.short(list(model.outputs))} aren't the table's")
    fit: Any = {"vb": fit_vb, "gibbs": fit_gibbs}[engine]
    found = fit(model, data.train_inputs, data.train_y, rng_key=rng_key, progress_bar=False, **settings)
    tree = tree_of(found)
    table = inclusion_table(tree)
    common = {"engine": engine, "elbo": getattr(found, "elbo", np.nan), "times": len(data.train_inputs)}
    common |= {"outputs": len(data.outputs), "seconds": round(time.perf_counter() - begin, 3), "error": ""}
    joint = log_joint_r_hat(tree) if engine == "gibbs" and found.num_chains > 1 else np.nan
    single = table[table.members == 1]
    return [
        {"table": name, "latent": row.latent, **common, "probability": row.probability, "prior": row.prior}
        | {"r_hat": max(row.r_hat, joint) if np.isfinite(joint) else row.r_hat}
        for row in single.itertuples()
    ]


def _number_of(name: str) -> int:
    """A number of 31 bits for a name, the same everywhere and at all times."""
    return crc32(name.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


def _finished(
    job: Callable, items: list[tuple[str, Any]], executor: Executor | None, num_workers: int | None
) -> Iterator[list[dict[str, Any]]]:
    """The rows of task after task, as they are finished."""
    workers = (num_workers if num_workers is not None else os.cpu_count()) or 0
    if not items:
        return
    if executor is None and workers == 0:
        for item in items:
            yield job([item])
        return
    size = max(1, min(MOST_OF_A_TASK, len(items) // (TASKS_OF_A_WORKER * max(1, workers))))
    tasks = [items[k : k + size] for k in range(0, len(items), size)]
    if executor is not None:
        yield from _submitted(executor, job, tasks)
        return
    with _environment(ONE_CORE), ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn")) as own:
        yield from _submitted(own, job, tasks)


def _submitted(executor: Executor, job: Callable, tasks: Iterable[list]) -> Iterator[list[dict[str, Any]]]:
    futures: list[Future] = [executor.submit(job, task) for task in tasks]
    try:
        # Dask's futures have a waiting of their own.
        done = as_completed(futures) if isinstance(futures[0], Future) else _dask_completed(futures)
        for future in done:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _dask_completed(futures: list[Any]) -> Iterator[Any]:
    from distributed import as_completed as dask_as_completed

    return iter(dask_as_completed(futures))


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for new processes, where they aren't set."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


class Kept:
    """The rows of finished tables in a file, a line for each table: a kill loses at most the line being written."""

    def __init__(self, folder: Path, identity: list[str]):
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.identity = folder / ROWS, json.dumps(identity)

    def read(self, names: list[str]) -> list[dict[str, Any]]:
        """The rows that are there of these tables; a ValueError where they are of another run."""
        if not self.path.exists():
            self.path.write_text(self.identity + "\n", encoding="utf-8")
            return []
        first, *lines = self.path.read_text(encoding="utf-8").split("\n")
        if first != self.identity:
            raise ValueError(
                f"folder: {self.path} has rows of another engine, seed or settings; give another folder or delete it"
            )
        known, rows = set(names), []
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:  # the one that was being written
                continue
            rows += [row for row in found if row["table"] in known]
        self.path.write_text("\n".join([first, *(line for line in lines if _is_whole(line)), ""]), encoding="utf-8")
        return rows

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Add finished tables' rows."""
        by_table: dict[str, list] = {}
        for row in rows:
            by_table.setdefault(row["table"], []).append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(of_table, default=float) + "\n" for of_table in by_table.values())


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
