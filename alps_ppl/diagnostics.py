"""ArviZ trees and the table of inclusion probabilities, for either engine."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
import xarray as xr
from numpyro.infer import MCMC, Predictive, log_likelihood

from alps_ppl.covariances import equal_covariance_groups
from alps_ppl.model import ALPS, short
from alps_ppl.prediction import check_posterior, samples_of, svi_sites, time_coordinate
from alps_ppl.svi import SVIFit

# From here on chains disagree.
LARGEST_GATE_R_HAT, LARGEST_LOG_JOINT_R_HAT = 1.01, 1.1
DIMS = {
    "b": ["latent"],
    "x": ["latent", "time"],
    "H": ["output", "latent"],
    "noise_variance": ["output"],
    "inclusion_prob": [],
    "y": ["time", "output"],
    "gate_prob": ["latent"],
    "prior_inclusion_prob": ["latent"],
    "covariance_group": ["latent"],
    "prior_of_group": ["latent"],
    "gate": ["latent"],
}


def to_datatree(posterior: SVIFit | MCMC, model: ALPS, inputs: Any, y: Any, *, num_draws: int = 1000) -> xr.DataTree:
    """The posterior as an ArviZ DataTree with named coordinates ``latent``, ``output`` and ``time``.

    Groups: posterior (b, H, x and noise_variance where it is learnt), sample_stats (``gate_prob``: the
    probability with which each gate was drawn, or rho for SVI; ``lp``), posterior_predictive, log_likelihood,
    observed_data, constant_data. An SVI fit gives one chain of ``num_draws`` independent draws; its x are
    drawn from the marginals, so a draw isn't a path. Draws without x (``ALPSGibbs(keep_latents=False)``) give no
    posterior_predictive and no log_likelihood: use ``predict``. With missing cells log_likelihood runs over
    ``cell``, the observed ones only. The tree's ``engine`` attribute is "svi" or "gibbs".
    """
    from arviz_base import from_dict

    model, inputs, y = check_posterior(posterior, model, inputs, y, num_draws)
    if isinstance(posterior, SVIFit):
        engine = "svi"
        sites = svi_sites(posterior, inputs, num_draws, names=("x", "b", "H", "noise_variance", "inclusion_prob"))
        sites = {name: value[None] for name, value in sites.items()}
        stats: dict[str, Any] = {
            "gate_prob": np.broadcast_to(posterior.inclusion_prob, (1, num_draws, len(model.latents)))
        }
    else:
        engine = "gibbs"
        sites = dict(samples_of(posterior, group_by_chain=True))
        extra = posterior.get_extra_fields(group_by_chain=True)
        stats = {"gate_prob": model.gates(extra["gate_prob"])} if "gate_prob" in extra else {}
        if "potential_energy" in extra:
            stats["lp"] = -extra["potential_energy"]
    for name, value in sites.items():
        if not np.isfinite(np.asarray(value)).all():
            raise ValueError(
                f"posterior: the draws of {name} hold values that aren't finite; fit again in 64-bit "
                "(numpyro.enable_x64()), or with y and mixing_variance on the same scale"
            )
    observed = ~np.isnan(np.asarray(y))
    group = np.array(equal_covariance_groups(model.covariances))
    groups = {
        "posterior": sites | {"b": model.gates(sites["b"])},
        "sample_stats": stats,
        **(_of_y(model, sites, inputs, y) if "x" in sites else {}),
        "observed_data": {"y": y},
        "constant_data": {
            "prior_inclusion_prob": model.inclusion_prob,
            "covariance_group": group,
            "prior_of_group": np.array([model.prior_any(np.flatnonzero(group == g)) for g in group]),
            "gate": model.gate_of,
            **_inclusion_prior(model),
        },
    }
    time = time_coordinate(inputs)
    tree = from_dict(
        jax.tree.map(np.asarray, groups),
        dims=DIMS,
        coords={"latent": list(model.latents), "output": list(model.outputs), "time": time["time"]},
    )
    if "inputs" in time:
        tree["constant_data"]["inputs"] = xr.DataArray(time["inputs"][1], dims=time["inputs"][0])
    if "log_likelihood" in tree.children and not observed.all():
        tree["log_likelihood"] = xr.DataTree(_observed_cells(tree["log_likelihood"].to_dataset(), observed))
    tree.attrs["engine"] = engine
    return tree


def _inclusion_prior(model: ALPS) -> dict[str, np.ndarray]:
    prior = model.inclusion_prior
    return {} if prior is None else {"inclusion_concentration": np.array([prior.concentration1, prior.concentration0])}


def _of_y(model: ALPS, sites: dict[str, Any], inputs, y) -> dict[str, dict[str, Any]]:
    """Draws of y given the sites, (chain, draw, time, output), and the log likelihood of its cells."""
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in sites.items() if name in DIMS}
    shape = (*sites["b"].shape[:2], *y.shape)
    predictive = Predictive(model, flat, return_sites=["y"])
    y_draws = jax.jit(predictive)(jax.random.key(0), inputs)["y"]
    likelihood = jax.jit(lambda samples: log_likelihood(model, samples, inputs, y)["y"])(flat)
    return {"posterior_predictive": {"y": y_draws.reshape(shape)}, "log_likelihood": {"y": likelihood.reshape(shape)}}


def _observed_cells(dataset: xr.Dataset, observed: np.ndarray) -> xr.Dataset:
    """(time, output) as one dimension ``cell`` that leaves the missing cells out: no likelihood, no zero either."""
    row, column = np.nonzero(observed)
    cells = dataset.isel(time=xr.DataArray(row, dims="cell"), output=xr.DataArray(column, dims="cell"))
    return cells.rename({"time": "cell_time", "output": "cell_output"})


def inclusion_table(trees: xr.DataTree | Mapping[str, xr.DataTree]) -> pd.DataFrame:
    """Per latent and engine: the inclusion probability, its Monte Carlo error, and the gate's R-hat and ESS.

    ``trees`` are ``to_datatree``'s, by the engine's name, or one such tree. The probability is the mean of
    ``gate_prob`` where the tree has it: rho for SVI (no Monte Carlo error), and for Gibbs the average of the
    probabilities with which the gate was drawn. R-hat and ESS are those of the gate itself; a gate that never moves
    in any chain has R-hat 1 and no ESS. One chain can't tell whether it converged: its R-hat is NaN. Fewer than
    four draws a chain tell nothing. Latents of equal covariance are followed by a row for the group, "A or B": whether
    at least one of them is on, which the data can tell where they can't tell which. ``members`` is how many latents
    a row is about (1: a latent itself), ``group`` the number that latents of equal covariance share.
    """
    rows = [
        row
        for engine, tree in by_engine(trees, groups=("posterior", "constant_data")).items()
        for row in _engine_rows(engine, tree)
    ]
    columns = ["latent", "engine", "probability", "mcse", "r_hat", "ess", "prior", "members", "group"]
    return pd.DataFrame(rows, columns=columns)


def by_engine(
    trees: xr.DataTree | Mapping[str, xr.DataTree], *, groups: Sequence[str] = ("posterior",), needs: str = "b"
) -> dict[str, xr.DataTree]:
    """Trees by engine, from one tree or several; each must have these groups and draws of ``needs``."""
    named: Any = {trees.attrs.get("engine", "posterior"): trees} if isinstance(trees, xr.DataTree) else trees
    if not isinstance(named, Mapping):
        raise TypeError(f"trees: expected to_datatree's result, or several by engine, got {type(trees).__name__}")
    if not named:
        raise ValueError("trees: expected at least one tree, got none")
    for engine, tree in named.items():
        if not isinstance(tree, xr.DataTree) or not set(groups) <= set(tree.children):
            raise TypeError(f"trees[{engine!r}]: expected to_datatree's result, got {short(tree)}")
        if needs not in tree["posterior"]:
            raise ValueError(
                f"trees[{engine!r}]: expected draws of {needs}, got {sorted(map(str, tree['posterior'].data_vars))}; "
                "ALPSGibbs(keep_latents=False) leaves x out"
            )
    return dict(named)


def inclusion_probability(tree: xr.DataTree) -> xr.DataArray:
    """The reported probability of each latent's gate, (latent,): the mean of ``gate_prob``, or of b without it."""
    _, probs = gates_of(tree)
    return xr.DataArray(probs.mean((0, 1)), dims="latent", coords={"latent": tree["posterior"]["latent"].values})


