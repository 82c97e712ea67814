"""``alps-ppl report DIR``: what a run found, as one HTML page that needs nothing else."""

from pathlib import Path
from typing import Any

import numpy as np

from alps_ppl.cli import BadInput
from alps_ppl.diagnostics import inclusion_table, log_joint_r_hat
from alps_ppl.report import figures, sections
from alps_ppl.report.results import Results, read
from alps_ppl.report.verdict import NAMES, verdict


def write(folder: Path) -> Path:
    """Write ``report.html`` into a run's folder; returns its path."""
    results = read(folder)
    try:
        page = render(results)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError) as error:
        raise BadInput(
            f"{folder}: expected the files of one whole run; some are damaged or of another run "
            f"({type(error).__name__}: {error}); run the model file again"
        ) from error
    finally:
        for tree in results.trees.values():
            tree.close()
    path = folder / "report.html"
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: can't be written: {error.strerror}") from None
    return path


def render(results: Results) -> str:
    """The page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("alps_ppl.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(sections, name) for name in ("decimals", "percent", "significant")}
    environment.globals["names"] = NAMES
    return environment.get_template("page.html").render(**_context(results))


def _context(results: Results) -> dict[str, Any]:
    try:
        table = inclusion_table(results.trees)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the posteriors: {error}") from error
    gibbs = results.trees.get("gibbs")
    num_chains = 0 if gibbs is None else gibbs["posterior"].sizes["chain"]
    lp_r_hat = np.nan if gibbs is None or num_chains == 1 else log_joint_r_hat(gibbs)
    found = verdict(table, lp_r_hat=lp_r_hat, num_chains=num_chains)
    colours = sections.colours(table, found.engine)
    shown = [name for name, colour in colours.items() if colour != sections.GREY]
    tree = sections.thinned(results.trees[found.engine])
    has_latents = "x" in tree["posterior"]
    times = figures.times_of(results.predictions, results.summary)
    return {
        "name": results.name,
        "summary": results.summary,
        "verdict": found,
        "engines": list(results.trees),
        "data": sections.data(results.predictions, results.summary),
        "gates": sections.gates(table, found.engine, colours),
        "colours": colours,
        "shown": shown,
        "shares": sections.shares(tree, shown) if has_latents else None,
        "outputs": figures.outputs(results.predictions, results.scores, found.engine, times),
        "latents": figures.latents(tree, shown, times) if has_latents and times else {},
        "mixing": sections.mixing(tree, shown) if has_latents else None,
        "diagnostics": sections.diagnostics(results, table, found.engine, lp_r_hat),
        "moves": None if gibbs is None else sections.moves(gibbs),
        "combinations": sections.combinations(results.trees[found.engine]),
    }
