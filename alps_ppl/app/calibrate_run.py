"""What ``alps-ppl calibrate`` does: compose the model of a file, calibrate it, write and print."""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import jax
import pandas as pd

from alps_ppl.app.calibrate import FIRST, calibrate
from alps_ppl.app.compose import compose
from alps_ppl.app.kept_rows import ROWS
from alps_ppl.app.report import templates
from alps_ppl.results.calibration import Calibration, bins_of, coverage_of, rates_of
from alps_ppl.results.inclusion import LARGEST_GATE_R_HAT, ON

WORKING = "calibration"
SHOWN = f"{ON:g}".lstrip("0")
# What simulated tables are, by their truth.
LIKE = {"table": "like yours", "prior": "of the prior"}
# Tables that failed and are named.
MOST_NAMED = 20
ENGINES = {"vb": "coordinate ascent (VB), an approximation", "gibbs": "the Gibbs sampler"}


def run_calibrate(
    file: Path,
    *,
    out: Path,
    num_tables: int,
    truth: str,
    engine: str,
    num_workers: int | None,
    seed: int,
    progress: bool,
    fresh: bool,
    settings: dict[str, dict[str, Any]],
    origin: Mapping[str, Any],
    **options: Any,
) -> None:
    """Calibrate a file's fit; ``options`` are ``compose``'s. Raises what that and ``calibrate`` do, before any fit."""
    if unused := [name for name in settings if settings[name] and name != engine.upper()]:
        raise ValueError(
            f"set: expected settings of {engine.upper()}, the engine here, got some of {', '.join(unused)}"
        )
    problem, notes = compose(file, settings=settings, **options)
    problem.check([engine])
    folder = out / WORKING
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out: can't make the folder {str(out)!r}: {error.strerror}") from None
    if fresh:
        _forget(folder)
    for note in notes:
        click.echo(note)
    like = "as a first fit finds it" if truth == "table" else "as the prior has it"
    click.echo(f"{file.name}: {num_tables} simulated tables of its times and cells, {like}, by {engine}")
    found = calibrate(
        problem.data,
        problem.model,
        rng_key=jax.random.key(seed),
        num_tables=num_tables,
        truth=truth,
        engine=engine,
        num_workers=num_workers,
        folder=folder,
        progress_bar=progress,
        tell=click.echo,
        **problem.settings(engine),
    )
    rates_of(found).to_csv(out / "calibration.csv", index=False)
    pd.DataFrame(found.tables).to_csv(out / "calibration_tables.csv", index=False)
    found.tree.to_netcdf(out / "calibration.nc", engine="h5netcdf")
    drawn = _draw(found, out / "figures")
    page = out / "calibration.html"
    page.write_text(render(found, engine, drawn, origin), encoding="utf-8")
    for line in sentences(found):
        click.echo(f"\n{line}")
    click.echo(f"\nWritten to {out}: calibration.csv, a row per process, calibration.nc, figures and {page.name}")
    _forget(folder)


def _forget(folder: Path) -> None:
    """Remove what finished tables left there."""
    for name in (ROWS, FIRST):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _draw(found: Calibration, folder: Path) -> dict[str, str]:
    """The figures, written; by name as SVG, for a page that needs nothing else."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from alps_ppl.results import plots

    shown: dict[str, str] = {}
    with matplotlib.rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "alps"}):
        axes = {"rates": plots.plot_rates(found), "reliability": plots.plot_reliability(found)}
        if found.pit and len(found.gates) > 1:
            axes["ranks"] = plots.plot_ranks(found.pit)
        for name, ax in axes.items():
            figure: Any = ax.figure
            figure.savefig(folder / f"calibration_{name}.png", dpi=130)
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
            shown[name] = text.getvalue()[text.getvalue().index("<svg") :]
            plt.close(figure)
    return shown


def sentences(found: Calibration) -> list[str]:
    """What a user can act on, the worst first: false alarms, found processes, the reliability of ON, the bands."""
    rates = rates_of(found)
    on = f"{ON * 100:.0f}"
    share = rates[f"false_{on}"] / rates.absent  # NaN, the last, where no table is without a process
    order = rates.assign(share=share).sort_values(["share", f"false_{on}_upper"], ascending=False, kind="stable")
    lines = [_false(row, LIKE[found.truth]) for _, row in order.iterrows()]
    for row in rates[rates.present > 0].to_dict("records"):
        share = f"at least {_percent(row[f'found_{on}_lower'])}"
        lines.append(f"In {row['present']} with it, {row['process']} came on in {row[f'found_{on}']} ({share}).")
    top = bins_of(found).iloc[-1]
    if top.gates:
        lines.append(
            f"Of {top.gates:.0f} gates with a probability of {SHOWN} or more, {top.on:.0f} are truly on; as many as "
            f"their probabilities say would be {top.expected:.1f}."
        )
    what = {"covered": "of the truth behind the cells that a fit saw", "unseen": "of the cells that it didn't see"}
    for name, row in coverage_of(found).iterrows():
        error = f" ± {100 * row.se:.1f}" if row.tables > 1 else ""
        lines.append(f"The 90 % bands hold {100 * row['mean']:.1f}{error} % {what[str(name)]}.")
    return lines


def _false(row: pd.Series, like: str) -> str:
    on = f"{ON * 100:.0f}"
    if not row.absent:
        return f"No simulated table is without {row.process}: more tables would tell how often it comes on falsely."
    tables = f"{row.absent} tables" if row.absent > 1 else "1 table"
    return (
        f"In {tables} {like} without it, {row.process} came on in {row[f'false_{on}']} "
        f"(at most {_percent(row[f'false_{on}_upper'])})."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def render(found: Calibration, engine: str, figures: Mapping[str, str], origin: Mapping[str, Any]) -> str:
    """The page."""
    tables = pd.DataFrame(found.tables)
    failed = tables[tables.error != ""]
    first, *rest = sentences(found)
    return (
        templates()
        .get_template("calibration.html")
        .render(
            first=first,
            rest=rest,
            number=len(found.gates),
            truth=found.truth,
            rates=rates_of(found).to_dict("records"),
            bins=bins_of(found).to_dict("records"),
            figures=figures,
            ranks=figures.get("ranks", ""),
            apart=int((tables.r_hat > LARGEST_GATE_R_HAT).sum()),
            r_hat=LARGEST_GATE_R_HAT,
            failed=failed.head(MOST_NAMED).to_dict("records"),
            num_failed=len(failed),
            most=MOST_NAMED,
            on=SHOWN,
            engine=ENGINES[engine],
            command=origin.get("command", ""),
            file=origin.get("file", {}),
            version=metadata.version("alps-ppl"),
        )
    )
