"""A run's figures: PNG files in ``--out``/figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.app.problem import Outcome

NAMES = ("reconstruction", "predicted", "inclusion", "mixing", "latents", "engines", "training")


def draw(outcome: Outcome, comparison: pd.DataFrame | None, folder: Path) -> None:
    """Write the figures that there are of an outcome; ``comparison`` is ``compare_engines``'s, of two engines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # A column's name may be "$\frac$": text, no formula.
    with matplotlib.rc_context({"text.parse_math": False}):
        for name, axes in _figures(outcome, comparison).items():
            figure = np.ravel(axes)[0].figure
            figure.savefig(folder / f"{name}.png", dpi=130)
            plt.close(figure)


def _figures(outcome: Outcome, comparison: pd.DataFrame | None) -> dict[str, Any]:
    from alps_ppl.results import plots

    data, trees = outcome.problem.data, outcome.trees
    in_units = {engine: data.to_units(prediction) for engine, prediction in outcome.predictions.items()}
    shown = {"held_out": data.split != "train", "units": data.units}
    found: dict[str, Any] = {}
    if data.inputs.ndim == 2 and data.inputs.shape[1] > 1:  # no one axis to draw a reconstruction over
        found["predicted"] = plots.plot_predicted(in_units, data.y, **shown)
    else:
        found["reconstruction"] = plots.plot_reconstruction(in_units, data.y, input_label=data.input_label, **shown)
    found["inclusion"] = plots.plot_inclusion(outcome.table)
    found["mixing"] = plots.plot_mixing(trees, unit="training sd of the output")
    if data.inputs.ndim == 1:
        found["latents"] = plots.plot_latents(trees, input_label=data.input_label)
    if comparison is not None:
        found["engines"] = plots.plot_engines(comparison, unit="training sd of the output")
    if "svi" in outcome.fitted:
        svi: Any = outcome.fitted["svi"].fit
        found["training"] = plots.plot_training(svi)
    return found
