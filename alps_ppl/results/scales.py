"""What is known of unknown scales, and what each of several interchangeable processes carries."""

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from alps_ppl import checks
from alps_ppl.results.inclusion import OFF
from alps_ppl.results.trees import Trees, as_trees, processes

SCALES = ["engine", "process", "parameter", "candidate", "probability", "median", "lower", "upper", "at_the_edge"]
ALIKE = ["engine", "processes", "rank", "probability", "parameter", "median", "lower", "upper", "output", "share"]
# Draws with so many of the grid's points between them that none visited belong to different candidates.
GAP = 4
# A candidate of a smaller part of the draws isn't one.
LEAST = 0.02
# A posterior with more than this at an end of its range, and more than twice as much as the prior, goes on beyond it.
EDGE = 0.1


def scales(trees: Trees, *, interval: float = 0.9) -> pd.DataFrame:
    """The posterior of every unknown scale, over the draws that have its process on: a row per candidate value.

    A posterior of several modes has several candidates, the most probable first: draws between which the range has a
    gap that none visited. ``probability`` is a candidate's part of those draws, ``median`` and the central ``interval``
    from ``lower`` to ``upper`` are within it, in the inputs' unit. ``parameter`` is "period", "lengthscale" or a step's
    "time", and ``at_the_edge`` whether more than a tenth of the draws, and twice as many as the prior has, is at an end
    of the range, which is then too narrow.

    ``trees`` are fits or ``to_datatree``'s trees by the engine's name, or one of them. A process that is off, with a
    probability of .1 or less, has no row.
    """
    checks.in_range("interval", interval, 0.0, 1.0, ends=False)
    tails = [0.5 - interval / 2, 0.5 + interval / 2]
    rows = []
    for engine, tree in as_trees(trees, groups=("posterior", "constant_data")).items():
        posterior = tree["posterior"].to_dataset()
        for name, place, site, parameter in _sites(tree):
            on = posterior["b"].isel(latent=place).values == 1
            values, grid = posterior[site].values[on], _grid(tree, site)
            if on.mean() <= OFF:
                continue
            edge = bool(max(np.isclose(values, end).mean() for end in grid[[0, -1]]) > max(EDGE, 2 / len(grid)))
            for number, found in enumerate(_candidates(values, grid), 1):
                low, median, high = _quantiles(found, grid, tails)
                numbers = (number, len(found) / values.size, median, low, high, edge)
                rows.append([engine, name, parameter, *numbers])
    return pd.DataFrame(rows, columns=SCALES)


def _grid(tree: xr.DataTree, site: str) -> np.ndarray:
    return np.sort(tree["constant_data"].to_dataset()[f"{site}.grid"].values)


def _sites(tree: xr.DataTree) -> list[tuple[str, int, str, str]]:
    """Process, place of its first latent, site and parameter of every unknown scale."""
    constant = tree["constant_data"].to_dataset()
    if "scale_site" not in constant:
        return []  # an older file
    sites, parameters = constant["scale_site"].values, constant["scale_parameter"].values
    first = [(name, places[0]) for name, places in processes(tree).items()]
    return [(name, place, str(sites[place]), str(parameters[place])) for name, place in first if sites[place]]


def _candidates(values: np.ndarray, grid: np.ndarray) -> list[np.ndarray]:
    """The draws of each candidate, the most first."""
    points = np.searchsorted(_halfway(grid), values)
    order = np.argsort(points)
    cuts = np.flatnonzero(np.diff(points[order]) > GAP) + 1
    parts = [values[part] for part in np.split(order, cuts)]
    kept = [part for part in parts if len(part) >= LEAST * len(values)] or parts
    return sorted(kept, key=len, reverse=True)


def _quantiles(values: np.ndarray, grid: np.ndarray, tails: list[float]) -> list[float]:
    """The median, between the ends of the interval with half a step of the grid on either side."""
    low, median, high = np.quantile(values, [tails[0], 0.5, tails[1]], method="inverted_cdf")
    edges = np.concatenate([grid[:1], _halfway(grid), grid[-1:]])
    of = np.searchsorted(_halfway(grid), [low, high])
    return [float(edges[of[0]]), float(median), float(edges[of[1] + 1])]