def worst_convergence(table: pd.DataFrame, engine: str) -> tuple[float, float]:
    """The largest R-hat and the smallest ESS of an engine's gates; groups stand for their members."""
    rows = table[table.engine == engine]
    rows = rows[rows.members == rows.groupby("group").members.transform("max")]
    # One chain has no R-hat (NaN), and then there is no largest one.
    return float(rows.r_hat.max(skipna=False)), float(rows.ess.min())


def log_joint_r_hat(tree: xr.DataTree) -> float:
    """R-hat of the log joint density: far above 1 where chains sit in modes of their own, gates alike or not."""
    from arviz_stats.base import array_stats

    return float(array_stats.rhat(tree["sample_stats"].to_dataset()["lp"].values, chain_axis=0, draw_axis=1))


def gate_diagnostics(tree: xr.DataTree) -> pd.DataFrame:
    """How a sampler's gates moved: a row per latent.

    ``flips`` per 1,000 draws; ``lowest`` and ``highest``: the chains' probabilities, which should agree; ``r_hat`` and
    ``ess`` of the gate's conditional probability, whose mean is the reported inclusion probability (NaN where it is
    constant, and R-hat with one chain). With thinning, draws are the kept ones.
    """
    from arviz_stats.base import array_stats

    gates, probs = gates_of(tree)
    frame = pd.DataFrame(index=pd.Index(tree["posterior"]["latent"].values, name="latent"))
    frame["flips"] = 1000 * (np.diff(gates, axis=1) != 0).mean((0, 1)) if gates.shape[1] > 1 else np.nan
    by_chain = probs.mean(1)
    frame["lowest"], frame["highest"] = by_chain.min(0), by_chain.max(0)
    moving = [np.ptp(p) > 0 and gates.shape[1] > 3 for p in probs.T]
    stats = {"r_hat": array_stats.rhat, "ess": array_stats.ess}
    for name, statistic in stats.items():
        known = [moves and not (name == "r_hat" and len(gates) == 1) for moves in moving]
        frame[name] = [
            float(statistic(probs[..., j], chain_axis=0, draw_axis=1)) if known[j] else np.nan
            for j in range(len(frame))
        ]
    return frame


