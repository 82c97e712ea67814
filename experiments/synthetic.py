"""The paper's synthetic experiments over several seeds: 4.1, 4.2 and the temperature schedule of App. B.

``python -m experiments.synthetic square_wave --seeds 10`` measures what ``docs/claims/square_wave.json`` doesn't have
yet; ``python -m experiments.claims`` makes the page of it.
"""

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import click
import jax
import numpy as np
import numpyro
from numpyro import handlers

import alps_ppl as alps
from alps_ppl.results.engines import largest_differences
from alps_ppl.results.inclusion import worst_convergence
from alps_ppl.svi.temperature import LOWEST
from experiments import store
from experiments.baselines import periodic_gp_per_output
from models import noisy_mixture, square_wave

UNITS = {
    "probability": "of a gate or of a group of equal covariance",
    "differences": "the largest between the engines: of probabilities, and of predictions in Gibbs sds",
    "rmse": "of the noiseless outputs on the held-out times, in training sds",
    "H": "standardised outputs; the prior has mean 0 and variance 1",
    "elbo": "of the discrete model, in nats",
    "seconds": "of the fits",
}
SCHEDULES: dict[str, Callable | float] = {
    "bump": alps.annealed_temperature,
    "constant": LOWEST,
    "cooling": lambda n, N: LOWEST + (10.0 - LOWEST) * np.exp(-5 * n / N),
}


def fit(engine: str, file: ModuleType, model: alps.ALPS, data: alps.Data, seed: int, **settings: Any) -> Any:
    """An engine's fit, with the model file's settings but for ``settings``."""
    fit_engine = {"svi": alps.fit_svi, "gibbs": alps.fit_gibbs}[engine]
    key = jax.random.fold_in(jax.random.key(seed), ("svi", "gibbs").index(engine))
    settings = getattr(file, engine.upper()) | settings
    return fit_engine(model, data.train_inputs, data.train_y, rng_key=key, progress_bar=False, **settings)


def both_engines(file: ModuleType, data: alps.Data, seed: int) -> tuple[dict, dict, dict, dict]:
    """A row of what both engines say, their fits, their trees, and their predictions at all inputs."""
    model = file.model(data)
    fits, seconds = {}, {}
    for engine in ("svi", "gibbs"):
        begin = time.perf_counter()
        fits[engine] = fit(engine, file, model, data, seed)
        seconds[engine] = round(time.perf_counter() - begin, 1)
    trees = {engine: alps.to_datatree(found) for engine, found in fits.items()}
    predictions = {engine: alps.predict(found, data.inputs) for engine, found in fits.items()}
    table = alps.inclusion_table(trees)
    max_rhat, min_ess = worst_convergence(table, "gibbs")
    row = {
        "probability": {
            engine: dict(zip(rows.latent, rows.probability.round(4), strict=True))
            for engine, rows in table.groupby("engine")
        },
        "gibbs_mcse": float(table.mcse.max()),
        "max_rhat": max_rhat,
        "min_ess": min_ess,
        "differences": largest_differences(alps.compare_engines(trees, predictions)),
        "seconds": seconds,
    }
    return row, fits, trees, predictions


def measure_square_wave(seed: int) -> dict:
    """4.1: a row of ``both_engines``, and the root mean square of what the reconstruction leaves over."""
    data = square_wave.data()
    row, _, _, predictions = both_engines(square_wave, data, seed)
    error = {
        name: float(((p["mean"].values - data.standardised) ** 2).mean() ** 0.5) for name, p in predictions.items()
    }
    return row | {"reconstruction_rmse": error}


def measure_noisy_mixture(seed: int, noise_sd: float, independent: bool) -> dict:
    """4.2: besides a row of ``both_engines`` the duplicates kept, forecasts against the truth, and H's moments."""
    data = noisy_mixture.data(seed, noise_sd, independent)
    row, fits, trees, predictions = both_engines(noisy_mixture, data, seed)
    truth = (noisy_mixture.simulate(seed, noise_sd, independent)["f"] - data.loc) / data.scale
    test = data.split[:, 0] == "test"
    means = {name: p["mean"].values for name, p in predictions.items()}
    means["told the latents"] = _told_the_latents(data, seed)
    means["GP per output"] = periodic_gp_per_output(data, sorted(set(noisy_mixture.OFFERED.values())))
    both_on = {
        engine: {f"T={T}": float((b.sel(latent=f"T={T}a") * b.sel(latent=f"T={T}b")).mean()) for T in (7, 23)}
        for engine, b in ((engine, tree["posterior"]["b"]) for engine, tree in trees.items())
    }
    return row | {
        "both_on": both_on,
        "rmse": {name: float(((mean - truth)[test] ** 2).mean() ** 0.5) for name, mean in means.items()},
        "H": {"svi": guides_columns(fits["svi"]), "gibbs": sampled_columns(trees["gibbs"])},
    }


