"""The commands that fit many times, with ``fit``'s options: ``backtest``, ``calibrate`` and ``fit-many``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from alps_ppl.app.errors import BadInput, Interrupted
from alps_ppl.app.fitting import fit, origin, overrides, settled


@contextmanager
def _told(file: Path | None, kept: Path) -> Iterator[None]:
    """Bad input is one line; an interrupt says where the same command goes on. ``file``: the one that is read."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise BadInput(str(error).partition("\n")[0]) from error
    except OSError as error:
        why = error.strerror or error
        if file is None:
            raise BadInput(f"{error.filename or 'FILES'}: {why}") from None
        raise BadInput(f"FILE: expected a CSV or Parquet file, got {str(file)!r}: {why}") from None
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; the same command goes on from {kept}") from None


@click.command(
    epilog="Example: alps-ppl backtest weather.csv --time date --latent 'daily = linear_periodic(24h)' "
    "--latent 'slow = matern12(4d)' --horizon 2d --origins 8 --out results/weather"
)
@click.option("--horizon", required=True, metavar="DURATION", help="How far to forecast from each origin, e.g. 2d.")
@click.option("--origins", type=click.IntRange(min=1), default=8, show_default=True, help="How many.")
@click.option(
    "--others/--no-others",
    default=True,
    help="Also AutoARIMA and AutoETS, if statsforecast is installed.  [default: on]",
)
def backtest(outputs: str | None, **options: Any):
    """Forecast from several earlier ends of a file's series, and score that beside simple forecasts.

    The processes are fit's options, chosen from what is before the first origin. Each forecast ends where the next one
    begins, and the last with the file. Written to --out are backtest_scores.csv, backtest_cells.csv, backtest_gates.csv
    and figures; where --out has a run of fit, its page gets a section. A run that was killed goes on.
    """
    columns = settled(options, outputs)
    changed = overrides(options.pop("settings"))
    if changed["SVI"] or changed["VB"]:
        raise BadInput("--set: a backtest runs the Gibbs sampler; expected GIBBS.KEY=VALUE")
    import numpyro

    numpyro.enable_x64()
    from alps_ppl.app.backtest_run import run_backtest

    with _told(options["file"], options["out"] / "backtest"):
        run_backtest(outputs=columns, settings=changed, **options)


@click.command(
    "fit-many",
    epilog="Example: alps-ppl fit-many 'sensors/*.csv' --latent 'daily = linear_periodic(24h)' "
    "--latent 'slow = rbf(4d)' --out results/sensors",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--id", "id_column", metavar="COLUMN", help="Of one long file: whose rows are of one table.")
@click.option(
    "--engine",
    type=click.Choice(["vb", "gibbs"]),
    default="vb",
    show_default=True,
    help="vb takes a tenth of a second for a small table of cycles, trends and smooth processes; gibbs takes all.",
)
@click.option("--workers", "num_workers", type=click.IntRange(min=0), help="Processes; default one a core.")
def fit_many(files: tuple[Path, ...], outputs: str | None, settings: tuple[str, ...], **options: Any):
    """Fit many CSV or Parquet files, or one long one, each table by itself: which processes are in how many of them?

    The processes and what is said of the files are fit's options. A table that can't be fitted is a row with its error.
    Written to --out are inclusion.csv, a row per table and process, and report.html. A run that was killed goes on.
    """
    if options["noise"] == "student" and options["engine"] == "vb":
        raise BadInput("--noise student: vb doesn't take it; expected --engine gibbs")
    columns = settled(options, outputs)
    changed = overrides(settings)
    import numpyro

    numpyro.enable_x64()
    from alps_ppl.app.many_run import run_fit_many

    with _told(None, options["out"]):
        run_fit_many(files, outputs=columns, settings=changed, **options)


@click.command(
    epilog="Example: alps-ppl calibrate weather.csv --time date --latent 'daily = linear_periodic(24h)' "
    "--latent 'slow = rbf(4d)' --engine vb --out results/calibration"
)
@click.option(
    "--tables", "num_tables", type=click.IntRange(min=1), default=40, show_default=True, help="How many to simulate."
)
@click.option(
    "--truth",
    type=click.Choice(["table", "prior"]),
    default="table",
    show_default=True,
    help="Loadings and noise as a first fit finds them in the file; or all from the prior, a check of the engine.",
)
@click.option(
    "--engine",
    type=click.Choice(["gibbs", "vb"]),
    default="gibbs",
    show_default=True,
    help="gibbs takes as long as fit for every table; vb is quick, and takes cycles, trends and smooth processes.",
)
@click.option("--workers", "num_workers", type=click.IntRange(min=0), help="Processes; default one a core.")
def calibrate(outputs: str | None, **options: Any):
    """How far to believe a fit of this file: simulate tables like it, whose processes are known, and fit each.

    How often does a process come on that isn't there, how reliable is a .9, do the bands hold? The processes and what
    is said of the file are fit's options; cells held out, forecast or missing stay unseen in the simulated tables, too.
    Written to --out are calibration.csv, a row per process, calibration_tables.csv, calibration.nc for ArviZ, figures,
    and calibration.html. A run that was killed goes on.
    """
    if options["noise"] == "student" and options["engine"] == "vb":
        raise BadInput("--noise student: vb doesn't take it; expected --engine gibbs")
    columns = settled(options, outputs)
    changed = overrides(options.pop("settings"))
    import numpyro

    numpyro.enable_x64()
    from alps_ppl.app.calibrate_run import run_calibrate

    with _told(options["file"], options["out"]):
        run_calibrate(outputs=columns, settings=changed, origin=origin(), **options)


NOT_OF_A_BACKTEST = (
    "preview",
    "learn",
    "forecast",
    "hold_out",
    "save_model_file",
    "engine",
    "prune_below",
    "checkpoint_seconds",
)
backtest.params += [option for option in fit.params if option.name not in NOT_OF_A_BACKTEST]
NOT_OF_MANY = (*NOT_OF_A_BACKTEST, "file", "id", "target")
fit_many.params += [option for option in fit.params if option.name not in NOT_OF_MANY]
NOT_OF_A_CALIBRATION = set(NOT_OF_A_BACKTEST) - {"forecast", "hold_out"}
calibrate.params += [option for option in fit.params if option.name not in NOT_OF_A_CALIBRATION]
