"""How probable it is that each latent is there, and how well a sampler's chains know it.

All functions take fits or ``to_datatree``'s trees.
"""

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Int

from alps_ppl.results.fits import OF_A_FAMILY, Fit
from alps_ppl.results.trees import Trees, as_tree, as_trees, processes

# From here on chains disagree.
LARGEST_GATE_R_HAT, LARGEST_LOG_JOINT_R_HAT = 1.01, 1.1
# With fewer draws a chain tells nothing of its errors.
FEWEST_DRAWS = 4
COLUMNS = ["latent", "engine", "probability", "mcse", "r_hat", "ess", "lowest", "highest", "prior", "members", "group"]
# From here a process is in the data; up to there it is out; between them it is undecided.
ON, OFF = 0.9, 0.1
# Chains whose probabilities are less apart than this agree, on whichever side of a limit they are.
APART = 0.1


def inclusion_table(trees: Trees) -> pd.DataFrame:
    """Per process and engine: the inclusion probability, its Monte Carlo error, and the gate's R-hat and ESS.

    A process is a latent, or all latents that share a gate: copies, and ``shared_gates``.

    ``trees`` are fits or trees by the engine's name, or one of them. ``probability`` is the mean of ``gate_prob``: rho
    for SVI (no Monte Carlo error), and for Gibbs the average of the probabilities with which the gate was drawn. R-hat
    and ESS are those of the gate itself; a gate that never moves in any chain has R-hat 1 and no ESS. One chain can't
    tell whether it converged: its R-hat is NaN. Fewer than four draws a chain tell nothing. ``lowest`` and ``highest``
    are the chains' probabilities.

    Processes of equal covariance are followed by a row for the group, "A or B": whether at least one of them is on,
    which the data can tell where they can't tell which. ``members`` is how many processes a row is about (1: a process
    itself), ``group`` the number that processes of equal covariance share.
    """
    found = as_trees(trees, groups=("posterior", "constant_data"))
    return pd.DataFrame([row for engine, tree in found.items() for row in _rows(engine, tree)], columns=COLUMNS)


def inclusion_probability(tree: Fit | xr.DataTree) -> xr.DataArray:
    """The reported probability of each latent's gate, (latent,): the mean of ``gate_prob``, or of b without it."""
    tree = as_tree(tree)
    _, probs = gates_of(tree)
    of_latent = np.zeros(tree["posterior"].sizes["latent"])
    for prob, places in zip(probs.mean((0, 1)), processes(tree).values(), strict=True):
        of_latent[places] = prob
    return xr.DataArray(of_latent, dims="latent", coords={"latent": tree["posterior"]["latent"].values})


def worst_convergence(table: pd.DataFrame, engine: str) -> tuple[float, float]:
    """The largest R-hat and the smallest ESS of an engine's gates in the inclusion table; groups stand for members."""
    rows = table[table.engine == engine]
    rows = rows[rows.members == rows.groupby("group").members.transform("max")]
    # One chain has no R-hat (NaN), and then there is no largest one.
    return float(rows.r_hat.max(skipna=False)), float(rows.ess.min())


def status(probability: float) -> str:
    """Whether a gate is on, off or undecided."""
    return "on" if probability >= ON else "off" if probability <= OFF else "undecided"


def disagreements(table: pd.DataFrame, engine: str) -> pd.DataFrame:
    """The rows of an inclusion table about which a sampler's chains disagree so that it matters.

    R-hat says that chains differ, also about a gate of .005. It matters where one chain alone would have another
    answer: on, off or undecided. Groups stand for their members.
    """
    rows = table[(table.engine == engine) & (table.r_hat > LARGEST_GATE_R_HAT)]
    rows = rows[rows.members == table[table.engine == engine].groupby("group").members.transform("max").loc[rows.index]]
    differ = [status(low) != status(high) for low, high in zip(rows.lowest, rows.highest, strict=True)]
    return rows[np.array(differ, bool) & (rows.highest - rows.lowest > APART).to_numpy()]


def log_joint_r_hat(tree: Fit | xr.DataTree) -> float:
    """R-hat of the log joint density: far above 1 where chains sit in modes of their own, gates alike or not."""
    return _statistic("rhat", as_tree(tree)["sample_stats"].to_dataset()["lp"].values)


def gate_diagnostics(tree: Fit | xr.DataTree) -> pd.DataFrame:
    """How a sampler's gates moved: a row per process.

    ``flips`` per 1,000 draws; ``lowest`` and ``highest``: the chains' probabilities, which should agree; ``r_hat`` and
    ``ess`` of the gate's conditional probability, whose mean is the reported inclusion probability (NaN where it is
    constant, and R-hat with one chain). With thinning, draws are the kept ones.
    """
    tree = as_tree(tree)
    gates, probs = gates_of(tree)
    frame = pd.DataFrame(index=pd.Index(list(processes(tree)), name="latent"))
    frame["flips"] = 1000 * (np.diff(gates, axis=1) != 0).mean((0, 1)) if gates.shape[1] > 1 else np.nan
    by_chain = probs.mean(1)
    frame["lowest"], frame["highest"] = by_chain.min(0), by_chain.max(0)
    columns = [probs[..., j] for j in range(len(frame))]
    frame["r_hat"] = [_statistic("rhat", p) if len(p) > 1 and _varies(p) else np.nan for p in columns]
    frame["ess"] = [_statistic("ess", p) if _varies(p) else np.nan for p in columns]
    return frame


