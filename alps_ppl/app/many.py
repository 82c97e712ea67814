"""The same question of many tables: ``fit_many``, and what one worker does with some of them."""

import inspect
import json
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
from jaxtyping import Array
from tqdm.auto import tqdm

from alps_ppl import checks
from alps_ppl.app.cores import a_core_each, num_cores
from alps_ppl.app.kept_rows import KeptRows
from alps_ppl.app.problem import GIBBS_DEFAULTS, VB_DEFAULTS
from alps_ppl.gibbs.chains import check_settings as check_gibbs
from alps_ppl.gibbs.chains import fit_gibbs
from alps_ppl.model.alps import ALPS
from alps_ppl.model.as_json import describe
from alps_ppl.model.covariances import linear_periodic
from alps_ppl.results.inclusion import inclusion_table, log_joint_r_hat
from alps_ppl.results.trees import tree_of
from alps_ppl.tables.data import Data
from alps_ppl.vb.fit import check_settings as check_vb
from alps_ppl.vb.fit import fit_vb

ENGINES = ("vb", "gibbs")
FITS: dict[str, Callable[..., Any]] = {"vb": fit_vb, "gibbs": fit_gibbs}
DEFAULTS = {"vb": VB_DEFAULTS, "gibbs": GIBBS_DEFAULTS}
COLUMNS = ["table", "latent", "engine", "probability", "prior", "r_hat", "elbo", "times", "outputs", "seconds", "notes"]
COLUMNS += ["error"]
# So many tables are a worker's task at most, and so many tasks each worker gets at least.
MOST_OF_A_TASK, TASKS_OF_A_WORKER = 20, 4
# How often a worker looks whether its parent is there.
SECONDS_BETWEEN_LOOKS = 5.0


class Made(NamedTuple):
    """What a worker makes of a table: with the ``settings`` of the sampler, and what is to be said of the table."""

    data: Data
    model: ALPS
    settings: dict[str, Any] = {}  # noqa: RUF012
    notes: Sequence[str] = ()


Make = Callable[[Any], Made]
# (name, table, engine, rng_key, settings) to the rows of a table.
Answer = Callable[[str, Any, str, Array, dict[str, Any]], list[dict[str, Any]]]


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
    the table's ``elbo``, how many times and outputs were fitted, seconds, ``notes`` on how a file was read, and
    ``error``. A table that can't be fitted is one row with its error. Tables of one shape share their compiled
    programs, and so do those of nearly as many rows. The numbers don't depend on the executor.

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
        Where the rows of finished tables are kept; a run that was killed goes on from there. Rows of another model,
        other settings or a table that has changed don't count, and what failed is tried again.
    progress_bar
        Whether to show one.
    settings
        Of ``fit_vb`` or ``fit_gibbs``.

    Raises a TypeError or ValueError for what is none of these.
    """
    checks.prng_key(rng_key)
    if not isinstance(tables, Mapping) or not tables:
        raise TypeError(f"tables: expected {{name: Data or DataFrame}} of at least one, got {checks.short(tables)}")
    for name, table in tables.items():
        checks.instance(f"tables[{name!r}]", table, Data | pd.DataFrame, "a Data or a DataFrame")
    if not isinstance(model, ALPS) and not callable(model):
        raise TypeError(f"model: expected an ALPS or a function of a Data, got {type(model).__name__}")
    return run_many(
        [(str(name), table) for name, table in tables.items()],
        partial(inclusion_rows, partial(_of_table, model)),
        rng_key=rng_key,
        engine=engine,
        executor=executor,
        num_workers=num_workers,
        folder=folder,
        progress_bar=progress_bar,
        settings=settings,
        question=_question(model),
        content=_content,
    )


def _question(model: ALPS | Callable[[Data], ALPS]) -> str:
    """What a model is, as text: another one's rows are no answer to it."""
    if isinstance(model, ALPS):
        return json.dumps(describe(model), sort_keys=True)
    function = model.func if isinstance(model, partial) else model
    more = repr((model.args, model.keywords)) if isinstance(model, partial) else ""
    try:
        return inspect.getsource(function) + more
    except (OSError, TypeError):
        return repr(getattr(function, "__qualname__", function)) + more


def _content(table: Data | pd.DataFrame) -> bytes:
    """What a table holds."""
    if isinstance(table, pd.DataFrame):
        return repr(list(table.columns)).encode() + pd.util.hash_pandas_object(table).to_numpy().tobytes()
    parts = table.inputs, table.y, table.split.astype(str)
    return repr(table.outputs).encode() + b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


def _of_table(model: ALPS | Callable[[Data], ALPS], table: Data | pd.DataFrame) -> Made:
    data = table if isinstance(table, Data) else Data(table.index, table)
    found = model if isinstance(model, ALPS) else model(data)
    checks.instance("model", found, ALPS, "a function that returns an ALPS")
    return Made(data, found)