def measure_shared_noise(seed: int) -> dict:
    """4.2 with the paper's shared noise and three of ``alps.white`` in the dictionary, by Gibbs."""
    data = noisy_mixture.data(seed)
    plain = noisy_mixture.model(data)
    offered = dict(zip(plain.latents, plain.covariances, strict=True))
    offered |= {f"shared noise {k + 1}": alps.white() for k in range(3)}
    model = alps.ALPS(offered, data.outputs, noise_variance=plain.noise_variance)
    begin = time.perf_counter()
    found = fit("gibbs", noisy_mixture, model, data, seed, start="held")
    seconds = round(time.perf_counter() - begin, 1)
    table = alps.inclusion_table(found)
    truth = (noisy_mixture.simulate(seed)["f"] - data.loc) / data.scale
    test = data.split[:, 0] == "test"
    means = {
        "gibbs": alps.predict(found, data.inputs)["mean"].values,
        "told the latents": _told_the_latents(data, seed),
    }
    return {
        "probability": {"gibbs": dict(zip(table.latent, table.probability.round(4), strict=True))},
        "max_rhat": worst_convergence(table, "gibbs")[0],
        "rmse": {name: float(((mean - truth)[test] ** 2).mean() ** 0.5) for name, mean in means.items()},
        "seconds": {"gibbs": seconds},
    }


def _told_the_latents(data: alps.Data, seed: int) -> np.ndarray:
    """The forecast of the same model with the three right latents, always on."""
    right = {f"{T:g}": alps.linear_periodic(T) for T in noisy_mixture.TRUE_PERIODS}
    noise_variance = noisy_mixture.model(data).noise_variance
    model = alps.ALPS(right, data.outputs, inclusion_prob=1.0, noise_variance=noise_variance)
    return alps.predict(fit("gibbs", noisy_mixture, model, data, seed), data.inputs)["mean"].values


def sampled_columns(tree) -> dict[str, float]:
    """``_columns`` of draws, each latent's of one sign."""
    posterior = alps.align_signs(tree["posterior"].to_dataset())
    dims = ("chain", "draw")
    return _columns(
        *(x.values for x in (posterior["b"].mean(dims), posterior["H"].mean(dims), posterior["H"].var(dims)))
    )


def guides_columns(fit: alps.SVIFit) -> dict[str, float]:
    """``_columns`` of SVI's q(H) itself: the mean of its draws would have an error as large as what is looked for."""
    guide = handlers.seed(handlers.substitute(fit.guide.discrete, data=fit.params), 0)
    H = handlers.trace(guide).get_trace(fit.inputs, fit.y)["H"]["fn"]
    return _columns(fit.inclusion_prob, np.asarray(H.mean), np.asarray(H.variance))


def _columns(probability: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> dict[str, float]:
    """H's largest |mean| and its mean variance in columns that are off, and its largest variance where they are on."""
    off, on = probability < 0.1, probability > 0.9
    return {
        "off: largest |mean|": float(abs(mean[:, off]).max()) if off.any() else np.nan,
        "off: mean variance": float(variance[:, off].mean()) if off.any() else np.nan,
        "on: largest variance": float(variance[:, on].max()) if on.any() else np.nan,
    }


def measure_temperature(seed: int, experiment: str, schedule: str) -> dict:
    """App. B: SVI's gates and its ELBO of the discrete model under a schedule of the temperature."""
    file = {"square_wave": square_wave, "noisy_mixture": noisy_mixture}[experiment]
    data = file.data() if experiment == "square_wave" else file.data(seed)
    found = fit("svi", file, file.model(data), data, seed, temperature=SCHEDULES[schedule])
    gates = dict(zip(found.model.latents, map(float, found.inclusion_prob), strict=True))
    undecided = float(np.minimum(found.inclusion_prob, 1 - found.inclusion_prob).max())
    # The fit's own 1,000 particles have an error of several nats, which is what schedules differ by.
    elbo, mcse = alps.discrete_elbo(found, jax.random.key(seed), num_particles=8_000)
    return {"probability": gates, "undecided": undecided, "elbo": elbo, "elbo_mcse": mcse}


def cases(experiment: str, seeds: int) -> list[dict]:
    """What is measured, in order; the noise's other strengths and the temperature's schedules over fewer seeds."""
    half, fifth = range(max(1, seeds // 2)), range(max(1, seeds // 5))
    if experiment in ("square_wave", "shared_noise"):
        return [{"seed": seed} for seed in range(seeds)]
    if experiment == "noisy_mixture":
        kinds = [(0.5, False, range(seeds)), (0.5, True, range(seeds))]
        kinds += [(sd, False, half) for sd in (0.25, 1.0, 2.0)]
        return [{"seed": s, "noise_sd": sd, "independent": own} for sd, own, those in kinds for s in those]
    experiments = (("square_wave", half), ("noisy_mixture", fifth))
    return [
        {"seed": s, "experiment": name, "schedule": schedule}
        for name, those in experiments for s in those for schedule in SCHEDULES
    ]  # fmt: skip


MEASURES = {
    "square_wave": measure_square_wave,
    "noisy_mixture": measure_noisy_mixture,
    "temperature": measure_temperature,
    "shared_noise": measure_shared_noise,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("experiments", nargs=-1, type=click.Choice(list(MEASURES)), metavar="[EXPERIMENT]...")
@click.option("--seeds", default=10, type=click.IntRange(min=1), help="Seeds 0 to this, less one; variants have fewer.")
def main(experiments: tuple[str, ...], seeds: int):
    """Measure all, or those named; what is kept isn't measured again."""
    numpyro.enable_x64()
    for name in experiments or MEASURES:
        command = f"python -m experiments.synthetic {name} --seeds {seeds}"
        measure = MEASURES[name]
        rows = store.CLAIMS / f"{name}.json"
        store.collect(rows, cases(name, seeds), lambda case, m=measure: m(**case), command=command, units=UNITS)


if __name__ == "__main__":
    main(prog_name="python -m experiments.synthetic")
