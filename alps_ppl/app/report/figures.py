"""The report's figures: each output with its bands, gaps and forecast, and each latent."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl.app.report.charts import Axis, Chart, draw, spans
from alps_ppl.results.engines import align_signs
from alps_ppl.results.shares import while_on


class Times(NamedTuple):
    """The inputs and where they lie on the axis: dates as matplotlib's days, numbers as they are."""

    inputs: np.ndarray
    places: np.ndarray
    dates: bool
    label: str


def times_of(predictions: pd.DataFrame, summary: Mapping[str, Any]) -> Times | None:
    """The times of the rows of one engine and output; None where inputs have several columns, and so no one axis."""
    if "input" not in predictions:
        return None
    top = predictions.iloc[0]
    rows = predictions[(predictions.engine == top.engine) & (predictions.output == top.output)]
    inputs = rows.input.to_numpy(float)
    if "date" not in rows:
        return Times(inputs, inputs, False, summary.get("data", {}).get("input_label", "input"))
    from matplotlib.dates import date2num

    zoned = rows.date.str.contains(r"\d(?:[+-]\d\d:?\d\d|Z)$").any()
    stamps = pd.to_datetime(rows.date, format="ISO8601", utc=True).dt.tz_localize(None)
    return Times(inputs, date2num(stamps), True, "UTC" if zoned else "")


def outputs(
    predictions: pd.DataFrame, scores: pd.DataFrame, engine: str, times: Times | None
) -> dict[str, dict[str, Any]]:
    """By output its unit, chart, and how the cells of each split were met; ``engine``'s band is the filled one."""
    rmse = scores[scores.engine == engine].set_index(["output", "split"]).rmse
    units = scores.drop_duplicates("output").set_index("output").unit.replace("as in the file", "")
    found = {}
    for output, rows in predictions.groupby("output", sort=False):
        others = [frame for name, frame in rows.groupby("engine", sort=False) if name != engine]
        lead, unit = rows[rows.engine == engine], str(units.get(output, ""))
        chart = _against(lead, unit) if times is None else _over_time(lead, others, times)
        cells = lead[lead.observed.notna()]
        splits = [
            {"split": split, "cells": len(part), "rmse": rmse.get((output, split), np.nan)}
            | {"inside": float(part.observed.between(part.lower, part.upper).mean())}
            for split, part in cells.groupby("split", sort=False)
        ]
        found[str(output)] = {"unit": unit, "chart": chart, "splits": splits}
    return found


def _over_time(lead: pd.DataFrame, others: list[pd.DataFrame], times: Times) -> Chart:
    order = np.argsort(times.places, kind="stable")
    lead, places = lead.iloc[order], times.places[order]
    observed = lead.observed.to_numpy(float)
    layers: dict[str, Any] = {"band": (lead.lower, lead.upper), "mean": lead["mean"]}
    for other in others:
        other = other.iloc[order]
        layers |= {"other": other["mean"], "other low": other.lower, "other high": other.upper}
    across = Axis(places, dates=times.dates)
    stretches = spans(across(places), lead.split.tolist(), np.isfinite(observed))
    shaded = ", ".join(sorted({span.label for span in stretches}))
    text = f"{lead.output.iloc[0]}: observed, mean and band at {len(lead):,} times" + (
        f"; shaded: {shaded}" * bool(shaded)
    )
    return draw(across, places, layers | _cells(lead), stretches, times.label, text)


def _against(lead: pd.DataFrame, unit: str) -> Chart:
    """Observed against predicted, and the diagonal."""
    lead = lead[lead.observed.notna()].sort_values("mean")
    mean = lead["mean"].to_numpy()
    label = f"predicted [{unit}]" if unit else "predicted"
    text = f"{'nothing' if lead.empty else lead.output.iloc[0]}: observed against predicted at {len(lead):,} inputs"
    return draw(Axis(mean, margin=0.03), mean, {"other": mean} | _cells(lead), [], label, text)


def _cells(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    held_out, observed = (rows.split != "train").to_numpy(), rows.observed.to_numpy(float)
    return {"dots": np.where(held_out, np.nan, observed), "dots held-out": np.where(held_out, observed, np.nan)}


def latents(tree: xr.DataTree, shown: list[str], times: Times) -> dict[str, Chart]:
    """Mean and 90 % band of each latent while it is on, over the fitted times."""
    posterior = align_signs(tree["posterior"].to_dataset())
    time, by_input = posterior["time"].values, np.argsort(times.inputs, kind="stable")
    order = np.argsort(time, kind="stable")
    places = np.interp(time[order], times.inputs[by_input], times.places[by_input])
    across = Axis(times.places, dates=times.dates)
    found = {}
    for name in shown:
        x = while_on(posterior, name)["x"].transpose("sample", "time").values[:, order]
        if len(x):
            lower, upper = np.quantile(x, [0.05, 0.95], axis=0)
            text = f"{name}: mean and 90 % band while it is on"
            found[name] = draw(across, places, {"band": (lower, upper), "mean": x.mean(0)}, [], times.label, text)
    return found
