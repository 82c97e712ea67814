"""``python -m experiments.claims`` writes ``docs/claims.md`` from ``docs/claims/*.json``: the paper's claims and ours.

Every number on the page is computed here, from measured rows and the model files; its words are in ``claims.md.j2``.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd

from experiments import boston, store
from experiments.pages import count, render, span
from experiments.subsets import PAPER
from models import boston_housing, noisy_mixture, square_wave

PAGE = store.ROOT / "docs" / "claims.md"
ODD, EVEN = ("1 f", "3 f", "5 f", "7 f"), ("2 f", "4 f", "6 f", "8 f")
PERIODS = ("T=7a or T=7b", "T=17", "T=23a or T=23b")
DECOYS = ("T=3", "T=11", "T=13", "T=19")
HIDDEN = 0.5
ENGINES = {"svi": "SVI", "gibbs": "Gibbs"}


class Claim(NamedTuple):
    """On how many seeds or splits a claim holds, and what was measured; two cells of a table."""

    holds: str
    measured: str


def by_engine(value: Callable[[str], str]) -> str:
    """A value of each engine."""
    return "; ".join(f"{name} {value(engine)}" for engine, name in ENGINES.items())


def claim(values: Callable[[str], Iterable], rule: Callable[[Any], bool], form: str = ".3f") -> Claim:
    """A claim about both engines: whether ``rule`` holds for an engine's ``values``, one or several for each seed."""
    holds = by_engine(lambda e: count(map(rule, values(e))))
    return Claim(holds, by_engine(lambda e: span(np.ravel(values(e)), form)))


def of_square_wave(rows: list[dict]) -> dict[str, Any]:
    """4.1."""
    best = _four_harmonics()
    apart = [row["differences"]["inclusion probability"] for row in rows]
    return {
        "odd": claim(lambda e: _gates(rows, e, ODD), lambda p: min(p) >= 0.9),
        "even": claim(lambda e: _gates(rows, e, EVEN), lambda p: max(p) <= 0.1),
        "alike": Claim(count(difference <= 0.05 for difference in apart), span(apart)),
        "means_apart": span((row["differences"]["predictive mean"] for row in rows), ".2f"),
        "r_hat": _largest_r_hat(rows),
        "reconstructed": claim(lambda e: [row["reconstruction_rmse"][e] for row in rows], lambda r: r <= 1.02 * best),
        "best": f"{best:.3f}",
    }


def _four_harmonics() -> float:
    """What the best four odd harmonics leave of the sampled square wave, root mean square."""
    data = square_wave.data()
    wave = data.y[:, 0]
    angles = 2 * np.pi * square_wave.FREQUENCY * data.inputs[:, None] * (1, 3, 5, 7)
    basis = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    return float(np.sqrt(np.mean((wave - basis @ np.linalg.lstsq(basis, wave)[0]) ** 2)))


def of_noisy_mixture(rows: list[dict], noise_sd: float, independent: bool) -> dict[str, Any]:
    """4.2, for one strength and kind of noise."""
    rows = [row for row in rows if (row["noise_sd"], row["independent"]) == (noise_sd, independent)]
    correlations = [_correlation_at_7(row) for row in rows]
    hidden = [row for row, correlation in zip(rows, correlations, strict=True) if abs(correlation) < HIDDEN]
    found_hidden = claim(lambda e: _gates(hidden, e, PERIODS[:1]), lambda p: min(p) >= 0.95) if hidden else None
    rmse, over = _errors(rows)

    def H(what, engine):
        return [row["H"][engine][what] for row in rows]

    def back(engine):
        moments = zip(H("off: largest |mean|", engine), H("off: mean variance", engine), strict=True)
        return [mean <= 0.05 and abs(variance - 1) <= 0.1 for mean, variance in moments]

    return {
        "found": claim(lambda e: _gates(rows, e, PERIODS), lambda p: min(p) >= 0.95),
        "hidden": found_hidden.holds if found_hidden else "not tested",
        "correlation": span(correlations, ".2f"),
        "correlation_by_noise": f"{1 / (1 + noise_sd**2):.2f}",
        "quiet": _quiet(rows),
        "one_of_two": claim(lambda e: [_exactly_one(row, e) for row in rows], lambda p: min(p) >= 0.9, ".2f"),
        "narrow": claim(lambda e: H("on: largest variance", e), lambda variance: variance < 0.5),
        "back": by_engine(lambda e: count(back(e))),
        "variance_off": by_engine(lambda e: span(H("off: mean variance", e), ".2f")),
        "mean_off": by_engine(lambda e: span(H("off: largest |mean|", e), ".2f")),
        "forecast": claim(lambda e: over[e], lambda ratio: ratio <= 1.05, ".2f"),
        "error": by_engine(lambda e: f"{rmse[e].mean():.3f}"),
        "error_told": f"{rmse['told the latents'].mean():.3f}",
        "error_gp": f"{rmse['GP per output'].mean():.3f}",
        "converged": count(row["max_rhat"] <= 1.05 for row in rows),
        "r_hat": _largest_r_hat(rows),
    }