def gate_vectors(tree: Fit | xr.DataTree, *, top: int = 10) -> pd.DataFrame:
    """The ``top`` most probable whole gate vectors: a column per process, then ``probability`` and ``mcse``."""
    tree = as_tree(tree)
    gates, _ = gates_of(tree)
    vectors, code = np.unique(gates.reshape(-1, gates.shape[-1]), axis=0, return_inverse=True)
    code = code.reshape(gates.shape[:2])
    order = np.argsort(-np.bincount(code.ravel()), kind="stable")[:top]
    frame = pd.DataFrame(vectors[order].astype(int), columns=list(processes(tree)))
    return frame.assign(**_frequencies([code == k for k in order]))


def num_active(tree: Fit | xr.DataTree) -> pd.DataFrame:
    """The posterior of the number of active processes: ``probability`` and ``mcse`` of 0 to all of them."""
    gates, _ = gates_of(as_tree(tree))
    counts, numbers = gates.sum(-1), range(gates.shape[-1] + 1)
    index = pd.Index(numbers, name="active latents")
    return pd.DataFrame(_frequencies([counts == k for k in numbers]), index=index)


def gates_of(tree: xr.DataTree) -> tuple[Int[np.ndarray, "chain draw gate"], Float[np.ndarray, "chain draw gate"]]:
    """Gates, one for each of ``processes``, and the probabilities with which they were drawn."""
    first = _first(tree)
    gates = tree["posterior"]["b"].transpose("chain", "draw", "latent").values[..., first]
    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else xr.Dataset()
    return gates, (stats["gate_prob"].values[..., first] if "gate_prob" in stats else gates.astype(float))


def _first(tree: xr.DataTree) -> list[int]:
    """The first latent of each process."""
    return [places[0] for places in processes(tree).values()]


def _frequencies(events: list[np.ndarray]) -> dict[str, list[float]]:
    """The frequency of each event (chain, draw) and its Monte Carlo error."""
    mcse = [_statistic("mcse", event.astype(float)) if _varies(event) else np.nan for event in events]
    return {"probability": [float(event.mean()) for event in events], "mcse": mcse}


def _rows(engine: str, tree: xr.DataTree) -> list[dict[str, Any]]:
    """The table's rows of one tree: latents, then groups of equal covariance."""
    constant, first = tree["constant_data"].to_dataset(), _first(tree)
    names = list(processes(tree))
    gates, probs = gates_of(tree)
    kept = ("prior_inclusion_prob", "covariance_group", "prior_of_group")
    prior, group, of_group = (constant[name].values[first] for name in kept)
    independent = tree.attrs.get("engine") in OF_A_FAMILY
    rows = [
        {"latent": name, "members": 1, "group": int(group[j]), "prior": float(prior[j])}
        | _estimates(probs[..., j], gates[..., j], independent)
        for j, name in enumerate(names)
    ]
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        if len(members) == 1:
            continue
        any_on = gates[..., members].max(-1)
        probability = any_on.astype(float)
        if independent:  # q's gates
            probability = np.full(any_on.shape, 1 - (1 - probs[0, 0, members]).prod())
        label = " or ".join(names[j] for j in members)
        while label in {row["latent"] for row in rows}:  # a latent's own name may read so
            label = f"({label})"
        row = {"latent": label, "members": len(members), "group": int(number)}
        row["prior"] = float(of_group[members[0]])
        rows.append(row | _estimates(probability, any_on, independent))
    return [row | {"engine": engine} for row in rows]


def _estimates(prob: np.ndarray, gate: np.ndarray, independent: bool) -> dict[str, float]:
    """The probability, its error, and the gate's R-hat and ESS, from draws (chain, draw) of both."""
    by_chain = prob.mean(1)
    probability = {"probability": float(prob.mean()), "lowest": float(by_chain.min()), "highest": float(by_chain.max())}
    if independent or gate.shape[1] < FEWEST_DRAWS:
        return probability | dict.fromkeys(("mcse", "r_hat", "ess"), np.nan)
    gate = gate.astype(float)
    if len(gate) == 1:
        r_hat = np.nan
    elif not _varies(gate):
        r_hat = 1.0
    else:  # infinite where each chain sits still, and not all at the same value
        r_hat = np.inf if (gate.min(1) == gate.max(1)).all() else _statistic("rhat", gate)
    mcse = _statistic("mcse", prob) if _varies(prob) else 0.0
    return probability | {"mcse": mcse, "r_hat": r_hat, "ess": _statistic("ess", gate) if _varies(gate) else np.nan}


def _varies(draws: np.ndarray) -> bool:
    """Whether draws (chain, draw) tell of an error: they differ, and are enough."""
    return bool(draws.min() < draws.max()) and draws.shape[1] >= FEWEST_DRAWS


def _statistic(name: str, draws: np.ndarray) -> float:
    """ArviZ's "rhat", "ess" or "mcse" of draws (chain, draw)."""
    from arviz_stats.base import array_stats

    with np.errstate(divide="ignore", invalid="ignore"):
        return float(getattr(array_stats, name)(draws, chain_axis=0, draw_axis=1))
