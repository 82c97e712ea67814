"""The commands that fit once, their options and errors. What they do is in modules that are imported when one runs."""

import ast
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from alps_ppl.app.errors import BadInput, Interrupted

if TYPE_CHECKING:
    from alps_ppl.app.problem import Problem

ENGINES = ("svi", "vb", "gibbs")
Settings = dict[str, dict[str, Any]]


@click.command(
    epilog="Example: alps-ppl run models/square_wave.py --out results/square_wave --set SVI.num_steps=2000 "
    "--set GIBBS.num_samples=200"
)
@click.argument("model_file", type=click.Path(path_type=Path))
@click.option(
    "--engine",
    default="svi,gibbs",
    show_default=True,
    help="One or more of svi, vb and gibbs. fit takes gibbs alone where outputs have a memory of their own.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of everything random.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the results; made if missing.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="DICT.KEY=VALUE",
    help="Change one setting of the model file; DICT is SVI, VB or GIBBS. May be given several times.",
)
@click.option("--progress/--no-progress", default=True, help="Progress bars on stderr.")
@click.option(
    "--prune",
    "prune_below",
    type=click.FloatRange(0, 1),
    metavar="PROBABILITY",
    help="Also fit, into --out/pruned, a model without the latents below this probability, and say what was lost.",
)
@click.option("--fresh", is_flag=True, help="Start anew, whatever a killed run left in --out.")
@click.option(
    "--checkpoint-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How often a fit leaves its state in --out/checkpoints, from where the same command goes on if it is killed.",
)
def run(model_file: Path, **options: Any):
    """Fit a model file, print its inclusion table and write the results to --out.

    A model file defines data(), which returns an alps.Data; model(data), which returns an alps.ALPS;
    and the dicts SVI and GIBBS, the arguments of alps.fit_svi and alps.fit_gibbs. It may define baselines(data), and
    VB, a dict of alps.fit_vb's.
    """

    def load(settings: Settings) -> "tuple[Problem, list[str]]":
        from alps_ppl.app.model_file import load_model_file

        return load_model_file(model_file, settings), []

    _run(load, {}, **options)


