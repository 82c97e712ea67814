"""Tables simulated in the shape of one, whose truth is known, and what a fit of one makes of it."""

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpyro.infer import Predictive, log_likelihood

from alps_ppl.app.many import FITS
from alps_ppl.model.alps import ALPS
from alps_ppl.model.memory import own_memories
from alps_ppl.results.calibration import INTERVAL, ranks
from alps_ppl.results.inclusion import inclusion_table
from alps_ppl.results.prediction import predictive, summarise
from alps_ppl.results.trees import tree_of
from alps_ppl.tables.data import Data

# Of a fit, for a rank: a chain's own neighbours say little more.
NUM_RANKED = 99
# Of a fit, for a band.
NUM_DRAWS = 400
SITES = ("b", "H", "x", "noise_variance", "memory", "noise_factor", "inclusion_prob")


class Shape(NamedTuple):
    """What tables are simulated like: a model, its times, and which cells a fit sees.

    ``is_prior``: whether all of the truth is from the model's prior. Then a table is fitted as it is, and ranks are
    uniform. Else each is centred and scaled by what is seen of it, as a file's table is.
    """

    model: ALPS
    inputs: Float[np.ndarray, "time *column"]
    seen: Bool[np.ndarray, "time output"]
    is_prior: bool


def simulate(shape: Shape, near: dict[str, Any], rng_key: Array, num: int) -> list[dict[str, np.ndarray]]:
    """The sites of ``num`` tables, y, f, and what each would be without white noise, ``noiseless`` (time, output).

    The program's own draws, at ``near`` (table, ...) for the sites that it has.
    """
    keys = jax.random.split(rng_key)
    near = {name: jnp.asarray(values) for name, values in near.items()}
    drawn = _draws(shape.model, jnp.asarray(shape.inputs), near, keys[0], num) | near
    drawn["noiseless"] = drawn["f"]
    if (memory := shape.model.private_memory) is not None:
        # A path given y and the rest, which has with them the joint distribution.
        draws = {name: drawn[name] for name in ("memory", "f", "y")} | {"s2": shape.model.noise_variances(drawn)}
        if (tails := shape.model.tails) is not None:
            draws["factors"] = jnp.asarray(tails.variance)[drawn["noise_factor"]]
        times = jnp.asarray(shape.inputs).reshape(len(shape.inputs))
        nothing = jnp.zeros(shape.seen.shape, times.dtype)
        paths, _ = own_memories(lambda one: one["f"] - one["y"], memory, times, nothing, times, draws, keys[1])
        drawn["noiseless"] = drawn["f"] + jnp.swapaxes(paths, 0, 1)
    tables = {name: np.asarray(values) for name, values in drawn.items()}
    return [{name: values[k] for name, values in tables.items()} for k in range(num)]


@partial(jax.jit, static_argnames="num")
def _draws(model: ALPS, inputs: Array, near: dict[str, Array], rng_key: Array, num: int) -> dict[str, Array]:
    names = [*SITES, *model.scale_sites, "f", "y"]
    return Predictive(model.program, near or None, num_samples=num, return_sites=names)(rng_key, inputs)


def found_rows(
    shape: Shape, name: str, table: dict[str, np.ndarray], engine: str, rng_key: Array, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """One row: the gates, their probabilities, how much of the truth the 90 % bands hold, and the truth's ranks."""
    begin = time.perf_counter()
    model = shape.model
    data = Data(shape.inputs, table["y"], outputs=list(model.outputs), held_out={"unseen": ~shape.seen})
    loc, scale = (0.0, 1.0) if shape.is_prior else (data.loc, data.scale)
    y, noiseless = ((table[part] - loc) / scale for part in ("y", "noiseless"))
    rows = data.train_rows
    fit = FITS[engine](
        model,
        shape.inputs[rows],
        np.where(shape.seen, y, np.nan)[rows],
        rng_key=rng_key,
        progress_bar=False,
        **settings,
    )
    draws = predictive(fit, shape.inputs, NUM_DRAWS)
    with_noise, without = (summarise(draws, interval=INTERVAL, include_noise=noise) for noise in (True, False))
    unseen = ~shape.seen
    ranked = _ranks(shape, rows, table, fit, rng_key) if shape.is_prior else {}
    gates = inclusion_table(tree_of(fit))
    return [
        {
            "table": name,
            "on": table["b"].astype(int).tolist(),
            "probability": np.asarray(fit.sample_stats["gate_prob"].mean((0, 1))).tolist(),
            "r_hat": float(gates.r_hat.max()),
            "covered": float(_inside(without, noiseless)[shape.seen].mean()),
            "unseen": float(_inside(with_noise, y)[unseen].mean()) if unseen.any() else np.nan,
            "pit": ranked,
            "seconds": round(time.perf_counter() - begin, 3),
            "error": "",
        }
    ]


def _inside(band: Any, values: np.ndarray) -> np.ndarray:
    return (band["lower"].to_numpy() <= values) & (values <= band["upper"].to_numpy())


def _ranks(shape: Shape, rows: np.ndarray, table: dict[str, np.ndarray], fit: Any, rng_key: Array) -> dict[str, float]:
    model, sites = shape.model, fit.thin_paths(NUM_RANKED)
    true = {name: jnp.asarray(table[name])[None] for name in (*SITES, *model.scale_sites) if name in table}
    true["x"] = true["x"][..., rows]
    if "noise_factor" in true:
        true["noise_factor"] = true["noise_factor"][:, rows]
    draws, exact = (quantities(model, fit.inputs, fit.y, values) for values in (sites, true))
    uniform = np.random.default_rng(np.asarray(jax.random.key_data(rng_key)).tolist()).uniform(size=len(draws))
    return {
        name: float(ranks(np.asarray(exact[name])[0], np.asarray(draws[name]), u))
        for name, u in zip(draws, uniform, strict=True)
    }


def quantities(model: ALPS, inputs: Array, y: Array, sites: dict[str, Array]) -> dict[str, Float[Array, " draw"]]:
    """What is ranked, by name: no gate, and nothing without a sign of its own. All are defined while a gate is off.

    Each process' sum of H^2; the outputs' mean log noise variance where it is learnt; f of the first output in the
    middle row, with ties at zero where all gates are off; the log likelihood of the cells that were seen.
    """
    known = {name: sites[name] for name in (*SITES, *model.scale_sites) if name in sites}
    H = known["H"]
    found = {
        f"H² of {name}": (H[..., np.flatnonzero(model.gate_of == k)] ** 2).sum((-2, -1))
        for k, name in enumerate(model.gate_names)
    }
    if model.learns_noise:
        found["noise variance"] = jnp.log(known["noise_variance"]).mean(-1)
    middle = len(inputs) // 2
    found["f"] = (model.gated_H(known)[:, 0] * known["x"][..., middle]).sum(-1)
    likelihood = _log_likelihood(model, known, inputs, y)
    return found | {"log likelihood": likelihood}


@jax.jit
def _log_likelihood(model: ALPS, sites: dict[str, Array], inputs: Array, y: Array) -> Float[Array, " draw"]:
    cells = log_likelihood(model.program, sites, inputs, y)["y"]
    return cells.reshape(len(cells), -1).sum(1)
