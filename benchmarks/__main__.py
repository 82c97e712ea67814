"""The command line: the chosen groups one after another, in 64-bit and without a compilation cache."""

import os
from importlib import import_module
from pathlib import Path

import click

NAMES = ["svi", "likelihood", "gibbs", "vb", "many", "schur", "states", "weather", "large", "rows", "limit", "cold"]
GROUPS = {"import": "importing", **{name: name for name in NAMES}, "peers": "peers.run"}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("groups", nargs=-1, type=click.Choice(list(GROUPS)), metavar="[GROUP]...")
@click.option(
    "--slow",
    is_flag=True,
    help="Also, in the gibbs group, the paper's sampler densely, NumPyro's own kernels and a horseshoe: minutes.",
)
@click.option(
    "--install",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Make the peers' environments in DIR, from the package index, and do no more.",
)
@click.option(
    "--peers",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=".peers",
    show_default=True,
    metavar="DIR",
    help="Where the peers' environments are.",
)
@click.option("--only", multiple=True, metavar="NAME", help="A peer or a table of the peers group; may be repeated.")
@click.option(
    "--limit", type=click.FloatRange(min=1), default=600, show_default=True, help="Seconds of a peer's two fits."
)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="Data sets per peer, at most.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON that keeps the peers' rows; they aren't measured again.",
)
def main(
    groups: tuple[str, ...],
    slow: bool,
    install: Path | None,
    folder: Path,
    only: tuple[str, ...],
    limit: float,
    seeds: int,
    out: Path | None,
):
    """Time alps_ppl.

    GROUP is any of import, svi, likelihood, gibbs, vb, many, schur, states, weather, large, rows, limit, cold and
    peers. All but peers if left out; those are other packages on the same data, and take an hour or two.

    Tables go to stdout, what is being measured goes to stderr. Run nothing else meanwhile: a second busy
    process slows Cholesky factors several times over unless OPENBLAS_NUM_THREADS=1.
    """
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    import numpyro

    numpyro.enable_x64()
    if install:
        for name, word in import_module("benchmarks.peers.environments").install(install).items():
            click.echo(f"{name}: {word}")
        return
    for name in groups or [name for name in GROUPS if name != "peers"]:
        module = import_module(f"benchmarks.{GROUPS[name]}")
        if name == "gibbs":
            module.run(slow)
        elif name == "peers":
            module.run(folder, limit, only, seeds, out)
        else:
            module.run()


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