@click.command(
    epilog="Example: alps-ppl fit weather.csv --time date --latent 'daily = linear_periodic(24h)' "
    "--latent 'slow = matern12(4d)' --latent 'rough = matern12(12h)' --decoys 2 --out results/weather"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--time", help="The column of times: numbers or dates.")
@click.option("--outputs", metavar="A,B,...", help="Columns to explain; left out, all columns of numbers.")
@click.option(
    "--latent",
    "latents",
    multiple=True,
    metavar="NAME = COVARIANCE",
    help="A process to look for, e.g. 'slow = matern12(4d)'; or auto, which proposes some. Give one or more.",
)
@click.option(
    "--learn",
    multiple=True,
    metavar="NAME.PARAMETER = LOW..HIGH",
    help="A parameter that SVI learns within bounds, e.g. 'daily.scale = 20h..28h' (a period is a scale, too).",
)
@click.option(
    "--decoys", "num_decoys", type=click.IntRange(min=0), default=0, help="Cycles nobody suspects, added as a check."
)
@click.option("--forecast", metavar="DURATION", help="How far ahead of the file's end to predict, e.g. 2d.")
@click.option("--hold-out", metavar="DURATION", help="How much of the file's end to hold out as a test: 2d, or 10%.")
@click.option("--expected-active", type=float, help="How many processes are on, a priori; default half of them.")
@click.option(
    "--noise",
    default="learnt",
    show_default=True,
    metavar="KIND",
    help="learnt; student: learnt with heavy tails, spikes weigh little; or a variance in squared training sds.",
)
@click.option(
    "--paper-model",
    is_flag=True,
    help="The paper's model: cycles have one phase in all outputs, and no output has a memory of its own.",
)
@click.option("--time-unit", help="The unit of times that are plain numbers: hours, days, years, ...")
@click.option(
    "--log",
    default="auto",
    show_default=True,
    metavar="A,B,...",
    help="Outputs to model by their logarithm; auto: those whose swings grow with their level; none.",
)
@click.option(
    "--drop-spikes/--keep-spikes",
    default=True,
    help="Whether cells that stand far out of their neighbours are taken for missing ones.  [default: drop-spikes, but "
    "with --noise student keep-spikes]",
)
@click.option("--id", metavar="COLUMN", help="Of a long table, a row per output and time: the outputs' names.")
@click.option("--target", metavar="COLUMN", help="Of a long table: the outputs' values.")
@click.option("--date-format", metavar="FORMAT", help="How dates are written, e.g. %d/%m/%Y; default: found.")
@click.option("--time-zone", metavar="ZONE", help="Whose wall clock counts where stamps have offsets: Europe/London.")
@click.option("--separator", help="Between columns; default: found from the header.")
@click.option("--decimal", help="The decimal sign; default: found from the cells.")
@click.option("--thousands", help="The sign that groups thousands, '' for none; default: found from the cells.")
@click.option("--encoding", help="The file's encoding; default: UTF-8.")
@click.option(
    "--preview",
    is_flag=True,
    help="A first answer: by vb alone where it takes the processes, in seconds, else by a short run of the sampler.",
)
@click.option("--save-model-file", type=click.Path(path_type=Path), help="Also write the model file that runs here.")
def fit(file: Path, outputs: str | None, preview: bool, save_model_file: Path | None, **options: Any):
    """Fit a CSV or Parquet file of series: write a model file for it, --out/model.py, and run that.

    Covariances are sums and products of linear_periodic(period), periodic(period, lengthscale=1), rbf(lengthscale),
    matern12, matern32, matern52, rational_quadratic(lengthscale, alpha=1), linear(), white() and constant(variance),
    with numbers as scale factors, or random_walk(), integrated_walk() and step(), a shift of level at a time to be
    found. Times are durations (30s, 10min, 24h, 4d, 2w, 1mo, 10y) or numbers in the file's own unit. A range, as in
    matern12(1h..4d), is a scale that isn't known, and "memory x 4 = ..." are four that can change places.

    A linear_periodic process has an amplitude and a phase in every output. Where noise is learnt, every output has a
    memory of its own, and --engine is gibbs unless something is to be learnt. --paper-model has neither.
    """
    running = {option.name: options.pop(option.name) for option in OPTIONS_OF_RUN}
    from_default, columns = _left_out(), settled(options, outputs)
    has_memory = options["noise"] in ("learnt", "student") and not options["paper_model"]
    if has_memory and "engine" in from_default and not options["learn"]:
        running["engine"] = "gibbs"
    if preview:
        if "engine" not in from_default:
            raise BadInput("--preview: it chooses the engine; leave one of the two out")
        if options["learn"]:
            raise BadInput("--preview: no parameter can be learnt in a preview; leave one of the two out")
    engine, out = running["engine"], running["out"]
    if options["learn"] and "svi" not in _engines(engine):
        raise BadInput(f"--learn: only SVI learns parameters; expected --engine svi,gibbs or svi, got {engine!r}")
    if save_model_file is not None and save_model_file.suffix != ".py":
        raise BadInput(f"--save-model-file: expected the name of a Python file (.py), got {str(save_model_file)!r}")
    elsewhere = {} if save_model_file is None else {"--save-model-file": save_model_file}

    def make(settings: Settings) -> "tuple[Problem, list[str]]":
        from alps_ppl.app.compose import compose

        name = (save_model_file or Path("model.py")).name
        try:
            return compose(file, name=name, outputs=columns, settings=settings, **options)
        except OSError as error:
            wanted = f"FILE: expected a CSV or Parquet file, got {str(file)!r}"
            raise BadInput(f"{wanted}: {error.strerror or error}") from None

    _run(make, elsewhere | {"--out": out / "model.py"}, preview=preview, **running)


OPTIONS_OF_RUN = [option for option in run.params if isinstance(option, click.Option)]
fit.params += OPTIONS_OF_RUN


def settled(options: dict[str, Any], outputs: str | None) -> list[str] | None:
    """The columns of ``--outputs``; and in ``options`` spikes are kept where Student's noise is there for them."""
    if options["noise"] == "student" and "drop_spikes" in _left_out():
        options["drop_spikes"] = False
    return None if outputs is None else [name.strip() for name in outputs.split(",")]


def _left_out() -> set[str]:
    """The options of this command that weren't given."""
    context = click.get_current_context()
    return {name for name in context.params if context.get_parameter_source(name) is ParameterSource.DEFAULT}


def _run(
    make: "Callable[[Settings], tuple[Problem, list[str]]]",
    model_files: dict[str, Path],
    *,
    engine: str,
    settings: tuple[str, ...],
    out: Path,
    preview: bool = False,
    **options: Any,
) -> None:
    """Make a problem and what to say of it, check it, and only then write: its ``model_files`` by option, and the run.

    ``options`` are those of ``run.run``.
    """
    engines, changed, about = _engines(engine), overrides(settings), origin()
    start = time.time()
    try:
        # 64-bit is the command line's choice, before any array is built.
        import numpyro

        numpyro.enable_x64()
        from alps_ppl.app.run import run

        try:
            problem, notes = make(changed)
            if preview:
                problem, quick, note = problem.preview(changed["GIBBS"])
                engines, notes = [quick], [*notes, note]
            problem.check(engines)
        except (ValueError, TypeError) as error:
            # Of an error in a covariance the first line; the others point at its place, under the text.
            raise BadInput(str(error).partition("\n")[0]) from error
        _prepare(out, problem, model_files)
        for note in notes:
            click.echo(note)
        run(problem, engines=engines, out=out, origin=about, **options)
    except KeyboardInterrupt:
        written = [path for path in sorted(out.rglob("*")) if path.is_file() and path.stat().st_mtime >= start]
        names = [str(path.relative_to(out)) for path in written if path.parent.name != "checkpoints"]
        on = "; the same command goes on from its checkpoints" if any((out / "checkpoints").glob("*.npz")) else ""
        raise Interrupted(f"interrupted; written to {out} so far: {', '.join(names) or 'nothing'}{on}") from None


def origin() -> dict[str, Any]:
    """The command as it was given, where there was one, and the name and date of the file that it is about."""
    context = click.get_current_context()
    path = context.params.get("file", context.params.get("model_file"))
    found: dict[str, Any] = {"command": context.obj} if isinstance(context.obj, str) else {}
    if path is not None and path.is_file():
        date = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        found["file"] = {"name": path.name, "date": f"{date:%Y-%m-%d %H:%M} UTC"}
    return found


def _prepare(out: Path, problem: "Problem", model_files: dict[str, Path]) -> None:
    from alps_ppl.app.model_file import write_model_file

    for option, path in model_files.items():  # nothing in --out where a copy elsewhere fails
        try:
            write_model_file(path, problem.source)
        except OSError as error:
            raise BadInput(f"{option}: can't write {str(path)!r}: {error.strerror or error}") from None
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out: can't make the folder {str(out)!r}: {error.strerror}") from None


def _engines(text: str) -> list[str]:
    engines = [name.strip() for name in text.split(",")]
    if not set(engines) <= set(ENGINES) or len(set(engines)) < len(engines):
        raise BadInput(f"--engine: expected one or more of svi, vb and gibbs with commas, e.g. svi,gibbs, got {text!r}")
    return engines


def overrides(settings: tuple[str, ...]) -> Settings:
    """What ``--set DICT.KEY=VALUE`` changes of SVI, VB and GIBBS."""
    changed: Settings = {"SVI": {}, "VB": {}, "GIBBS": {}}
    for setting in settings:
        target, equals, text = setting.partition("=")
        which, dot, key = target.strip().partition(".")
        if not (equals and dot and key and which in changed):
            raise BadInput(f"--set: expected SVI.KEY=VALUE, VB.KEY=VALUE or GIBBS.KEY=VALUE, got {setting!r}")
        try:
            value: Any = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            value = text.strip()
        changed[which][key] = value
    return changed
