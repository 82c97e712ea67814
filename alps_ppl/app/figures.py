"""A run's figures: PNG files in ``--out``/figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alps_ppl.app.problem import Outcome
from alps_ppl.app.report.figures import zone_of
from alps_ppl.tables.data import Data

NAMES = ("reconstruction", "predicted", "inclusion", "mixing", "latents", "engines", "training")
UNIT = "training sd of the output"


def draw(outcome: Outcome, comparison: pd.DataFrame | None, folder: Path) -> None:
    """Write the figures that there are of an outcome; ``comparison`` is ``compare_engines``'s, of two engines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # A column's name may be "$\frac$": text, no formula.
    with matplotlib.rc_context({"text.parse_math": False, "date.converter": "concise"}):
        for name, axes in _figures(outcome, comparison).items():
            figure = np.ravel(axes)[0].figure
            figure.savefig(folder / f"{name}.png", dpi=130)
            plt.close(figure)


def _figures(outcome: Outcome, comparison: pd.DataFrame | None) -> dict[str, Any]:
    from alps_ppl.results import plots

    data, trees = outcome.problem.data, outcome.trees
    in_units = {engine: data.to_units(prediction) for engine, prediction in outcome.predictions.items()}
    shown: dict[str, Any] = {"held_out": data.split, "units": data.units}
    found: dict[str, Any] = {}
    if data.inputs.ndim == 2 and data.inputs.shape[1] > 1:  # no one axis to draw a reconstruction over
        found["predicted"] = plots.plot_predicted(in_units, data.y, **shown)
    else:
        times, label = _axis(data)
        dated = {engine: prediction.assign_coords(time=times) for engine, prediction in in_units.items()}
        found["reconstruction"] = plots.plot_reconstruction(dated, data.y, input_label=label, **shown)
    found["inclusion"] = plots.plot_inclusion(outcome.table)
    found["mixing"] = plots.plot_strengths(trees, unit=UNIT)
    if data.inputs.ndim == 1:
        fitted = times[data.train_rows]
        found["latents"] = plots.plot_latents(trees, unit=UNIT, time=fitted, input_label=label)
    if comparison is not None:
        found["engines"] = plots.plot_engines(comparison, unit=UNIT)
    if "svi" in outcome.fitted:
        svi: Any = outcome.fitted["svi"].fit
        found["training"] = plots.plot_training(svi)
    return found


def _axis(data: Data) -> tuple[np.ndarray, str]:
    """The times that figures have, (time,), dates where the table has them, and what the axis is called."""
    inputs = data.inputs.reshape(len(data.inputs))
    origin, step = data.conversion.origin, data.conversion.step
    if origin is None or step is None:
        return inputs, data.input_label
    start = pd.Timestamp(origin)
    start = start if start.tzinfo is None else start.tz_convert("UTC").tz_localize(None)
    return (start + pd.to_timedelta(inputs, step).round("us")).to_numpy(), zone_of(data.dates)
