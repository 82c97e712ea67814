"""``alps-ppl report DIR``: what a run found, as one HTML page that needs nothing else."""

from pathlib import Path
from typing import Any

import numpy as np

from alps_ppl.app.errors import BadInput
from alps_ppl.app.report import figures, notes, sections
from alps_ppl.app.report.run_folder import RunFolder, read
from alps_ppl.app.report.verdict import NAMES, verdict
from alps_ppl.results.inclusion import gate_diagnostics, inclusion_table, log_joint_r_hat


def write(folder: Path) -> Path:
    """Write ``report.html`` into a run's folder; returns its path."""
    run = read(folder)
    try:
        page = render(run)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        raise BadInput(
            f"{folder}: expected the files of one whole run; some are damaged or of another run "
            f"({type(error).__name__}: {error}); run the model file again"
        ) from error
    finally:
        for tree in run.trees.values():
            tree.close()
    path = folder / "report.html"
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: can't be written: {error.strerror}") from None
    return path


def templates() -> Any:
    """Where the pages' templates are, with what all of them ask of jinja."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("alps_ppl.app.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(run: RunFolder) -> str:
    """The page."""
    environment = templates()
    environment.filters |= {name: getattr(sections, name) for name in ("decimals", "percent", "significant")}
    environment.globals["names"] = NAMES
    return environment.get_template("page.html").render(**_context(run))


def _context(run: RunFolder) -> dict[str, Any]:
    table = inclusion_table(run.trees)
    gibbs = run.trees.get("gibbs")
    num_chains = 0 if gibbs is None else gibbs["posterior"].sizes["chain"]
    lp_r_hat = np.nan if gibbs is None or num_chains == 1 else log_joint_r_hat(gibbs)
    found = verdict(
        table,
        lp_r_hat=lp_r_hat,
        num_chains=num_chains,
        num_draws=None if gibbs is None else gibbs["posterior"].sizes["draw"],
        num_times=notes.num_times(run),
        differences=run.summary.get("largest_differences"),
        misfit=notes.innovation_notes(run.summary),
        at_least=notes.at_least(run.trees["gibbs" if gibbs is not None else next(iter(run.trees))]),
    )
    found.notes.extend([*notes.held_out_notes(run, found.engine), *notes.spikes_note(run)])
    found.notes.extend(notes.tails_note(run, found.engine))
    colours = sections.colours(table, found.engine)
    shown = [name for name, colour in colours.items() if colour != sections.GREY]
    tree = sections.thinned(run.trees[found.engine])
    parts = sections.parts(tree, colours)
    times = figures.times_of(run.predictions, run.summary)
    shares, mixing = sections.shares(tree, list(parts)), sections.mixing(tree, list(parts))
    lead = {name: (parts[name].places, output) for name, output in mixing["lead"].items()}
    gates = sections.gates(table, found.engine, colours)
    on = [gate["latent"] for gate in gates if gate["status"] == "on"]
    of_scales = [*notes.scale_notes(tree, on, run.conversion), *notes.interchangeable_notes(tree, run.conversion)]
    found.notes.extend([*of_scales, *notes.one_output_notes(tree, on), *notes.own_memory_note(run, shares)])
    return {
        "name": run.name,
        "summary": run.summary,
        "verdict": found,
        "engines": list(run.trees),
        "data": sections.data(run),
        "gates": gates,
        "colours": colours,
        "parts": parts,
        "has_grey": len(shown) < len(colours),
        "summed": any(name not in colours for name in parts),
        "shares": shares,
        "outputs": figures.outputs(run.predictions, run.scores, found.engine, times),
        "cycles": sections.cycle_rows(tree, shown, run.conversion) if times else [],
        "contributions": figures.contributions(tree, lead, times) if times else {},
        "mixing": mixing,
        "diagnostics": sections.diagnostics(run, table, found.engine, lp_r_hat),
        "moves": None if gibbs is None else gate_diagnostics(gibbs).reset_index().to_dict("records"),
        "backtest": sections.backtest(run),
        "combinations": sections.combinations(run.trees[found.engine]),
    }