def gate_vectors(tree: xr.DataTree, *, top: int = 10) -> pd.DataFrame:
    """The ``top`` most probable whole gate vectors: a column per latent, then ``probability`` and ``mcse``."""
    gates, _ = gates_of(tree)
    vectors, code = np.unique(gates.reshape(-1, gates.shape[-1]), axis=0, return_inverse=True)
    code = code.reshape(gates.shape[:2])
    order = np.argsort(-np.bincount(code.ravel()), kind="stable")[:top]
    frame = pd.DataFrame(vectors[order].astype(int), columns=tree["posterior"]["latent"].to_numpy().astype(str))
    return frame.assign(**_frequencies([code == k for k in order]))


def num_active(tree: xr.DataTree) -> pd.DataFrame:
    """The posterior of the number of active latents: ``probability`` and ``mcse`` of 0 to all of them."""
    gates, _ = gates_of(tree)
    counts = gates.sum(-1)
    numbers = range(gates.shape[-1] + 1)
    index = pd.Index(numbers, name="active latents")
    return pd.DataFrame(_frequencies([counts == k for k in numbers]), index=index)


def gates_of(tree: xr.DataTree) -> tuple[np.ndarray, np.ndarray]:
    """Gates and the probabilities with which they were drawn, (chain, draw, latent) each."""
    gates = tree["posterior"]["b"].transpose("chain", "draw", "latent").values
    stats = tree["sample_stats"].to_dataset() if "sample_stats" in tree.children else xr.Dataset()
    return gates, (stats["gate_prob"].values if "gate_prob" in stats else gates.astype(float))