def of_shared_noise(rows: list[dict]) -> dict[str, Any]:
    """4.2 with shared noises in the dictionary."""
    error = np.array([row["rmse"]["gibbs"] for row in rows])
    over = error / [row["rmse"]["told the latents"] for row in rows]
    found, decoys = ([[row["probability"]["gibbs"][n] for n in names] for row in rows] for names in (PERIODS, DECOYS))

    def one(values: Iterable, rule: Callable[[Any], bool], form: str = ".3f") -> Claim:
        return Claim(count(map(rule, values)), span(np.ravel(values), form))

    return {
        "found": one(found, lambda p: min(p) >= 0.95),
        "quiet": one(decoys, lambda p: max(p) <= 0.1),
        "forecast": one(over, lambda ratio: ratio <= 1.05, ".2f"),
        "error": f"{error.mean():.3f}",
        "r_hat": f"{max(row['max_rhat'] for row in rows):.2f}",
    }


def noise_grid(rows: list[dict]) -> list[dict]:
    """4.2 over the noise's strength and kind: what is found, kept and forecast."""

    def line(noise_sd: float, independent: bool) -> dict:
        here = [row for row in rows if (row["noise_sd"], row["independent"]) == (noise_sd, independent)]
        _, over = _errors(here)
        pairs = {e: [p for row in here for p in row["both_on"][e].values()] for e in ENGINES}
        return {
            "noise": _kind(noise_sd, independent),
            "seeds": len(here),
            "correlation of output 1 with itself 7 steps later": span(map(_correlation_at_7, here), ".2f"),
            "probability of a period 7": by_engine(lambda e: span(np.ravel(_gates(here, e, PERIODS[:1])))),
            "of 17, and of a 23": by_engine(lambda e: span(np.ravel(_gates(here, e, PERIODS[1:])))),
            "all decoys at .1 or less": _quiet(here).holds,
            "probability of both of a pair": by_engine(lambda e: span(pairs[e], ".2f")),
            "forecast's error": by_engine(lambda e: span(over[e], ".2f")),
        }

    return [line(*kind) for kind in sorted({(row["noise_sd"], row["independent"]) for row in rows})]


def _kind(noise_sd: float, independent: bool) -> str:
    return f"{noise_sd:g}, " + ("each output's own" if independent else "shared")


def _gates(rows: list[dict], engine: str, names: Iterable[str]) -> list[list[float]]:
    """Probabilities, (seed, name)."""
    return [[row["probability"][engine][name] for name in names] for row in rows]


def _quiet(rows: list[dict]) -> Claim:
    """All periods that aren't there are at .1 or less."""
    return claim(lambda e: _gates(rows, e, DECOYS), lambda p: max(p) <= 0.1)


def _exactly_one(row: dict, engine: str) -> list[float]:
    """P(exactly one of a pair is on), of both pairs."""
    probability, both = row["probability"][engine], row["both_on"][engine]
    return [probability[f"T={T}a or T={T}b"] - both[f"T={T}"] for T in (7, 23)]


