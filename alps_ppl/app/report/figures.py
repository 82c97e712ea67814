"""The report's figures: each output with its bands, gaps and forecast, and each process in an output."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl.app.report.charts import Axis, Chart, draw, spans
from alps_ppl.results.contributions import contribution


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

    stamps = pd.to_datetime(rows.date, format="ISO8601", utc=True).dt.tz_localize(None)
    return Times(inputs, date2num(stamps), True, zone_of(rows.date))


def zone_of(dates: Any) -> str:
    """What to say beside dates on an axis: "UTC" where they have a zone, else nothing."""
    return "UTC" * bool(pd.Series(dates).astype(str).str.contains(r"\d(?:[+-]\d\d:?\d\d|Z)$").any())


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
    return draw(Axis(mean, margin=0.03), mean, {"other": mean} | _cells(lead), [], label, text, over_time=False)


def _cells(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    held_out, observed = (rows.split != "train").to_numpy(), rows.observed.to_numpy(float)
    return {"dots": np.where(held_out, np.nan, observed), "dots held-out": np.where(held_out, observed, np.nan)}


def contributions(tree: xr.DataTree, lead: Mapping[str, tuple[list[int], str]], times: Times) -> dict[str, Chart]:
    """Mean and 90 % band of what each process adds to an output while it is on, over the fitted times.

    ``lead`` has each process' latents, by their places, and the output.
    """
    time, by_input = tree["posterior"].to_dataset()["time"].values, np.argsort(times.inputs, kind="stable")
    order = np.argsort(time, kind="stable")
    places = np.interp(time[order], times.inputs[by_input], times.places[by_input])
    across = Axis(times.places, dates=times.dates)
    found = {}
    for name, (latents, output) in lead.items():
        draws = contribution(tree, latents, output)[:, order]
        lower, upper = np.quantile(draws, [0.05, 0.95], axis=0)
        text = f"{name}: mean and 90 % band of what it adds to {output} while it is on"
        found[name] = draw(across, places, {"band": (lower, upper), "mean": draws.mean(0)}, [], times.label, text)
    return found