def _frequencies(events: list[np.ndarray]) -> dict[str, list[float]]:
    """The frequency of each event (chain, draw) and its Monte Carlo error."""
    from arviz_stats.base import array_stats

    mcse = [
        float(array_stats.mcse(event.astype(float), chain_axis=0, draw_axis=1))
        if event.min() < event.max() and event.shape[1] > 3
        else np.nan
        for event in events
    ]
    return {"probability": [float(event.mean()) for event in events], "mcse": mcse}


def compare_engines(trees: Mapping[str, xr.DataTree], predictions: Mapping[str, xr.Dataset]) -> pd.DataFrame:
    """Two posteriors of one model side by side: inclusion probabilities, predictions, the mixing matrix.

    ``trees`` are two of ``to_datatree``'s and ``predictions`` two of ``predict``'s at the same inputs, by engine.
    A row per ``quantity`` and ``of`` (a latent, a group, an output, or output and latent), with a column for each
    engine, their ``difference`` (first less second) and its Monte Carlo error ``mcse`` (NaN where neither has one).
    "predictive mean" has the root mean square of the difference over times, and "predictive sd" the difference of the
    mean sds, both in the second engine's mean sds. "H mean" and "H sd" are of latents that both have on (above 1/2),
    signs aligned, in H's unit, over the draws in which they are.
    """
    if len(trees) != 2 or list(trees) != list(predictions):
        raise ValueError(
            f"trees, predictions: expected two engines, the same in both, got {list(trees)} and {list(predictions)}"
        )
    first, second = trees
    a, b = predictions.values()
    times = a.sizes["time"] == b.sizes["time"] and np.array_equal(a["time"], b["time"])
    if not times or list(a["output"].values) != list(b["output"].values) or a.attrs != b.attrs:
        raise ValueError(
            "predictions: expected predict's results at the same inputs, with the same outputs, interval and "
            f"include_noise, got {dict(a.sizes)} {a.attrs} and {dict(b.sizes)} {b.attrs}"
        )
    table = inclusion_table(trees)
    wide = table.pivot(index="latent", columns="engine", values=["probability", "mcse"])
    rows = [
        {"quantity": "inclusion probability", "of": latent, first: row["probability", first]}
        | {second: row["probability", second], "mcse": _either(row["mcse"].to_numpy(float))}
        for latent, row in wide.loc[list(dict.fromkeys(table.latent))].iterrows()
    ]
    sd = b["sd"].mean("time")
    rms = ((a["mean"] - b["mean"]) ** 2).mean("time") ** 0.5 / sd
    for output in b["output"].values.astype(str):
        rows.append({"quantity": "predictive mean", "of": output, "difference": float(rms.sel(output=output))})
        mean_sd = {name: float((p["sd"].mean("time") / sd).sel(output=output)) for name, p in predictions.items()}
        rows.append({"quantity": "predictive sd", "of": output} | mean_sd)
    posteriors = align_engines(trees)
    on = [inclusion_probability(tree) > 0.5 for tree in trees.values()]
    for latent in on[0]["latent"].values[(on[0] & on[1]).values]:
        for output in b["output"].values.astype(str):
            H = {
                name: p["H"].sel(latent=latent, output=output).where(p["b"].sel(latent=latent) == 1)
                for name, p in posteriors.items()
            }
            for quantity, statistic in (("H mean", "mean"), ("H sd", "std")):
                values = {name: float(getattr(h, statistic)()) for name, h in H.items()}
                rows.append({"quantity": quantity, "of": f"{output}, {latent}"} | values)
    frame = pd.DataFrame(rows, columns=["quantity", "of", first, second, "difference", "mcse"])
    return frame.assign(difference=frame.difference.fillna(frame[first] - frame[second]))


