"""A run's figures: PNG files in ``--out``/figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.app.run import Outcome

NAMES = ("reconstruction", "predicted", "inclusion", "mixing", "latents", "engines", "training")


def draw(outcome: Outcome, comparison: pd.DataFrame | None, folder: Path) -> None:
    """Write the figures that there are of an outcome; ``comparison`` is ``compare_engines``'s, of two engines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from alps_ppl.results import plots

    def save(axes: Any, name: str) -> None:
        figure = np.ravel(axes)[0].figure
        figure.savefig(folder / f"{name}.png", dpi=130)
        plt.close(figure)

    data, trees = outcome.problem.data, outcome.trees
    in_units = {engine: data.to_units(prediction) for engine, prediction in outcome.predictions.items()}
    shown = {"held_out": data.split != "train", "units": data.units}
    if data.inputs.ndim == 2 and data.inputs.shape[1] > 1:  # no one axis to draw a reconstruction over
        save(plots.plot_predicted(in_units, data.y, **shown), "predicted")
    else:
        save(plots.plot_reconstruction(in_units, data.y, input_label=data.input_label, **shown), "reconstruction")
    save(plots.plot_inclusion(outcome.table), "inclusion")
    save(plots.plot_mixing(trees, unit="training sd of the output"), "mixing")
    if data.inputs.ndim == 1:
        save(plots.plot_latents(trees, input_label=data.input_label), "latents")
    if comparison is not None:
        save(plots.plot_engines(comparison, unit="training sd of the output"), "engines")
    if "svi" in outcome.fitted:
        svi: Any = outcome.fitted["svi"].fit
        save(plots.plot_training(svi), "training")
