"""What to do with the answer: how it moves with the prior, and a smaller model."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import betaln

from alps_ppl.diagnostics import gates_of, inclusion_table
from alps_ppl.model import ALPS, in_range


def inclusion_sensitivity(
    tree: xr.DataTree, inclusion_probs: Sequence[float] = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
) -> pd.DataFrame:
    """How the inclusion probabilities of a Gibbs run move with the prior: a row per prior and latent, without another.

    A draw is weighted by the ratio of the gates' priors: the new one, each gate on with ``inclusion_prob``, to the
    model's (its Beta with theta integrated out where it is learnt). Gates that are certain stay so. A row is
    ``reliable`` where both hold: ``ess``, Kish's effective number of weights times the slowest gate's share of
    effective draws, is 100 or more; and ``unseen`` is .05 at most. That bounds what the draws can't know of a gate that
    no draw turns: its other value has at most 3 / ess of the old posterior (the rule of three), times the change of its
    odds. Elsewhere, run again with that prior.
    """
    _check_tree(tree)
    if tree.attrs.get("engine") == "svi":
        raise ValueError(
            "tree: expected a Gibbs run's; SVI's q holds the gates apart, so that its draws can't be weighted into "
            "another prior's posterior; fit again with that prior"
        )
    if len(inclusion_probs) == 0:
        raise ValueError("inclusion_probs: expected at least one probability, got none")
    gates, _ = gates_of(tree)
    constant = tree["constant_data"].to_dataset()
    prior = constant["prior_inclusion_prob"].values
    first = np.unique(constant["gate"].values, return_index=True)[1]
    free = first[(prior[first] > 0) & (prior[first] < 1)]
    on = gates[..., free].sum(-1)
    if "inclusion_concentration" in constant:
        a, b = constant["inclusion_concentration"].values
        log_old = betaln(a + on, b + len(free) - on)
        old_odds = np.full(len(prior), (a + on.mean()) / (b + max(len(free) - 1 - on.mean(), 0)))
    else:
        log_old = _log_bernoulli(gates[..., free], prior[free])
        old_odds = np.clip(prior, 1e-300, None) / np.clip(1 - prior, 1e-300, None)
    slowest = inclusion_table(tree).query("members == 1").ess.min()
    share = 1.0 if np.isnan(slowest) else min(1.0, slowest / on.size)
    frames = []
    for value in inclusion_probs:
        prob = float(in_range("inclusion_probs", value, 1e-6, 1 - 1e-6))
        log_weight = _log_bernoulli(gates[..., free], np.full(len(free), prob)) - log_old
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        ess = share / (weight**2).sum()
        change = prob / (1 - prob) / old_odds
        never, always = (gates == 0).all((0, 1)), (gates == 1).all((0, 1))
        certain = (prior == 0) | (prior == 1)
        turned = np.where(never, change, np.where(always, 1 / np.maximum(change, 1e-300), 0.0))
        unseen = np.where(certain, 0.0, np.minimum(1.0, 3 / (share * on.size) * turned))
        frames.append(
            pd.DataFrame(
                {
                    "inclusion_prob": prob,
                    "latent": tree["posterior"]["latent"].to_numpy().astype(str),
                    "probability": (weight[..., None] * gates).sum((0, 1)),
                    "ess": ess,
                    "unseen": unseen,
                    "reliable": (ess >= 100) & (unseen <= 0.05),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def prune(model: ALPS, tree: xr.DataTree, *, threshold: float = 0.5) -> ALPS:
    """The model without the latents whose inclusion probability is below ``threshold``, to be fitted again.

    Of latents with equal covariances, which the data can't tell apart, the likeliest stays where the group as a whole
    reaches the threshold and none of its members does. Everything else of the model stays; names, not places, say
    what is what. ``alps.log_predictive_density`` of both fits at held-out cells says what was lost.
    """
    in_range("threshold", threshold, 0.0, 1.0)
    _check_tree(tree)
    names = [str(name) for name in tree["posterior"]["latent"].to_numpy()]
    if names != list(model.latents):
        raise ValueError(f"tree: expected the latents of the model, {list(model.latents)}, got {names}")
    table = inclusion_table(tree)
    single, groups = table[table.members == 1], table[table.members > 1]
    kept = set(single[single.probability >= threshold].latent)
    for group in groups[groups.probability >= threshold].group:
        members = single[single.group == group]
        if not kept & set(members.latent):
            kept.add(members.latent[members.probability.idxmax()])
    if not kept:
        raise ValueError(
            f"threshold: no latent reaches {threshold:g}; the largest probability is {single.probability.max():.3f}"
        )
    return model.subset([name for name in names if name in kept])


def _check_tree(tree: xr.DataTree) -> None:
    if not isinstance(tree, xr.DataTree) or not {"posterior", "constant_data"} <= set(tree.children):
        raise TypeError(f"tree: expected one result of to_datatree, got {type(tree).__name__}")


def _log_bernoulli(gates: np.ndarray, prob: np.ndarray) -> np.ndarray:
    return np.where(gates == 1, np.log(prob), np.log1p(-prob)).sum(-1)