def largest_differences(comparison: pd.DataFrame) -> dict[str, float]:
    """``compare_engines``'s largest difference, in size, of each quantity."""
    return comparison.difference.abs().groupby(comparison.quantity).max().to_dict()


def align_signs(posterior: xr.Dataset, reference: xr.DataArray | None = None) -> xr.Dataset:
    """A posterior whose draws of x_j and H_:j have the sign in which x_j agrees with ``reference`` (latent, time).

    (x_j, H_:j) and (-x_j, -H_:j) are equally probable, so raw means of H and their R-hat say nothing. Without a
    reference, a latent's draws agree with its first draw while it is on, and its largest mean loading is positive.
    """
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


def _either(mcse: np.ndarray) -> float:
    """The Monte Carlo error of a difference; NaN where neither side has one."""
    return float("nan") if np.isnan(mcse).all() else float(np.sqrt(np.nansum(mcse**2)))


def align_engines(trees: xr.DataTree | Mapping[str, xr.DataTree]) -> dict[str, xr.Dataset]:
    """The engines' posteriors with one sign for each latent: that in which it agrees with the first engine's mean."""
    posteriors = {engine: tree["posterior"].to_dataset() for engine, tree in by_engine(trees, needs="x").items()}
    reference = align_signs(next(iter(posteriors.values())))["x"].mean(("chain", "draw"))
    return {engine: align_signs(posterior, reference) for engine, posterior in posteriors.items()}


def _engine_rows(engine: str, tree: xr.DataTree) -> list[dict]:
    posterior, constant = tree["posterior"].to_dataset(), tree["constant_data"].to_dataset()
    names = [str(name) for name in posterior["latent"].values]
    gates, probs = gates_of(tree)
    prior, group = constant["prior_inclusion_prob"].values, constant["covariance_group"].values
    exact = tree.attrs.get("engine") == "svi"
    rows = [
        {"members": 1, "group": int(group[j])} | _row(name, engine, probs[..., j], gates[..., j], prior[j], exact)
        for j, name in enumerate(names)
    ]
    taken = set(names)
    for number in np.unique(group):
        members = np.flatnonzero(group == number)
        if len(members) > 1:
            any_on = gates[..., members].max(-1)
            # In q the gates are independent; one that members share counts once.
            once = members[np.unique(constant["gate"].values[members], return_index=True)[1]]
            none_on = 1 - probs[0, 0, once]
            probability = np.broadcast_to(1 - none_on.prod(), any_on.shape) if exact else any_on.astype(float)
            label = " or ".join(names[j] for j in members)
            while label in taken:  # a latent's own name may read so
                label = f"({label})"
            taken.add(label)
            row = _row(label, engine, probability, any_on, constant["prior_of_group"].values[members[0]], exact)
            rows.append({"members": len(members), "group": int(number)} | row)
    return rows


def _row(latent, engine, prob, gate, prior, exact: bool) -> dict:
    """``prob`` and ``gate`` are (chain, draw)."""
    from arviz_stats.base import array_stats

    row = {"latent": latent, "engine": engine, "probability": float(prob.mean()), "prior": float(prior)}
    num_chains, num_draws = gate.shape
    if exact or num_draws < 4:
        return {**row, "mcse": np.nan, "r_hat": np.nan, "ess": np.nan}
    constant = gate.min() == gate.max()
    gate = gate.astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        frozen = not constant and all(chain.min() == chain.max() for chain in gate)
        r_hat = (
            np.nan
            if num_chains == 1
            else 1.0
            if constant
            else np.inf
            if frozen
            else float(array_stats.rhat(gate, chain_axis=0, draw_axis=1))
        )
        ess = np.nan if constant else float(array_stats.ess(gate, chain_axis=0, draw_axis=1))
        mcse = 0.0 if np.ptp(prob) == 0 else float(array_stats.mcse(prob, chain_axis=0, draw_axis=1))
    return {**row, "mcse": mcse, "r_hat": r_hat, "ess": ess}