def _halfway(grid: np.ndarray) -> np.ndarray:
    return (grid[1:] + grid[:-1]) / 2


def interchangeable(trees: Trees, *, interval: float = 0.9) -> pd.DataFrame:
    """How many of several processes of one covariance are there, and what each carries: a row per rank and output.

    Such processes can change places, so that "memory 2" means nothing by itself. In a draw, those that are on are
    ordered by their part of all outputs' variance: ``rank`` 1 is the largest. ``probability`` is that at least so many
    are on; ``share`` the mean part of an output's variance, over the draws in which there are so many, and ``median``,
    ``lower`` and ``upper`` are of the scale that process then has, where it is unknown. ``processes`` names all of
    them.

    ``trees`` are fits or ``to_datatree``'s trees by the engine's name, or one of them.
    """
    checks.in_range("interval", interval, 0.0, 1.0, ends=False)
    rows = []
    for engine, tree in as_trees(trees, groups=("posterior", "observed_data", "constant_data"), needs="x").items():
        rows += [[engine, *row] for members in groups(tree) for row in _ranks(tree, members, interval)]
    return pd.DataFrame(rows, columns=ALIKE)


def groups(tree: xr.DataTree) -> list[dict[str, list[int]]]:
    """The places of the processes of each group of several that have one covariance, by name."""
    group = tree["constant_data"].to_dataset()["covariance_group"].values
    of_group: dict[Any, dict[str, list[int]]] = {}
    for name, places in processes(tree).items():
        of_group.setdefault(group[places[0]], {})[name] = places
    return [members for members in of_group.values() if len(members) > 1]


def _ranks(tree: xr.DataTree, members: dict[str, list[int]], interval: float) -> list[list[Any]]:
    tails = [0.5 - interval / 2, 0.5 + interval / 2]
    draws = tree["posterior"].to_dataset().stack(sample=("chain", "draw"))
    x, H = (
        draws["x"].transpose("sample", "latent", "time").values,
        draws["H"].transpose("sample", "output", "latent").values,
    )
    b = draws["b"].transpose("sample", "latent").values
    y = tree["observed_data"]["y"].transpose("time", "output").values
    total = np.nanvar(y, 0)
    observed = ~np.isnan(y)

    def shares_of(places: list[int]) -> np.ndarray:  # (sample, output)
        f = np.einsum("soj,sjt->sot", H[:, :, places], x[:, places])
        variance = np.stack([f[:, i, seen].var(-1) for i, seen in enumerate(observed.T)], -1)
        return b[:, places[:1]] * variance / np.where(total > 0, total, np.inf)

    shares = np.stack([shares_of(places) for places in members.values()], 1)  # (sample, member, output)
    is_on = np.stack([b[:, places[0]] == 1 for places in members.values()], 1)
    order = np.argsort(np.where(is_on, -shares.sum(-1), np.inf), 1, kind="stable")
    number = is_on.sum(1)
    known = {name: (site, parameter) for name, _, site, parameter in _sites(tree)}
    values = np.stack([draws[known[name][0]].values for name in members], 1) if set(members) <= set(known) else None
    first = known.get(next(iter(members)), ("", ""))[0]
    grid = _grid(tree, first) if values is not None else np.zeros(0)
    parameter = known[next(iter(members))][1] if values is not None else ""
    rows: list[list[Any]] = []
    named = ", ".join(members)
    for rank in range(1, len(members) + 1):
        enough = number >= rank
        mine = order[enough, rank - 1]
        share = shares[enough, mine].mean(0) if enough.any() else np.full(y.shape[1], np.nan)
        scale = [np.nan] * 3
        if values is not None and enough.any():
            scale = _quantiles(values[enough, mine], grid, tails)
        low, median, high = scale
        for i, output in enumerate(tree["posterior"].to_dataset()["output"].values):
            rows.append([named, rank, float(enough.mean()), parameter, median, low, high, str(output), float(share[i])])
    return rows
