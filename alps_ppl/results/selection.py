"""What to do with the answer: how it moves with the prior, and a smaller model."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float, Int
from scipy.special import betaln

from alps_ppl import checks
from alps_ppl.model.alps import ALPS
from alps_ppl.results.fits import OF_A_FAMILY, Fit, check_fit
from alps_ppl.results.inclusion import gates_of, inclusion_table
from alps_ppl.results.trees import as_tree, processes

# Where 1 - p is 0 or p is, odds are divided by this instead.
TINY = 1e-300


def inclusion_sensitivity(
    tree: Fit | xr.DataTree, inclusion_probs: Sequence[float] = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8)
) -> pd.DataFrame:
    """How a Gibbs run's inclusion probabilities move with the prior: a row per prior and latent, without another run.

    ``tree`` is a fit or its tree. A draw is weighted by the ratio of the gates' priors: the new one, each gate on with
    ``inclusion_prob``, to the model's (its Beta with theta integrated out where it is learnt). Gates that are certain
    stay so. A row is ``reliable`` where both hold: ``ess``, Kish's effective number of weights times the slowest gate's
    share of effective draws, is 100 or more; and ``unseen`` is .05 at most. ``unseen`` bounds what the draws can't know
    of a gate that no draw turns: its other value has at most 3 / ess of the old posterior (the rule of three), times
    the change of its odds. Where a row isn't reliable, run again with that prior.

    Raises a ValueError for SVI's gates, which q holds apart: its draws can't be weighted into another posterior.
    """
    tree = as_tree(tree, groups=("posterior", "constant_data"))
    if tree.attrs.get("engine") in OF_A_FAMILY:
        raise ValueError(
            "tree: expected a Gibbs run's; SVI's and VB's q hold the gates apart, so that their draws can't be "
            "weighted into another prior's posterior; fit again with that prior"
        )
    inclusion_probs = np.atleast_1d(checks.numbers("inclusion_probs", inclusion_probs)).tolist()
    if len(inclusion_probs) == 0:
        raise ValueError("inclusion_probs: expected at least one probability, got none")
    gates, _ = gates_of(tree)
    constant = tree["constant_data"].to_dataset()
    names = processes(tree)
    prior = constant["prior_inclusion_prob"].values[[places[0] for places in names.values()]]
    free = np.flatnonzero((prior > 0) & (prior < 1))
    log_old, old_odds = _old_prior(gates[..., free], prior, free, constant)
    slowest = inclusion_table(tree).query("members == 1").ess.min()
    num_draws = gates.shape[0] * gates.shape[1]
    share = 1.0 if np.isnan(slowest) else min(1.0, slowest / num_draws)
    never, always = (gates == 0).all((0, 1)), (gates == 1).all((0, 1))
    frames = []
    for value in inclusion_probs:
        prob = checks.in_range("inclusion_probs", value, 1e-6, 1 - 1e-6)
        log_weight = _log_bernoulli(gates[..., free], np.full(len(free), prob)) - log_old
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        ess = share / (weight**2).sum()
        change = prob / (1 - prob) / old_odds
        turned = np.where(never, change, np.where(always, 1 / np.maximum(change, TINY), 0.0))
        certain = (prior == 0) | (prior == 1)
        unseen = np.where(certain, 0.0, np.minimum(1.0, 3 / (share * num_draws) * turned))
        frame = pd.DataFrame({"inclusion_prob": prob, "latent": list(names)})
        frame["probability"] = (weight[..., None] * gates).sum((0, 1))
        reliable = (ess >= 100) & (unseen <= 0.05)
        frames.append(frame.assign(ess=ess, unseen=unseen, reliable=reliable))
    return pd.concat(frames, ignore_index=True)


def prune(fit: Fit, *, threshold: float = 0.5) -> ALPS:
    """The fit's model without the latents whose inclusion probability is below ``threshold``, to be fitted again.

    Of latents with equal covariances, which the data can't tell apart, the likeliest stays where the group as a whole
    reaches the threshold and none of its members does. Everything else of the model stays.
    ``alps.log_predictive_density`` of both fits at held-out cells says what was lost.

    Raises a ValueError where no latent would stay.
    """
    checks.in_range("threshold", threshold, 0.0, 1.0)
    check_fit(fit)
    table = inclusion_table(fit)
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
    model = fit.model
    return model.subset(
        [n for n, gate in zip(model.latents, model.gate_of, strict=True) if model.gate_names[gate] in kept]
    )


def _old_prior(
    gates: Int[np.ndarray, "chain draw free"],
    prior: Float[np.ndarray, " latent"],
    free: Int[np.ndarray, " free"],
    constant: xr.Dataset,
) -> tuple[Float[np.ndarray, "chain draw"], Float[np.ndarray, " latent"]]:
    """The draws' log prior under the model that was fitted, and each gate's prior odds given the other gates."""
    if "inclusion_concentration" not in constant:
        return _log_bernoulli(gates, prior[free]), np.clip(prior, TINY, None) / np.clip(1 - prior, TINY, None)
    a, b = constant["inclusion_concentration"].values
    on = gates.sum(-1)
    odds = (a + on.mean()) / (b + max(len(free) - 1 - on.mean(), 0))
    return betaln(a + on, b + len(free) - on), np.full(len(prior), odds)


def _log_bernoulli(gates: np.ndarray, prob: np.ndarray) -> np.ndarray:
    return np.where(gates == 1, np.log(prob), np.log1p(-prob)).sum(-1)
