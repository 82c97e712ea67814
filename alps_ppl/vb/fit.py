"""``fit_vb``: the mean-field family whose factors are conditional on their gate, by coordinate ascent."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jaxtyping import Array
from tqdm.auto import tqdm

from alps_ppl import checks
from alps_ppl.gibbs.features import Features, latent_features
from alps_ppl.gibbs.statespace import markov_terms
from alps_ppl.gibbs.statistics import Statistics, statistics
from alps_ppl.gibbs.streaming import SummedRows
from alps_ppl.model.alps import ALPS
from alps_ppl.vb.evidence import refined
from alps_ppl.vb.family import groups, likelihood
from alps_ppl.vb.posterior import VBFit, draws
from alps_ppl.vb.search import search

NUM_DRAWS = 1000
# As many features have all latents together, and as many numbers the statistics at all points of a memory's grid.
MOST_FEATURES, MOST_NUMBERS = 1_000, 50_000_000
# Of so many times a rough latent's features cost less than the sampler's states.
FEW_TIMES = 300
# What only the sampler takes, by the argument of ``ALPS``.
REFUSED = {
    "covariance_bounds": "learnt parameters",
    "covariance_ranges": "unknown scales",
    "noise_df": "Student's noise",
}


def fit_vb(
    model: ALPS,
    inputs: Any,
    y: Any = None,
    *,
    rng_key: Array,
    num_starts: int = 4,
    num_sweeps: int = 500,
    num_rounds: int = 10,
    tolerance: float = 1e-4,
    progress_bar: bool = True,
) -> VBFit:
    """Fit q(b_g) q(w_g | b_g) prod_i q(h_ig | b_g) to GP-ALPS by coordinate ascent (docs/vb.md).

    Every update is closed form, so that the bound is that of the discrete model and never falls. At the end the gates'
    log odds are those of the better q(b_g, w_g, h_g), in which the weights and loadings of a gate aren't independent,
    by importance sampling. It approximates: gates are independent. Processes that explain something only together, or
    that stand for one another, are where it differs from the sampler.

    Parameters
    ----------
    model
        The ``ALPS``; noise is fixed or has an InverseGamma prior.
    inputs, y
        (time,) or (time, column), and (time, output) with NaN for a missing cell; nothing is rescaled. Of a table that
        is too long to hold, ``sum_rows``' result in the place of both.
    rng_key
        A JAX key.
    num_starts
        Ascents from loadings drawn from their prior, of which the best goes on.
    num_sweeps
        Of an ascent at most.
    num_rounds
        Rounds of moves between modes at most: a gate or two are opened, or shut, or change places. 0: none.
    tolerance
        An ascent ends where a sweep raises the bound by less, in nats.
    progress_bar
        Whether to show one.

    Raises a ValueError or TypeError for bad input, and for what only the sampler takes: unknown scales, Student's
    noise, and latents that need more than 1,000 features.
    """
    check_settings(model, num_starts=num_starts, num_sweeps=num_sweeps, num_rounds=num_rounds, tolerance=tolerance)
    checks.prng_key(rng_key)
    inputs, y, features, sums = _of_rows(model, inputs, y)
    data, by_size = likelihood(sums), groups(model, features.layout)
    search_key, draw_key = random.split(rng_key)
    with tqdm(total=num_starts + num_rounds, desc="VB", disable=not progress_bar, unit="step") as bar:
        ascent, start_elbos, num_moves = search(
            model,
            data,
            by_size,
            search_key,
            num_starts=num_starts,
            num_sweeps=num_sweeps,
            tolerance=tolerance,
            num_rounds=num_rounds,
            step_done=bar.update,
        )
    if not np.isfinite(ascent.bound):
        raise ValueError("y: the bound isn't finite at any start; centre and scale the outputs, or use fit_gibbs")
    most = len(ascent.bounds)
    last = refined(model, data, by_size, ascent.q, random.fold_in(draw_key, 1), most)
    found = draws(model, data, by_size, last, draw_key, NUM_DRAWS)
    sites = {
        name: jnp.asarray(value[None], None if value.dtype.kind == "i" else y.dtype) for name, value in found.items()
    }
    weights, stats = sites.pop("weights"), {"gate_prob": sites.pop("gate_prob")}
    elbos = np.asarray(ascent.bounds)[: int(ascent.num_sweeps)]
    return VBFit(model, inputs, y, features, sites, weights, stats, ascent.bound, elbos, start_elbos, num_moves)


def why_not(model: ALPS, num_times: int) -> str | None:
    """Why the sampler answers sooner than ``fit_vb``, as the rest of "it takes no ..."; None where it doesn't."""
    try:
        check_settings(model)
    except ValueError as error:
        return REFUSED.get(str(error).partition(":")[0], "noise with such a prior")
    rough = any(markov_terms(covariance)[0] for covariance in model.covariances)
    return f"rough processes of {num_times:,} times" if rough and num_times > FEW_TIMES else None


