"""``alps-ppl run MODEL_FILE`` and ``alps-ppl report DIR``: thin, no numerics of its own."""

import ast
import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import click

ENGINES = ("svi", "gibbs")


class BadInput(click.ClickException):
    """What the user can mend; one line on stderr, exit status 2."""

    exit_code = 2


class Interrupted(click.ClickException):
    """Ctrl-C, with what was written before it; exit status 130."""

    exit_code = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="alps-ppl")
def cli():
    """Which of these processes are really behind my series? GP-ALPS by SVI and by Gibbs sampling."""


@cli.command(
    epilog="Example: alps-ppl run models/square_wave.py --out results/square_wave --set SVI.num_steps=2000 "
    "--set GIBBS.num_samples=200"
)
@click.argument("model_file", type=click.Path(path_type=Path))
@click.option(
    "--engine", default="svi,gibbs", show_default=True, help="svi, gibbs or both; the report keeps their order."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the results; made if missing.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="DICT.KEY=VALUE",
    help="Change one setting of the model file; DICT is SVI or GIBBS. May be given several times.",
)
@click.option("--progress/--no-progress", default=True, help="Progress bars on stderr.")
def run(model_file: Path, engine: str, seed: int, out: Path, settings: tuple[str, ...], progress: bool):
    """Fit a model file, print its inclusion table and write the results to --out.

    A model file defines data(), which returns an alps.Data; model(data), which returns an alps.ALPS;
    and the dicts SVI and GIBBS, the arguments of alps.fit_svi, and of alps.ALPSGibbs and numpyro's MCMC.
    It may define baselines(data).
    """
    engines = _engines(engine)
    if not model_file.is_file():
        raise BadInput(f"MODEL_FILE: expected a Python file, got {str(model_file)!r}, which isn't one")
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out: can't make the folder {str(out)!r}: {error.strerror}") from None

    start = time.time()
    try:
        # 64-bit is the command line's choice, before the model file builds any array.
        import numpyro

        numpyro.enable_x64()
        from alps_ppl import runner

        module = load_model_file(model_file)
        override(module, settings)
        runner.run(module, engines=engines, seed=seed, out=out, progress=progress)
    except KeyboardInterrupt:
        written = [path for path in sorted(out.rglob("*")) if path.is_file() and path.stat().st_mtime >= start]
        names = ", ".join(str(path.relative_to(out)) for path in written) or "nothing"
        raise Interrupted(f"interrupted; written to {out} so far: {names}") from None


@cli.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--open/--no-open", "show", default=False, help="Open the page in the browser.")
def report(folder: Path, show: bool):
    """Write DIR/report.html: what a run found, in words and figures, as one page that needs nothing else.

    DIR is a folder that alps-ppl run wrote with --out.
    """
    from alps_ppl.report import write

    path = write(folder)
    click.echo(path)
    if show:
        click.launch(str(path))


def _engines(text: str) -> list[str]:
    engines = [name.strip() for name in text.split(",")]
    if not set(engines) <= set(ENGINES) or len(set(engines)) < len(engines):
        raise BadInput(f"--engine: expected svi, gibbs or svi,gibbs, got {text!r}")
    return engines


def load_model_file(path: Path) -> ModuleType:
    """The model file as a module. Raises BadInput if it can't be loaded or lacks a name."""
    # A name of its own: a model file called numpy.py must not replace NumPy.
    name = f"_alps_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"MODEL_FILE: expected a Python file (.py), got {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise BadInput(f"{path}: can't be loaded: {type(error).__name__}: {error}") from error
    kinds = {"data": "a function", "model": "a function", "SVI": "a dict", "GIBBS": "a dict"}
    for name, kind in kinds.items():
        value = getattr(module, name, None)
        if not (callable(value) if kind == "a function" else isinstance(value, dict)):
            raise BadInput(f"{path}: expected it to define {name}, {kind}; a model file has data, model, SVI and GIBBS")
    return module


def override(module: ModuleType, settings: tuple[str, ...]) -> None:
    """Apply ``--set DICT.KEY=VALUE`` to the module's SVI and GIBBS."""
    for setting in settings:
        target, equals, text = setting.partition("=")
        which, dot, key = target.strip().partition(".")
        if not (equals and dot and key and which in ("SVI", "GIBBS")):
            raise BadInput(f"--set: expected SVI.KEY=VALUE or GIBBS.KEY=VALUE, got {setting!r}")
        try:
            value: Any = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            value = text.strip()
        getattr(module, which)[key] = value


def main() -> None:
    """The entry point: bad input ends with one plain line and status 2, an interrupt with one and 130."""
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"alps-ppl: {' '.join(error.format_message().split())}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
