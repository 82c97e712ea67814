"""``import``: what importing the package costs beside JAX and NumPyro, and what it leaves unloaded."""

from statistics import median

from benchmarks.timing import fresh, progress, show

LAZY = ("matplotlib", "arviz_base", "arviz_stats", "pandas", "xarray")
REPEATS = 5


def run():
    """Seconds of ``import`` inside a fresh process, the packages in turn, ``REPEATS`` times each."""
    seconds: dict[str, list[float]] = {"jax": [], "numpyro": [], "alps_ppl": []}
    for repeat in range(REPEATS):
        progress(f"imports in fresh processes, {repeat + 1} of {REPEATS}")
        for package, times in seconds.items():
            clock = "from time import perf_counter as now; start = now()"
            times.append(float(fresh("-c", f"{clock}; import {package}; print(now() - start)")))
    loaded = fresh("-c", f"import sys, alps_ppl; print(*sorted(set({LAZY}) & set(sys.modules)))").split()
    best = {package: min(times) for package, times in seconds.items()}
    rows = [
        {
            "import": package,
            "best [s]": best[package],
            "median [s]": median(times),
            "best / numpyro's": best[package] / best["numpyro"],
        }
        for package, times in seconds.items()
    ]
    show(
        f"import: {REPEATS} fresh processes each",
        rows,
        f"loaded by import alps_ppl, of {', '.join(LAZY)}: {', '.join(loaded) or 'none'}",
    )