def run_many(
    items: list[tuple[str, Any]],
    answer: Answer,
    *,
    rng_key: Array,
    engine: str,
    settings: dict[str, Any],
    columns: Sequence[str] = COLUMNS,
    most_of_a_task: int = MOST_OF_A_TASK,
    executor: Executor | None = None,
    num_workers: int | None = None,
    folder: str | Path | None = None,
    progress_bar: bool = True,
    question: str = "",
    content: Callable[[Any], bytes] = lambda table: b"",
) -> pd.DataFrame:
    """``fit_many`` of named ``items``: the rows that ``answer`` makes of each, with these ``columns``.

    Rows have "table", "seconds" and "error" at least, and JSON can hold them. In ``folder`` only those rows count that
    are of the same ``question`` and of a table of the same ``content``.
    """
    names = [name for name, _ in items]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"tables: expected names that differ, got {checks.short(twice)} more than once")
    check_many(engine, settings, executor, num_workers)
    seed = np.asarray(jax.random.key_data(rng_key))
    job = partial(fit_some, answer, engine, settings, seed, bool(jax.config.read("jax_enable_x64")))
    rows: list[dict[str, Any]] = []
    kept = None
    if folder is not None:
        asked = sha256(repr([engine, sorted(settings.items()), seed.tolist(), question]).encode()).digest()
        digests = {name: sha256(asked + content(table)).hexdigest()[:16] for name, table in items}
        kept = KeptRows(Path(folder), digests)
        rows = kept.read()
    done = {row["table"] for row in rows}
    left = [item for item in items if item[0] not in done]
    with tqdm(total=len(items), initial=len(done), desc=f"{engine} of tables", disable=not progress_bar) as bar:
        for found in _finished(job, left, executor, num_workers, most_of_a_task):
            rows += found
            if kept is not None:
                kept.write(found)
            bar.update(len({row["table"] for row in found}))
    place = {name: k for k, name in enumerate(names)}
    rows.sort(key=lambda row: place[row["table"]])
    return pd.DataFrame(rows, columns=list(columns))


def check_many(engine: str, settings: dict[str, Any], executor: Executor | None, num_workers: int | None) -> None:
    """A TypeError or ValueError for what ``run_many`` can't do with any table."""
    if engine not in ENGINES:
        raise ValueError(f"engine: expected one of {ENGINES}, got {engine!r}")
    if unknown := sorted(set(settings) - set(DEFAULTS[engine])):
        known = ", ".join(sorted(DEFAULTS[engine]))
        raise ValueError(f"{engine}: unknown setting(s) {', '.join(unknown)}; known are {known}")
    trivial = ALPS({"any": linear_periodic(1.0)}, noise_variance=1.0)
    (check_vb if engine == "vb" else check_gibbs)(trivial, **settings)
    if num_workers is not None:
        checks.whole_number("num_workers", num_workers, least=0)
    if executor is not None and not hasattr(executor, "submit"):
        raise TypeError(f"executor: expected one of concurrent.futures' kind, got {type(executor).__name__}")


def fit_some(
    answer: Answer, engine: str, settings: dict[str, Any], key_data: np.ndarray, x64: bool, items: list[tuple[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of some tables; a worker's task."""
    numpyro.enable_x64(x64)
    rng_key, rows = jax.random.wrap_key_data(jnp.asarray(key_data)), []
    for name, table in items:
        begin = time.perf_counter()
        try:
            rows += answer(name, table, engine, jax.random.fold_in(rng_key, _number_of(name)), settings)
        except Exception as error:
            text = str(error) if isinstance(error, (TypeError, ValueError)) else f"{type(error).__name__}: {error}"
            empty = dict.fromkeys(COLUMNS[3:9], np.nan)
            failed = {"table": name, "latent": "", "engine": engine, **empty}
            failed |= {"seconds": round(time.perf_counter() - begin, 3), "notes": ""}
            rows.append(failed | {"error": text.partition("\n")[0]})
    return rows


def inclusion_rows(
    make: Make, name: str, table: Any, engine: str, rng_key: Array, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """A row per process of what ``make`` makes data and a model of."""
    begin = time.perf_counter()
    data, model, of_sampler, notes = make(table)
    settings = settings if engine == "vb" else of_sampler | settings
    if list(model.outputs) != data.outputs:
        raise ValueError(f"model: its outputs {checks.short(list(model.outputs))} aren't the table's")
    if len(data.train_inputs) < 2:
        raise ValueError("y: expected at least two times with a cell; no process shows in one")
    found: Any = FITS[engine](model, data.train_inputs, data.train_y, rng_key=rng_key, progress_bar=False, **settings)
    tree = tree_of(found)
    table = inclusion_table(tree)
    common = {"engine": engine, "elbo": getattr(found, "elbo", np.nan), "times": len(data.train_inputs)}
    common |= {"outputs": len(data.outputs), "seconds": round(time.perf_counter() - begin, 3)}
    common |= {"notes": " ".join(notes), "error": ""}
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
    job: Callable, items: list[tuple[str, Any]], executor: Executor | None, num_workers: int | None, most: int
) -> Iterator[list[dict[str, Any]]]:
    """The rows of task after task, as they are finished."""
    workers = num_workers if num_workers is not None else num_cores()
    if not items:
        return
    if executor is None and workers == 0:
        for item in items:
            yield job([item])
        return
    size = max(1, min(most, len(items) // (TASKS_OF_A_WORKER * max(1, workers))))
    tasks = [items[k : k + size] for k in range(0, len(items), size)]
    if executor is not None:
        yield from _submitted(executor, job, tasks)
        return
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"model: expected a module's function, which other processes can import, or num_workers=0; {error}"
        ) from None
    number = min(workers, len(tasks))
    with a_core_each(), ProcessPoolExecutor(number, get_context("spawn"), _end_with, (os.getpid(),)) as own:
        try:
            yield from _submitted(own, job, tasks)
        except BrokenProcessPool:
            raise ValueError(
                "a worker process ended, for want of memory perhaps; fewer workers need less, and with a folder the "
                "same call goes on from the finished tables"
            ) from None


def _end_with(parent: int) -> None:
    """A worker whose parent was killed ends, too."""

    def watch():
        while os.getppid() == parent:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    Thread(target=watch, daemon=True).start()


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
