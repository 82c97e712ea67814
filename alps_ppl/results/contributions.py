"""What each process adds to each output, sum_j H_ij b_j x_j(t) over its latents.

The data tell this sum. They don't tell the sign and the scale of x_j and H_:j one by one, nor which of several latents
of one covariance has which part. So latents of equal covariance, which can change places, are taken together.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool, Float

from alps_ppl.results.trees import Trees, as_trees, processes


def processes_together(tree: xr.DataTree) -> dict[str, list[int]]:
    """The places of the latents of each process, those of equal covariance in one: "a + b", or "a + … + d" of many."""
    constant: Any = tree["constant_data"] if "constant_data" in tree.children else {}
    group = constant["covariance_group"].values if "covariance_group" in constant else None
    members: dict[Any, dict[str, list[int]]] = {}
    for name, places in processes(tree).items():
        members.setdefault(name if group is None else group[places[0]], {})[name] = places
    return {_sum(list(named)): [k for places in named.values() for k in places] for named in members.values()}


def together(trees: Mapping[str, xr.DataTree]) -> dict[str, list[int]]:
    """``processes_together`` of all engines: latents of equal covariance in one of them are summed in each.

    SVI learns an unknown scale of each process, and so makes equal covariances differ.
    """
    return min((processes_together(tree) for tree in trees.values()), key=len)


def _sum(names: list[str]) -> str:
    return " + ".join(names if len(names) < 3 else [names[0], "…", names[-1]])


def is_on(tree: xr.DataTree, places: list[int]) -> Bool[np.ndarray, " sample"]:
    """In which draws, all chains joined, one of these latents is on at least."""
    b = tree["posterior"]["b"].isel(latent=places).stack(sample=("chain", "draw"))
    return (b.transpose("sample", "latent").values == 1).any(1)


def contribution(tree: xr.DataTree, places: list[int], output: str) -> Float[np.ndarray, "sample time"]:
    """What these latents add to an output at the fitted times, of the draws in which one of them is on."""
    on = np.flatnonzero(is_on(tree, places))
    posterior = tree["posterior"].to_dataset()[["H", "b", "x"]].isel(latent=places).sel(output=output)
    draws = posterior.stack(sample=("chain", "draw")).isel(sample=on)
    gated = (draws["H"] * draws["b"]).transpose("sample", "latent").values
    return np.einsum("sj,sjt->st", gated, draws["x"].transpose("sample", "latent", "time").values)


def strengths(trees: Trees) -> pd.DataFrame:
    """How strongly each process moves each output: a row per engine, process (as in ``processes_together``) and output.

    In a draw it is the sd over the fitted times of what the process adds to the output, in the unit of the outputs that
    were fitted: ``mean`` and ``sd`` over the draws that have the process on. Its sign says whether it goes with
    (positive) or against what the process adds to the output that it moves most, whose row has ``most`` True. A process
    of several latents has a course of its own in every output, and no sign: ``signed`` is False.

    ``trees`` are fits or ``to_datatree``'s trees by the engine's name, or one of them. A process that is on in no draw
    has no row.
    """
    rows: list[list[Any]] = []
    by_engine = as_trees(trees, needs="x")
    shared = together(by_engine)
    for engine, tree in by_engine.items():
        draws = tree["posterior"].to_dataset()[["H", "b", "x"]].stack(sample=("chain", "draw"))
        one_each = {places[0] for places in processes(tree).values() if len(places) == 1}
        for name, places in shared.items():
            here = draws.isel(latent=places, sample=np.flatnonzero(is_on(tree, places)))
            if here.sizes["sample"] == 0:
                continue
            x = here["x"].transpose("sample", "latent", "time").values
            h = (here["H"] * here["b"]).transpose("sample", "output", "latent").values
            x = x - x.mean(-1, keepdims=True)
            covariance = np.einsum("sjt,skt->sjk", x, x) / x.shape[-1]
            variance = np.einsum("soj,sjk,sok->so", h, covariance, h)
            most = int(variance.mean(0).argmax())
            values, signed = np.sqrt(np.maximum(variance, 0.0)), one_each.issuperset(places)
            if signed:
                values = values * np.sign(np.einsum("soj,sjk,sk->so", h, covariance, h[:, most]))
            for i, output in enumerate(here["output"].values):
                numbers = float(values[:, i].mean()), float(values[:, i].std())
                rows.append([engine, name, str(output), *numbers, signed, i == most])
    table = pd.DataFrame(rows, columns=["engine", "process", "output", "mean", "sd", "signed", "most"])
    return table.astype({"mean": float, "sd": float, "signed": bool, "most": bool})  # those of no row, too
