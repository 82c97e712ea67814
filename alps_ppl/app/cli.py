"""``alps-ppl``: the group of commands, and those that read a run's folder."""

import io
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from alps_ppl.app.cores import share_cores
from alps_ppl.app.errors import BadInput
from alps_ppl.app.fitting import ENGINES, fit, run
from alps_ppl.app.refitting import backtest, calibrate, fit_many


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="alps-ppl")
@click.option(
    "--cache/--no-cache",
    default=True,
    show_default=True,
    help="Keep compiled programs in your cache folder for the next run, 500 MB at most.",
)
def cli(cache: bool):
    """Which of these processes are really behind my series? GP-ALPS by Gibbs sampling, SVI and coordinate ascent."""
    if cache:
        from alps_ppl.app.programs import keep_programs

        keep_programs()


for command in (run, fit, backtest, calibrate, fit_many):
    cli.add_command(command)


@cli.command(epilog="Example: alps-ppl predict results/square_wave --at times.csv --out forecast.csv")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--at", "times", type=click.Path(path_type=Path), help="A CSV file with a column of times.")
@click.option("--horizon", metavar="DURATION", help="Instead of --at: how far from the last fitted time on, e.g. 7d.")
@click.option("--wide", is_flag=True, help="A row per time, in the place of one per time and output.")
@click.option("--engine", type=click.Choice(ENGINES), help="Default: gibbs if DIR has it, else vb or svi.")
@click.option("--interval", type=float, default=0.9, show_default=True, help="The probability of lower to upper.")
@click.option("--out", type=click.Path(path_type=Path), help="The CSV file to write. Default: standard output.")
def predict(
    folder: Path, times: Path | None, horizon: str | None, engine: str | None, out: Path | None, **options: Any
):
    """Predict every output at new times from the results in DIR, without the data.

    The times are those of --at, or go on from the last fitted one up to --horizon. Those of --at are dates or numbers
    as in the data that were fitted, in a column of the same name or the only one.
    Written are mean, sd and the interval of each output, in the data's units.
    """
    import numpyro

    named = [engine] if engine else ["gibbs", "vb", "svi"]
    paths = [folder / f"posterior_{name}.nc" for name in named if (folder / f"posterior_{name}.nc").is_file()]
    if not paths:
        raise BadInput(f"DIR: expected results of alps-ppl run, with posterior_{named[0]}.nc, got {str(folder)!r}")
    if (times is None) == (horizon is None):
        raise BadInput("expected --at FILE or --horizon DURATION, and not both")
    try:
        from alps_ppl.tables.reading import read_cells

        table = None if times is None else read_cells(times)
    except (OSError, ValueError) as error:
        raise BadInput(f"--at: expected a CSV file with a column of times, got {str(times)!r}: {error}") from None
    if table is not None and len(table) == 0:
        raise BadInput(f"--at: expected at least one time, got {str(times)!r} without rows below its header")
    try:
        from alps_ppl.app.at_times import predict_table
        from alps_ppl.results.files import precision

        numpyro.enable_x64(precision(paths[0]) == 64)
        frame = predict_table(paths[0], table, horizon=horizon, **options)
    except (ValueError, TypeError) as error:
        raise BadInput(str(error)) from error
    try:
        frame.to_csv(out or sys.stdout, index=False)
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # who reads it has seen enough; click ends quietly
    except OSError as error:
        raise BadInput(f"--out: can't write {str(out)!r}: {error.strerror or error}") from None


@cli.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--open/--no-open", "show", default=False, help="Open the page in the browser.")
def report(folder: Path, show: bool):
    """Write DIR/report.html: what a run found, in words and figures, as one page that needs nothing else.

    DIR is a folder that alps-ppl run wrote with --out.
    """
    from alps_ppl.app.report import write

    path = write(folder)
    click.echo(path)
    if show:
        click.launch(str(path.resolve()))  # absolute: a browser takes a name with a dash for an option


def main() -> None:
    """The entry point: bad input ends with one plain line and status 2, an interrupt with one and 130."""
    for stream in (sys.stdout, sys.stderr):  # a file's name may be of bytes that aren't text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    share_cores()
    try:
        cli.main(prog_name="alps-ppl", standalone_mode=False, obj=shlex.join(["alps-ppl", *sys.argv[1:]]))
    except click.exceptions.NoArgsIsHelpError as error:  # alps-ppl alone, or a command of it
        click.echo(error.format_message())
    except click.ClickException as error:
        click.echo(f"alps-ppl: {' '.join(error.format_message().split())}", err=True)
        sys.exit(error.exit_code)
