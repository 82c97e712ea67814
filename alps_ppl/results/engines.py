"""Two posteriors of one model side by side, and the sign that a latent shares with its column of H."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl import checks
from alps_ppl.results.contributions import is_on, strengths, together
from alps_ppl.results.fits import Fit
from alps_ppl.results.inclusion import inclusion_table
from alps_ppl.results.trees import Trees, as_tree, as_trees


def compare_engines(trees: Mapping[str, Fit | xr.DataTree], predictions: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Two posteriors of one model side by side: inclusion probabilities, predictions, what each process adds.

    ``trees`` are two fits or their trees and ``predictions`` two of ``predict``'s at the same inputs, by engine.
    A row per ``quantity`` and ``of`` (a latent, a group, an output, or output and process), with a column for each
    engine, their ``difference`` (first less second) and its Monte Carlo error ``mcse`` (NaN where neither has one).
    "predictive mean" has the root mean square of the difference over times, and "predictive sd" the difference of the
    mean sds, both in the second engine's mean sds. "strength mean" and "strength sd" are of processes that
    both have on (above 1/2): the sd over time of what a process adds to an output, in the unit of the outputs that were
    fitted, mean and sd over draws, with a sign as in ``plots.plot_strengths``. H by itself has no scale of its own.

    Raises a TypeError for what is none of these, and a ValueError unless there are two of each, of the same engines,
    processes, inputs and outputs.
    """
    checks.instance("trees", trees, Mapping, "a dict of two fits or trees by engine")
    checks.instance("predictions", predictions, Mapping, "a dict of two of predict's results by engine")
    if len(trees) != 2 or list(trees) != list(predictions):
        raise ValueError(
            f"trees, predictions: expected two engines, the same in both, got {list(trees)} and {list(predictions)}"
        )
    first, second = trees
    for engine, prediction in predictions.items():
        checks.instance(f"predictions[{engine!r}]", prediction, xr.Dataset, "what predict returned")
    _check_alike(*predictions.values())
    found = as_trees(trees, needs="x", groups=("posterior", "constant_data"))
    _check_one_model(*found.values())
    rows = [*_of_gates(found), *_of_predictions(predictions), *_of_strengths(found)]
    frame = pd.DataFrame(rows, columns=["quantity", "of", first, second, "difference", "mcse"])
    return frame.assign(difference=frame.difference.fillna(frame[first] - frame[second]))


def largest_differences(comparison: pd.DataFrame) -> dict[str, float]:
    """``compare_engines``'s largest difference, in size, of each quantity."""
    return comparison.difference.abs().groupby(comparison.quantity).max().to_dict()


def align_signs(posterior: xr.Dataset, reference: xr.DataArray | None = None) -> xr.Dataset:
    """A posterior whose draws of x_j and H_:j have the sign in which x_j agrees with ``reference`` (latent, time).

    (x_j, H_:j) and (-x_j, -H_:j) are equally probable, so raw means of H and their R-hat say nothing. Without a
    reference, a latent's draws agree with its first draw while it is on, and its largest mean loading is positive.
    Copies of one covariance turn into one another; they are turned so that the first one has all of the output in which
    they are largest, the second what is left in the next, and so on.
    """
    if isinstance(posterior, xr.DataTree):  # a whole tree
        posterior = as_tree(posterior, needs="x")["posterior"].to_dataset()
    posterior = _turned(posterior)
    x, H = posterior["x"], posterior["H"]
    conventional = reference is None
    if reference is None:
        draws = posterior[["x", "b"]].stack(sample=("chain", "draw"))
        first_on = draws["x"].isel(sample=draws["b"].argmax(dim="sample"))
        reference = first_on.drop_vars(["sample", "chain", "draw"], errors="ignore")
    sign = xr.where((x * reference).sum("time") < 0, -1.0, 1.0)
    if conventional:
        mean = (H * sign).mean(("chain", "draw"))
        largest = mean.isel(output=abs(mean).argmax(dim="output")).drop_vars("output", errors="ignore")
        sign = sign * xr.where(largest < 0, -1.0, 1.0)
    return posterior.assign(x=(x * sign).transpose(*x.dims), H=(H * sign).transpose(*H.dims))