def _errors(rows: list[dict]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of the forecasts, and over that of the model told the right latents."""
    rmse = pd.DataFrame([row["rmse"] for row in rows])
    return rmse, rmse.div(rmse["told the latents"], axis=0)


def _correlation_at_7(row: dict) -> float:
    """Of output 1, the wave of period 7 and its noise, with itself seven steps on."""
    y = noisy_mixture.data(row["seed"], row["noise_sd"], row["independent"]).y[:, 0]
    return float(np.corrcoef(y[:-7], y[7:])[0, 1])


def _largest_r_hat(rows: list[dict]) -> str:
    return f"{max(row['max_rhat'] for row in rows):.3f}"


def of_temperature(rows: list[dict], experiment: str, other: str) -> dict[str, Any]:
    """App. B: the paper's bump against another schedule, by the discrete ELBO in nats."""
    here = pd.DataFrame([row for row in rows if row["experiment"] == experiment])
    elbo, mcse, undecided = (
        here.pivot(index="seed", columns="schedule", values=name) for name in ("elbo", "elbo_mcse", "undecided")
    )
    gain, error = elbo["bump"] - elbo[other], np.hypot(mcse["bump"], mcse[other])
    return {
        "better": count(gain > 2 * error),
        "worse": count(gain < -2 * error),
        "gain": f"{'higher' if gain.mean() > 0 else 'lower'} by {abs(gain.mean()):.1f}",
        "gains": span(gain, ".1f"),
        "error": f"{error.max():.1f}",
        "undecided": span(undecided["bump"]),
        "undecided_other": span(undecided[other]),
    }


def of_boston(rows: list[dict]) -> dict[str, Any]:
    """4.3 in the reading that comes nearest to the paper's result."""
    rows = [row for row in rows if row["reading"] == boston.PAPERS_READING]
    svi, gibbs = ([row[engine][0] for row in rows] for engine in ENGINES)
    papers_l = boston_housing.SVI["num_inducing"]
    with_papers_l = [run for row in rows for run in row["svi"] if run["settings"]["num_inducing"] == papers_l]
    selections = {"SVI": svi, f"SVI, with l = {papers_l}": with_papers_l, "Gibbs": gibbs}
    rmse = {"GP-ALPS": [run["averaged"]["rmse"] for run in svi]}
    rmse |= {f"ridge on its set, {ridge}": [run["refit"][ridge]["rmse"] for run in svi] for ridge in svi[0]["refit"]}
    rmse |= {name: [row["baselines"][name]["rmse"] for row in rows] for name in rows[0]["baselines"]}
    sampled = [run["averaged"]["rmse"] for run in gibbs]
    bounds = [row["held open"] for row in rows if "held open" in row]
    gap = np.array([bound["svi"]["elbo"] - bound["gibbs"]["elbo"] for bound in bounds])
    error = np.array([np.hypot(bound["svi"]["elbo_mcse"], bound["gibbs"]["elbo_mcse"]) for bound in bounds])
    probabilities = sorted(svi[0]["probability"].items(), key=lambda item: -item[1])
    return {
        "num_inducing": svi[0]["settings"]["num_inducing"],
        "exactly": "; ".join(f"{name} {_exactly(runs)}" for name, runs in selections.items()),
        "times_on": "; ".join(f"{name}: {_times_on(runs)}" for name, runs in selections.items()),
        "probabilities": ", ".join(f"{name} {p:.2f}" for name, p in probabilities),
        "ridges": {ridge: _ranked(rows, svi, ridge) for ridge in ("joint 1", "additive 0.2")},
        "rmse": ", ".join(f"{name} {np.mean(values):.2f}" for name, values in rmse.items()),
        "wins": {name: count(np.less(rmse["GP-ALPS"], values)) for name, values in rmse.items()},
        "gibbs_wins": count(np.less(sampled, rmse["GP-ALPS"])),
        "gibbs_rmse": f"{np.mean(sampled):.2f}",
        "gibbs_r_hat": _largest_r_hat(gibbs),
        "bound": Claim(count(gap > 2 * error), span(gap, ".1f")),
        "bound_error": f"{error.max():.1f}",
    }


def _ranked(rows: list[dict], runs: list[dict], ridge: str) -> dict[str, Any]:
    """Where SVI's selection, its prediction and the baselines are among all subsets, in per cent from the top."""

    def among_the_best(scores: list[dict]) -> Claim:
        percent = [score["top_percent"][ridge] for score in scores]
        return Claim(count(value <= 0.05 for value in percent), span(percent, ".2f"))

    return {
        "selection": among_the_best([run["refit"][ridge] for run in runs]),
        "prediction": among_the_best([run["averaged"] for run in runs]),
        "others": {name: among_the_best([row["baselines"][name] for row in rows]) for name in rows[0]["baselines"]},
    }


def _exactly(runs: list[dict]) -> str:
    """How many runs have the paper's four on and nothing else."""
    return count(set(run["on"]) == set(PAPER) for run in runs)


def _times_on(runs: list[dict]) -> str:
    """How often each column is on, the most frequent first."""
    counts = Counter(name for run in runs for name in run["on"])
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def boston_readings(rows: list[dict]) -> list[dict]:
    """What scaling and noise do to the selection and to its prediction."""

    def line(reading: str, engine: str) -> dict:
        runs = [row[engine][0] for row in rows if row["reading"] == reading]
        own = pd.DataFrame([run["averaged"] for run in runs])
        top = pd.DataFrame(list(own.top_percent))
        return {
            "reading": reading,
            "engine": ENGINES[engine],
            "exactly the four": _exactly(runs),
            "on how many each column is on": _times_on(runs),
            "test RMSE": f"{own.rmse.mean():.2f}",
            "minus log density": f"{own.nlpd.mean():.2f}",
            "R-hat of the gates": span((run["max_rhat"] for run in runs), ".2f") if engine == "gibbs" else "",
            "top % of joint ridges": span(top["joint 1"], ".2f"),
            "of additive ones": span(top["additive 0.2"], ".2f"),
        }

    return [line(reading, engine) for reading in boston.READINGS for engine in ENGINES]


def differences(rows: dict[str, list[dict]]) -> pd.DataFrame:
    """The largest differences between the engines over all seeds, per experiment."""
    named = {"4.1 square wave": rows["square_wave"]}
    for row in sorted(rows["noisy_mixture"], key=lambda row: (row["noise_sd"], row["independent"])):
        named.setdefault(f"4.2, noise of sd {_kind(row['noise_sd'], row['independent'])}", []).append(row)
    found = {title: pd.DataFrame([row["differences"] for row in those]).max() for title, those in named.items()}
    kinds = ["inclusion probability", "predictive mean", "predictive sd"]
    return pd.DataFrame(found).T[kinds].rename_axis("experiment").reset_index()


def page() -> str:
    """The whole page, in Markdown."""
    names = ("square_wave", "noisy_mixture", "boston_housing", "temperature", "shared_noise")
    kept = {name: store.load(store.CLAIMS / f"{name}.json") for name in names}
    missing = [name for name, found in kept.items() if not found["rows"]]
    if missing:
        raise click.ClickException(f"expected rows of {', '.join(missing)} in {store.CLAIMS}; measure them first")
    rows = {name: found["rows"] for name, found in kept.items()}
    return render(
        "claims.md.j2",
        kept=kept,
        files={"square_wave": square_wave, "noisy_mixture": noisy_mixture, "boston": boston_housing},
        sweeps=boston.SWEEPS,
        square_wave=of_square_wave(rows["square_wave"]),
        shared=of_noisy_mixture(rows["noisy_mixture"], noisy_mixture.NOISE_SD, False),
        own=of_noisy_mixture(rows["noisy_mixture"], noisy_mixture.NOISE_SD, True),
        shared_noise=of_shared_noise(rows["shared_noise"]),
        noise_grid=noise_grid(rows["noisy_mixture"]),
        boston=of_boston(rows["boston_housing"]),
        boston_readings=boston_readings(rows["boston_housing"]),
        temperature=lambda experiment, other: of_temperature(rows["temperature"], experiment, other),
        differences=differences(rows),
        HIDDEN=HIDDEN,
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Write docs/claims.md from docs/claims/*.json."""
    PAGE.write_text(page())
    click.echo(f"Written to {PAGE}")


if __name__ == "__main__":
    main(prog_name="python -m experiments.claims")