def check_settings(
    model: ALPS,
    *,
    num_starts: Any = 4,
    num_sweeps: Any = 500,
    num_rounds: Any = 10,
    tolerance: Any = 1e-4,
) -> None:
    """A ValueError or TypeError for what ``fit_vb`` would refuse of a model and of its settings."""
    for name, value, least in (
        ("num_starts", num_starts, 1),
        ("num_sweeps", num_sweeps, 2),
        ("num_rounds", num_rounds, 0),
    ):
        checks.whole_number(name, value, least=least)
    checks.in_range("tolerance", tolerance, 0.0)
    checks.instance("model", model, ALPS, "an alps_ppl.ALPS")
    if model.learns_noise and not isinstance(model.noise_variance, dist.InverseGamma):
        raise ValueError(
            "noise_variance: fit_vb needs an InverseGamma prior (or fixed variances), got "
            f"{type(model.noise_variance).__name__}"
        )
    lacking = model.covariance_bounds, model.unknown_scales, model.noise_df
    for (name, what), there in zip(REFUSED.items(), lacking, strict=True):
        if there:
            raise ValueError(f"{name}: fit_vb takes no {what}; use fit_gibbs, or leave it out")


def _of_rows(model: ALPS, inputs: Any, y: Any) -> tuple[Array, Array, Features, Statistics]:
    if isinstance(inputs, SummedRows):
        inputs.check_model(model, y)
        return inputs.inputs, inputs.y, inputs.features, inputs.stats
    inputs, y = model.check_data(inputs, y)
    features = _features(model, inputs, y)
    return inputs, y, features, statistics(features, y, model.private_memory, few_shapes=True)


def _features(model: ALPS, inputs: Array, y: Array) -> Features:
    """All latents' features, rough ones' too; a ValueError where they are too many."""
    advice = "use fit_gibbs, whose rough latents are Markov states, or fewer rows"
    try:
        features = latent_features(model.covariances, inputs, names=model.latents, max_rank=MOST_FEATURES, states=False)
    except ValueError as error:
        if "rank" not in str(error) and "features" not in str(error):
            raise
        what = str(error).partition(":")[0]  # latent 'rough'
        raise ValueError(
            f"{what}: it needs more than {MOST_FEATURES:,} features on {len(inputs):,} times, too many for fit_vb; "
            f"{advice}"
        ) from None
    number = features.num_features
    grid = 1 if model.private_memory is None else len(np.asarray(model.private_memory.share))
    observed = ~np.isnan(np.asarray(y))
    patterns = 1 if (observed == observed[:, :1]).all() else observed.shape[1]
    if number > MOST_FEATURES or grid * patterns * number**2 > MOST_NUMBERS:
        raise ValueError(
            f"model: its latents have {number:,} features on {len(inputs):,} times, too many for fit_vb; {advice}"
        )
    return features
