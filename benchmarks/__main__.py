"""The command line: the chosen groups one after another, in 64-bit and without a compilation cache."""

import os
from importlib import import_module

import click

GROUPS = {
    "import": "importing",
    **{
        name: name for name in ("svi", "likelihood", "gibbs", "vb", "many", "schur", "weather", "large", "rows", "cold")
    },
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("groups", nargs=-1, type=click.Choice(list(GROUPS)), metavar="[GROUP]...")
@click.option(
    "--slow",
    is_flag=True,
    help="Also, in the gibbs group, the paper's sampler densely, NumPyro's own kernels and a horseshoe: minutes.",
)
def main(groups: tuple[str, ...], slow: bool):
    """Time alps_ppl. GROUP is any of import, svi, likelihood, gibbs, vb, many, schur, weather, large, rows and cold;
    all if left out.

    Tables go to stdout, what is being measured goes to stderr. Run nothing else meanwhile: a second busy
    process slows Cholesky factors several times over unless OPENBLAS_NUM_THREADS=1.
    """
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    import numpyro

    numpyro.enable_x64()
    for name in groups or GROUPS:
        module = import_module(f"benchmarks.{GROUPS[name]}")
        if name == "gibbs":
            module.run(slow)
        else:
            module.run()


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
