"""What each latent contributes to the outputs."""

import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl import checks
from alps_ppl.results.contributions import processes_together
from alps_ppl.results.trees import Trees, as_trees, processes


def variance_shares(trees: Trees, *, interval: float = 0.9, together: bool = False) -> pd.DataFrame:
    """Per engine, output and process: the share of the output's observed variance that the process accounts for.

    ``trees`` are fits or ``to_datatree``'s trees by the engine's name, or one of them. In a draw, an output is
    y_i(t) = sum_j H_ij b_j x_j(t) + e_i(t) at the times at which it was observed and fitted, and over those times

    - a row of ``part`` "latent" is var(sum_j H_ij b_j x_j) / var(y_i) over the latents of a process, one as a rule;
    - "own memory" is var(r_i) / var(y_i), where the model has private memories;
    - "noise" is var(e_i) / var(y_i), of the residuals that the draw leaves, not of the parameter ``noise_variance``;
    - "overlap" is what remains to 1: twice the covariances between these terms, negative where they cancel.

    ``share`` is the mean over draws, gates that are off included, ``lower`` and ``upper`` its central ``interval``. The
    shares of an output add to 1. All are NaN for an output without two different observed values. SVI's draws of x
    are not paths (see ``to_datatree``), which lifts its shares of slow latents a little. ``together``: processes of
    equal covariance, which can change places, have one row for their sum, "a + b".
    """
    checks.in_range("interval", interval, 0.0, 1.0, ends=False)
    tails = [0.5 - interval / 2, 0.5 + interval / 2]
    rows = []
    for engine, tree in as_trees(trees, groups=("posterior", "observed_data"), needs="x").items():
        posterior = tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
        x = posterior["x"].transpose("sample", "latent", "time").values
        gated_H = (posterior["H"] * posterior["b"]).transpose("output", "sample", "latent").values
        y = tree["observed_data"]["y"].transpose("output", "time").values
        of_process = processes_together(tree) if together else processes(tree)
        own = (
            posterior["own_memory"].transpose("output", "sample", "time").values if "own_memory" in posterior else None
        )
        parts = [("latent", name) for name in of_process] + [("own memory", "")] * (own is not None)
        parts += [("noise", ""), ("overlap", "")]
        for i, (output, H_i, y_i) in enumerate(zip(posterior["output"].values, gated_H, y, strict=True)):
            by_process = [np.einsum("sj,sjt->st", H_i[:, places], x[:, places]) for places in of_process.values()]
            shares = _shares(np.stack(by_process + ([] if own is None else [own[i]]), 1), y_i)
            table = np.stack([shares.mean(0), *np.quantile(shares, tails, axis=0)], axis=1)
            rows += [
                {"engine": engine, "output": str(output), "part": part, "latent": latent}
                | dict(zip(("share", "lower", "upper"), map(float, numbers), strict=True))
                for (part, latent), numbers in zip(parts, table, strict=True)
            ]
    return pd.DataFrame(rows, columns=["engine", "output", "part", "latent", "share", "lower", "upper"])


def of_one_output(tree: xr.DataTree, *, share: float = 0.9) -> dict[str, tuple[str, float]]:
    """The processes that are nearly all in one output, with the output and its share of their squared loadings.

    Of the draws that have the process on, the mean share of sum_j H_ij^2; where there is one output, none. Such a
    process isn't shared: it is that output's own.
    """
    posterior = tree["posterior"].to_dataset()
    found: dict[str, tuple[str, float]] = {}
    if "H" not in posterior:  # a tree of gates alone
        return found
    for name, places in processes(tree).items():
        here = posterior[["H", "b"]].isel(latent=places).stack(sample=("chain", "draw"))
        on = here["b"].isel(latent=0).values == 1
        squares = (here["H"].transpose("sample", "output", "latent").values[on] ** 2).sum(-1)
        if on.any() and squares.shape[1] > 1:
            mean = (squares / squares.sum(1, keepdims=True)).mean(0)
            if mean.max() >= share:
                found[name] = str(posterior["output"].values[mean.argmax()]), float(mean.max())
    return found


def _shares(terms: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(sample, part + 2) of one output: its terms (sample, part, time), noise, overlap."""
    observed = ~np.isnan(y)
    total = y[observed].var() if observed.any() else 0.0
    if total == 0:
        return np.full((len(terms), terms.shape[1] + 2), np.nan)
    terms = terms[..., observed].astype(float)
    shares = terms.var(-1) / total
    noise = (y[observed] - terms.sum(1)).var(-1) / total
    return np.column_stack([shares, noise, 1 - shares.sum(1) - noise])