def _turned(posterior: xr.Dataset) -> xr.Dataset:
    """Copies with H lower triangular in each draw, outputs in the order of their size."""
    names = posterior["copy_of"].values if "copy_of" in posterior.coords else posterior["latent"].values
    x, H = posterior["x"].transpose(..., "latent", "time"), posterior["H"].transpose(..., "output", "latent")
    new_x, new_H = x.values.copy(), H.values.copy()
    for name in dict.fromkeys(names):
        places = np.flatnonzero(names == name)
        if len(places) == 1:
            continue
        on = posterior["b"].transpose(..., "latent").values[..., places[0]] == 1
        if not on.any():
            continue
        h = new_H[..., places]
        order = np.argsort(-(h[on] ** 2).sum(-1).mean(0))
        turn, _ = np.linalg.qr(np.swapaxes(h[..., order, :], -1, -2), mode="complete")
        largest = np.diagonal((h @ turn)[..., order, :], axis1=-2, axis2=-1)
        turn[..., : largest.shape[-1]] *= np.where(largest < 0, -1.0, 1.0)[..., None, :]
        turn = np.where(on[..., None, None], turn, np.eye(len(places)))  # draws of the prior stay as they are
        new_H[..., places], new_x[..., places, :] = h @ turn, np.swapaxes(turn, -1, -2) @ new_x[..., places, :]
    return posterior.assign(x=x.copy(data=new_x), H=H.copy(data=new_H))


def align_engines(trees: Trees) -> dict[str, xr.Dataset]:
    """The engines' posteriors with one sign for each latent: that in which it agrees with the first engine's mean."""
    posteriors = {engine: tree["posterior"].to_dataset() for engine, tree in as_trees(trees, needs="x").items()}
    reference = align_signs(next(iter(posteriors.values())))["x"].mean(("chain", "draw"))
    return {engine: align_signs(posterior, reference) for engine, posterior in posteriors.items()}


def _check_alike(a: xr.Dataset, b: xr.Dataset) -> None:
    times = a.sizes["time"] == b.sizes["time"] and np.array_equal(a["time"], b["time"])
    if not times or list(a["output"].values) != list(b["output"].values) or a.attrs != b.attrs:
        raise ValueError(
            "predictions: expected predict's results at the same inputs, with the same outputs, interval and "
            f"include_noise, got {dict(a.sizes)} {a.attrs} and {dict(b.sizes)} {b.attrs}"
        )


def _check_one_model(*trees: xr.DataTree) -> None:
    a, b = ({d: t["posterior"].to_dataset()[d].values.tolist() for d in ("latent", "output")} for t in trees)
    if a != b:
        raise ValueError(f"trees: expected two of one model, with the same latents and outputs, got {a} and {b}")


def _of_gates(trees: Mapping[str, xr.DataTree]) -> Iterator[dict[str, Any]]:
    table = inclusion_table(trees)
    wide = table.pivot(index="latent", columns="engine", values=["probability", "mcse"])
    for latent in dict.fromkeys(table.latent):
        row = wide.loc[latent]
        errors = row["mcse"].to_numpy(float)
        mcse = np.nan if np.isnan(errors).all() else np.sqrt(np.nansum(errors**2))
        yield {"quantity": "inclusion probability", "of": latent, **row["probability"], "mcse": mcse}


def _of_predictions(predictions: Mapping[str, xr.Dataset]) -> Iterator[dict[str, Any]]:
    a, b = predictions.values()
    unit = b["sd"].mean("time")
    rms = ((a["mean"] - b["mean"]) ** 2).mean("time") ** 0.5 / unit
    for i, output in enumerate(b["output"].values.astype(str)):
        yield {"quantity": "predictive mean", "of": output, "difference": float(rms[i])}
        mean_sd = {name: float((p["sd"].mean("time") / unit)[i]) for name, p in predictions.items()}
        yield {"quantity": "predictive sd", "of": output} | mean_sd


def _of_strengths(trees: Mapping[str, xr.DataTree]) -> Iterator[dict[str, Any]]:
    """``strengths`` of the processes that both engines have on, in the sign of the first engine."""
    table, first = strengths(trees), next(iter(trees))
    for process, places in together(trees).items():
        if any(is_on(tree, places).mean() <= 0.5 for tree in trees.values()):
            continue
        rows = table[table.process == process].pivot(index="output", columns="engine", values=["mean", "sd"])
        most = table.output[(table.engine == first) & (table.process == process) & table.most].item()
        means = rows["mean"] * np.where(rows["mean"].loc[most] < 0, -1.0, 1.0)
        for output in dict.fromkeys(table.output):
            of = f"{output}, {process}"
            yield {"quantity": "strength mean", "of": of, **means.loc[output]}
            yield {"quantity": "strength sd", "of": of, **rows["sd"].loc[output]}
