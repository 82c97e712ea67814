"""The paper's synthetic experiments over several seeds: 4.1, 4.2 and the temperature schedule of App. B.

``python -m models.experiments square_wave --seeds 10`` measures what ``docs/claims/square_wave.json`` doesn't have yet;
``python -m models.claims`` makes the table of it.
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
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

import alps_ppl as alps
from alps_ppl import runner
from alps_ppl.diagnostics import largest_differences, worst_convergence
from alps_ppl.svi import discrete_elbo
from alps_ppl.temperature import LOWEST
from models import noisy_mixture, results, square_wave
from models.nyc_weather import Cosine, gp_per_output

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


def fit(engine: str, file: ModuleType, model: alps.ALPS, inputs, y, seed: int, **settings: Any) -> Any:
    """The posterior of an engine with the model file's own settings but for ``settings``."""
    key = jax.random.fold_in(jax.random.key(seed), ("svi", "gibbs").index(engine))
    return runner.fit(engine, model, inputs, y, getattr(file, engine.upper()) | settings, key)


def both_engines(file: ModuleType, data: alps.Data, seed: int) -> tuple[dict, dict, dict, dict]:
    """A row of what both engines say, their posteriors, their trees, and their predictions at all inputs."""
    model = file.model(data)
    inputs, y = model.check(data.train_inputs, data.train_y)
    posteriors, trees, predictions, seconds = {}, {}, {}, {}
    for engine in ("svi", "gibbs"):
        begin = time.perf_counter()
        posterior = posteriors[engine] = fit(engine, file, model, inputs, y, seed)
        seconds[engine] = round(time.perf_counter() - begin, 1)
        trees[engine] = alps.to_datatree(posterior, model, inputs, y)
        predictions[engine] = alps.predict(posterior, model, inputs, y, data.inputs)
    table = alps.inclusion_table(trees)
    max_rhat, min_ess = worst_convergence(table, "gibbs")
    comparison = alps.compare_engines(trees, predictions)
    row = {
        "probability": {
            engine: dict(zip(rows.latent, rows.probability.round(4), strict=True))
            for engine, rows in table.groupby("engine")
        },
        "gibbs_mcse": float(table.mcse.max()),
        "max_rhat": max_rhat,
        "min_ess": min_ess,
        "differences": largest_differences(comparison),
        "seconds": seconds,
    }
    return row, posteriors, trees, predictions


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
    row, posteriors, trees, predictions = both_engines(noisy_mixture, data, seed)
    truth = (noisy_mixture.simulate(seed, noise_sd, independent)["f"] - data.loc) / data.scale
    test = data.split[:, 0] == "test"
    means = {name: p["mean"].values for name, p in predictions.items()}
    means |= {"told the latents": _oracle(data, seed), "GP per output": _gp_per_output(data)}
    both_on = {
        engine: {f"T={T}": float((b.sel(latent=f"T={T}a") * b.sel(latent=f"T={T}b")).mean()) for T in (7, 23)}
        for engine, b in ((engine, tree["posterior"]["b"]) for engine, tree in trees.items())
    }
    return row | {
        "both_on": both_on,
        "rmse": {name: float(((mean - truth)[test] ** 2).mean() ** 0.5) for name, mean in means.items()},
        "H": {
            "svi": guides_columns(posteriors["svi"], data.train_inputs, data.train_y),
            "gibbs": sampled_columns(trees["gibbs"]),
        },
    }


def _oracle(data: alps.Data, seed: int) -> np.ndarray:
    """The forecast of the same model with the three right latents, always on."""
    periods = {f"{T:g}": T for T in noisy_mixture.TRUE_PERIODS}
    model = noisy_mixture.model(data, periods)
    told = alps.ALPS(
        zip(model.latents, model.covariances, strict=True),
        model.outputs,
        inclusion_prob=1.0,
        noise_variance=model.noise_variance,
    )
    mcmc = fit("gibbs", noisy_mixture, told, data.train_inputs, data.train_y, seed)
    return alps.predict(mcmc, told, data.train_inputs, data.train_y, data.inputs)["mean"].values


def _gp_per_output(data: alps.Data) -> np.ndarray:
    """Scikit-learn's GP for each output by itself, all seven periods, their variances and the noise learnt."""
    periods = sorted(set(noisy_mixture.OFFERED.values()))
    covariance = sum(
        (ConstantKernel(0.3, (1e-6, 1e2)) * Cosine(T) for T in periods), start=WhiteKernel(0.3, (1e-4, 1e1))
    )
    mean, _ = gp_per_output(data, covariance)
    return (mean - data.loc) / data.scale


def sampled_columns(tree) -> dict[str, float]:
    """``_columns`` of draws, each latent's of one sign."""
    posterior = alps.align_signs(tree["posterior"].to_dataset())
    dims = ("chain", "draw")
    return _columns(
        *(x.values for x in (posterior["b"].mean(dims), posterior["H"].mean(dims), posterior["H"].var(dims)))
    )


def guides_columns(svi: alps.SVIFit, inputs, y) -> dict[str, float]:
    """``_columns`` of SVI's q(H) itself: the mean of its draws would have an error as large as what is looked for."""
    guide = handlers.seed(handlers.substitute(svi.guide.discrete, data=svi.params), 0)
    H = handlers.trace(guide).get_trace(inputs, y)["H"]["fn"]
    return _columns(svi.inclusion_prob, np.asarray(H.mean), np.asarray(H.variance))


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
    model = file.model(data)
    posterior = fit("svi", file, model, data.train_inputs, data.train_y, seed, temperature=SCHEDULES[schedule])
    gates = dict(zip(model.latents, map(float, posterior.inclusion_prob), strict=True))
    undecided = float(np.minimum(posterior.inclusion_prob, 1 - posterior.inclusion_prob).max())
    # The fit's own 1,000 particles have an error of several nats, which is what schedules differ by.
    key = jax.random.key(seed)
    elbo, mcse = discrete_elbo(posterior, data.train_inputs, data.train_y, key, num_particles=8_000)
    return {"probability": gates, "undecided": undecided, "elbo": elbo, "elbo_mcse": mcse}


def cases(experiment: str, seeds: int) -> list[dict]:
    """What is measured, in order; the noise's other strengths and the temperature's schedules over fewer seeds."""
    half, fifth = range(max(1, seeds // 2)), range(max(1, seeds // 5))
    if experiment == "square_wave":
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
}


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("experiments", nargs=-1, type=click.Choice(list(MEASURES)), metavar="[EXPERIMENT]...")
@click.option("--seeds", default=10, type=click.IntRange(min=1), help="Seeds 0 to this, less one; variants have fewer.")
def main(experiments: tuple[str, ...], seeds: int):
    """Measure square_wave, noisy_mixture and temperature, or those named; what is kept isn't measured again."""
    numpyro.enable_x64()
    for name in experiments or MEASURES:
        command = f"python -m models.experiments {name} --seeds {seeds}"
        results.collect(name, cases(name, seeds), MEASURES[name], command=command, units=UNITS)


if __name__ == "__main__":
    main(prog_name="python -m models.experiments")
