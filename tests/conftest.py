"""64-bit for all tests (float32 has tests of its own), one BLAS thread, one compilation cache."""

import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import numpyro
import problems
import pytest
from problems import periodic  # noqa: F401
from runs import FINISHED, MODEL_FILE, command

import alps_ppl as alps

numpyro.enable_x64()

# Small sizes compile more than they compute: code that isn't optimised is there in less than half the time.
UNOPTIMISED = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
if jax.__version_info__ < (0, 11):  # 0.12 doesn't know the flag, and XLA stops at what it doesn't know
    UNOPTIMISED["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()


def pytest_configure():
    """The tests, and the processes that they start, run unoptimised code."""
    jax.config.update("jax_disable_most_optimizations", True)
    os.environ.update(UNOPTIMISED)


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """A module's compiled programs are dropped at its end.

    Each holds memory maps, of which Linux gives a process 65,530: a worker that had compiled for an hour ended there,
    in a segmentation fault.
    """
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def optimised():
    """The module's tests run for longer than they compile."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def oracle():
    return problems.oracle


@pytest.fixture(scope="session")
def exact_model():
    """The two-latent model of ``oracle_alps_exact.json``."""
    return problems.exact_model()


@pytest.fixture(scope="session")
def key():
    return jax.random.key(20261128)


@pytest.fixture(scope="session")
def rough_model():
    """Three full-rank latents of low condition number, two outputs, no jitter: exact in weight space."""
    return problems.rough_model()


@pytest.fixture
def rough_data():
    """Nine uneven times; scattered missing cells and one row of them."""
    return problems.rough_data()


@pytest.fixture
def call():
    """``call(*arguments)`` of ``alps-ppl`` -> (status, stdout, stderr)."""
    return command


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """A whole ``alps-ppl run`` of both engines (its folder, what it printed), with a learnt period and baselines."""
    folder = tmp_path_factory.mktemp("finished")
    out = folder / "out"
    (out / "pruned").mkdir(parents=True)
    (out / "report.html").write_text("of an earlier run")
    (folder / "seven.py").write_text(MODEL_FILE)
    status, printed, error = command("run", folder / "seven.py", "--out", out, *FINISHED)
    assert status == 0, error
    return out, printed


@pytest.fixture(scope="session")
def fits():
    """Both engines' fits of ``problems.twins``, by engine."""
    model, t, y, _ = problems.twins()
    svi = alps.fit_svi(model, t, y, num_inducing=10, num_steps=1000, rng_key=jax.random.key(1), progress_bar=False)
    lengths = {"num_warmup": 200, "num_samples": 500, "num_chains": 4}
    return {"svi": svi, "gibbs": alps.fit_gibbs(model, t, y, rng_key=jax.random.key(0), progress_bar=False, **lengths)}


@pytest.fixture(scope="session")
def trees(fits):
    """The trees of ``fits``."""
    return {engine: alps.to_datatree(fit) for engine, fit in fits.items()}


@pytest.fixture(params=["svi", "gibbs"])
def either_fit(request, fits):
    """Each of ``fits``."""
    return fits[request.param]
