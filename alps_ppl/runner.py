"""What ``alps-ppl run`` does with a model file: fit, tabulate, predict, score, draw and write."""

import hashlib
import inspect
import json
import platform
import shutil
import time
import traceback
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import jax
import numpy as np
import pandas as pd
import xarray as xr
from numpyro.infer import MCMC
from scipy.stats import norm

from alps_ppl.chains import GibbsFit, run_chains
from alps_ppl.checkpoints import Checkpoints, fingerprint
from alps_ppl.cli import BadInput
from alps_ppl.contributions import variance_shares
from alps_ppl.covariances import parameters
from alps_ppl.data import Conversion, Data
from alps_ppl.diagnostics import (
    LARGEST_GATE_R_HAT,
    LARGEST_LOG_JOINT_R_HAT,
    compare_engines,
    gate_vectors,
    inclusion_table,
    largest_differences,
    log_joint_r_hat,
    to_datatree,
    worst_convergence,
)
from alps_ppl.gibbs import ALPSGibbs
from alps_ppl.model import ALPS, check_count, in_range
from alps_ppl.prediction import log_predictive_density, predict
from alps_ppl.selection import prune
from alps_ppl.storage import load, load_conversion, save
from alps_ppl.svi import NonFiniteLossError, SVIFit, fit_svi
from alps_ppl.svi import check_settings as check_svi


def _settings(function: Any, *fixed: str) -> tuple[str, ...]:
    return tuple(name for name in inspect.signature(function).parameters if name not in fixed)


SVI_SETTINGS = _settings(fit_svi, "model", "inputs", "y", "rng_key", "progress_bar", "checkpoints")
KERNEL_SETTINGS = _settings(ALPSGibbs, "model", "keep_latents")  # the trees and figures need them
MCMC_SETTINGS = ("num_warmup", "num_samples", "num_chains", "thinning", "chain_method")
CHAIN_METHODS = ("vectorized", "parallel", "sequential")
TABLES = ("inclusion.csv", "predictions.csv", "scores.csv", "comparison.csv", "variance_shares.csv")
FIGURES = ("reconstruction", "predicted", "inclusion", "mixing", "latents", "engines", "training")
PACKAGES = ("alps-ppl", "numpyro", "jax", "tinygp", "arviz-base", "arviz-stats", "numpy")


def run(
    module: ModuleType | SimpleNamespace,
    *,
    engines: list[str],
    seed: int,
    out: Path,
    progress: bool,
    fresh: bool = False,
    checkpoint_seconds: float = 30.0,
    prune_below: float | None = None,
) -> pd.DataFrame:
    """Everything, in order; bad input is found before the first fit. Returns the scores of every cell.

    A fit leaves its state in ``out/checkpoints`` every so often, and goes on from there unless ``fresh``. With
    ``prune_below``, a model without the latents below that probability is fitted too, in ``out/pruned``.
    """
    file = Path(str(module.__file__)).name
    try:
        data = _called(module, "data", Data)
        click.echo(f"{file}: {data}")
        model = _called(module, "model", ALPS, data)
        model.check(data.inputs)
        inputs, y = model.check(data.train_inputs, data.train_y)
        if list(model.outputs) != data.outputs:
            raise ValueError(f"{file}: the model's outputs {list(model.outputs)} aren't the data's {data.outputs}")
        check_settings(model, module.SVI, module.GIBBS, len(inputs), engines)
        if prune_below is not None:
            in_range("--prune", prune_below, 0.0, 1.0)
        baselines = {}
        if hasattr(module, "baselines"):
            click.echo("Baselines ...")
            baselines = _called(module, "baselines", dict, data)
        baseline_cells = _baseline_cells(data, baselines)
    except (ValueError, TypeError, OSError) as error:
        raise BadInput(str(error)) from error
    posteriors: dict[str, Any] = {}
    trees: dict[str, xr.DataTree] = {}
    summary: dict[str, Any] = {"seed": seed, "model_file": file, "versions": versions()}
    summary["data"] = {"input_label": data.input_label, "units": data.units}
    summary["settings"] = {engine: getattr(module, engine.upper()) for engine in engines}
    keys = dict(zip(("svi", "gibbs"), jax.random.split(jax.random.key(seed)), strict=True))
    source = hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()
    folder = out / "checkpoints"
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    _clear(out)
    # What SVI learns of the covariances is the Gibbs sampler's too.
    for engine in sorted(engines, reverse=True) if model.covariance_bounds else engines:
        settings = getattr(module, engine.upper())
        identity = fingerprint(model, inputs, y, settings, keys[engine], versions(), source)
        checkpoints = Checkpoints(folder, identity, checkpoint_seconds, click.echo)
        if engine == "gibbs":
            lengths = _run_lengths(settings)
            click.echo(
                f"Gibbs: {lengths['num_chains']} chains of {lengths['num_warmup']} + {lengths['num_samples']} sweeps"
            )
        start = time.perf_counter()
        try:
            posteriors[engine] = fit(
                engine, model, inputs, y, settings, keys[engine], progress=progress, checkpoints=checkpoints
            )
        except (NonFiniteLossError, ValueError, TypeError) as error:
            raise BadInput(str(error)) from error
        summary[engine] = {"seconds": round(time.perf_counter() - start, 2)}
        if engine == "svi" and model.covariance_bounds:
            learnt = summary[engine]["learnt"] = _learnt(model, posteriors[engine].model)
            click.echo(f"Learnt: {', '.join(f'{name} {value:.4g}' for name, value in learnt.items())}")
            model = posteriors[engine].model
        # Written at once: what comes after can't lose a fit that took minutes.
        trees[engine] = to_datatree(posteriors[engine], model, inputs, y)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            path = out / f"posterior_{engine}.nc"
            save(posteriors[engine], path, tree=trees[engine], conversion=data.conversion)
        for warning in caught:
            click.echo(str(warning.message))

    table = inclusion_table(trees)
    predictions = {name: predict(p, model, inputs, y, data.inputs) for name, p in posteriors.items()}
    cells = _scored_cells(data, predictions, posteriors, model, inputs, y)
    scores = pd.concat(cells + baseline_cells, ignore_index=True)

    _write(out, data, table, predictions, scores)
    variance_shares(trees).to_csv(out / "variance_shares.csv", index=False)
    summary["data"]["interval"] = next(iter(predictions.values())).attrs["interval"]
    summary["scores_unit"] = "rmse: training sds of each output; nlpd: nats per cell, outputs in training sds"
    summary["scores"] = _summary_scores(data, scores)
    for engine in engines:
        summary[engine] |= _engine_summary(engine, posteriors[engine], trees[engine], table)
        summary[engine] |= summary["scores"].get("test", {}).get(engine, {"rmse": None, "nlpd": None})
    comparison = compare_engines(trees, predictions) if len(trees) == 2 else None
    if comparison is not None:
        comparison.to_csv(out / "comparison.csv", index=False)
        summary["largest_differences"] = largest_differences(comparison)
    (out / "summary.json").write_text(json.dumps(_plain(summary), indent=2, default=str) + "\n")
    _figures(out, data, table, predictions, trees, posteriors, comparison)
    shutil.rmtree(folder, ignore_errors=True)
    _report(out, table, summary, trees)
    if prune_below is not None:
        smaller = _smaller(model, trees, prune_below)
        if smaller is not None:
            again = SimpleNamespace(
                __file__=module.__file__,
                data=lambda: data,
                model=lambda data: smaller,
                SVI=module.SVI,
                GIBBS=module.GIBBS,
            )
            (out / "pruned" / "figures").mkdir(parents=True, exist_ok=True)
            options: dict[str, Any] = {"progress": progress, "fresh": fresh, "checkpoint_seconds": checkpoint_seconds}
            pruned = run(again, engines=engines, seed=seed, out=out / "pruned", **options)
            _report_lost(out / "pruned", _lost(scores, pruned))
    return scores


def _smaller(model: ALPS, trees: dict[str, xr.DataTree], prune_below: float) -> ALPS | None:
    """The pruned model, by the Gibbs run where there is one; None where nothing is left out."""
    try:
        smaller = prune(model, trees["gibbs"] if "gibbs" in trees else trees["svi"], threshold=prune_below)
    except ValueError as error:
        raise BadInput(f"--prune: {error}") from error
    left_out = [name for name in model.latents if name not in smaller.latents]
    if not left_out:
        click.echo(f"\nNothing to prune: every latent has a probability of {prune_below:g} or more.")
        return None
    click.echo(f"\nWithout {', '.join(left_out)}, fitted again:")
    return smaller


def _report_lost(out: Path, lost: pd.DataFrame) -> None:
    lost.to_csv(out / "lost.csv", index=False)
    for row in lost.itertuples():
        click.echo(
            f"{row.engine}, split {row.split!r}: {row.lost:.4f} nats of log predictive density lost per cell "
            f"(standard error over cells {row.se:.4f}, the sampler's own error not counted)"
        )


def _learnt(before: ALPS, after: ALPS) -> dict[str, float]:
    """The covariance parameters that were learnt."""
    values = dict(zip(after.latents, map(parameters, after.covariances), strict=True))
    return {
        f"{latent}.{path}": float(values[latent][path])
        for latent, bounds in before.covariance_bounds.items()
        for path in bounds
    }


def _lost(scores: pd.DataFrame, smaller: pd.DataFrame) -> pd.DataFrame:
    """Per engine and split, the mean log density per cell that the smaller model has less, over the same cells."""
    parts = []
    for engine in smaller.engine.unique():
        before, after = (frame[frame.engine == engine] for frame in (scores, smaller))
        parts.append(after[["engine", "split"]].assign(lost=after.nlpd.to_numpy() - before.nlpd.to_numpy()))
    lost = pd.concat(parts)
    found = lost.groupby(["engine", "split"], sort=False).lost.agg(lost="mean", se="sem").reset_index()
    held_out = found[found.split != "train"]
    return found if held_out.empty else held_out


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **found}


def _called(module: ModuleType | SimpleNamespace, name: str, kind: type, *arguments: Any) -> Any:
    """What the model file's function returns; whatever it raises becomes one line that names the place."""
    path, function = str(module.__file__), getattr(module, name)
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        expected = f"{name}({'data' if arguments else ''})"
        got = f"{name}{inspect.signature(function)}"
        raise BadInput(f"{Path(path).name}: expected the function {expected}, got {got}") from None
    try:
        value = function(*arguments)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        place = f"{Path(path).name}, line {lines[-1]}, in {name}()" if lines else f"{Path(path).name}: {name}()"
        raise BadInput(f"{place}: {type(error).__name__}: {error}") from error
    if not isinstance(value, kind):
        expected = f"an alps.{kind.__name__}" if kind in (Data, ALPS) else f"a {kind.__name__}"
        raise BadInput(f"{Path(path).name}: {name}(): expected it to return {expected}, got {type(value).__name__}")
    return value


def check_settings(model: ALPS, svi: dict, gibbs: dict, num_times: int, engines: Sequence[str]) -> None:
    """A ValueError or TypeError for what these engines would refuse of SVI and GIBBS, before any fit."""
    _check_keys("SVI", svi, SVI_SETTINGS)
    _check_keys("GIBBS", gibbs, (*KERNEL_SETTINGS, *MCMC_SETTINGS))
    _check_lengths(gibbs)
    if "svi" in engines:
        defaults = inspect.signature(fit_svi).parameters
        check_svi(num_times, **{name: svi.get(name, defaults[name].default) for name in SVI_SETTINGS})
    if "gibbs" in engines and not ("svi" in engines and model.covariance_bounds):  # SVI learns those first
        _kernel(model, gibbs)


def _kernel(model: ALPS, settings: dict) -> ALPSGibbs:
    return ALPSGibbs(model, **{name: settings[name] for name in KERNEL_SETTINGS if name in settings})


def _check_keys(which: str, settings: dict, known: tuple[str, ...]) -> None:
    unknown = [str(key) for key in settings if key not in known]
    if unknown:
        raise ValueError(f"{which}: unknown setting(s) {', '.join(unknown)}; known are {', '.join(known)}")


def fit(
    engine: str,
    model: ALPS,
    inputs,
    y,
    settings: dict,
    key,
    *,
    progress: bool = False,
    checkpoints: Checkpoints | None = None,
) -> SVIFit | GibbsFit | MCMC:
    """An engine's posterior under a model file's settings; with ``checkpoints`` it can go on after it was killed."""
    if engine == "svi":
        return fit_svi(model, inputs, y, rng_key=key, progress_bar=progress, checkpoints=checkpoints, **settings)
    kernel = _kernel(model, settings)
    lengths = _run_lengths(settings)
    if lengths["chain_method"] == "vectorized" or lengths["num_chains"] == 1:
        part = None if checkpoints is None else checkpoints.part("gibbs", "sweeps")
        del lengths["chain_method"]
        return run_chains(kernel, key, inputs, y, progress_bar=progress, checkpoint=part, **lengths)
    mcmc = MCMC(kernel, progress_bar=progress, **lengths)
    mcmc.run(key, inputs, y)
    jax.block_until_ready(mcmc.get_samples())
    return mcmc


def _run_lengths(settings: dict) -> dict:
    """Of GIBBS, what is MCMC's, with the defaults of what it leaves out."""
    defaults = {"num_warmup": 500, "num_samples": 1000, "num_chains": 4, "chain_method": "vectorized"}
    return defaults | {name: settings[name] for name in MCMC_SETTINGS if name in settings}


def _check_lengths(settings: dict) -> None:
    """A ValueError for run lengths that can't be, before any fit."""
    lengths = {"thinning": 1} | _run_lengths(settings)
    for name in ("num_samples", "num_chains", "thinning"):
        check_count(f"GIBBS.{name}", lengths[name])
    if lengths["num_warmup"] != 0:
        check_count("GIBBS.num_warmup", lengths["num_warmup"])
    if lengths["thinning"] > lengths["num_samples"]:
        raise ValueError(
            f"GIBBS.thinning: expected at most num_samples, {lengths['num_samples']}, got {lengths['thinning']}"
        )
    method = lengths["chain_method"]
    if method not in CHAIN_METHODS and not callable(method):
        raise ValueError(f"GIBBS.chain_method: expected one of {', '.join(CHAIN_METHODS)}, got {method!r}")


def _clear(out: Path) -> None:
    """Remove what an earlier run wrote into the folder: what is there must be of one run."""
    for name in (*TABLES, "summary.json", "posterior_svi.nc", "posterior_gibbs.nc", "report.html"):
        (out / name).unlink(missing_ok=True)
    for figure in FIGURES:
        (out / "figures" / f"{figure}.png").unlink(missing_ok=True)
    shutil.rmtree(out / "pruned", ignore_errors=True)


def _scored_cells(data: Data, predictions, posteriors, model, inputs, y) -> list[pd.DataFrame]:
    """Per engine and observed cell: the squared error and minus the log density, in training sds."""
    frames = []
    for engine, prediction in predictions.items():
        density = log_predictive_density(posteriors[engine], model, inputs, y, data.inputs, data.standardised)
        frames.append(_cells(data, engine, prediction["mean"].values, density.values))
    return frames


def _baseline_cells(data: Data, baselines: dict) -> list[pd.DataFrame]:
    """``baselines`` are (mean, sd) in the file's units, (time, output) each."""
    frames = []
    for name, pair in baselines.items():
        try:
            mean, sd = (np.broadcast_to(np.asarray(values, float), data.y.shape) for values in pair)
        except (TypeError, ValueError) as error:
            raise ValueError(f"baselines(): {name!r}: expected (mean, sd), {data.y.shape} each: {error}") from error
        mean, sd = (mean - data.loc) / data.scale, sd / data.scale
        frames.append(_cells(data, name, mean, norm.logpdf(data.standardised, mean, sd)))
    return frames


def _cells(data: Data, engine: str, mean: np.ndarray, log_density: np.ndarray) -> pd.DataFrame:
    row, column = np.nonzero(~np.isnan(data.y))
    return pd.DataFrame(
        {
            "engine": engine,
            "split": data.split[row, column],
            "output": np.array(data.outputs)[column],
            "squared_error": (data.standardised - mean)[row, column] ** 2,
            "nlpd": -log_density[row, column],
            "scale": data.scale[column],
        }
    )


def _summary_scores(data: Data, scores: pd.DataFrame) -> dict:
    """{split: {engine: {rmse, nlpd}}}, in training sds; NaN where a split has no observed cell."""
    splits, engines = dict.fromkeys(data.split.ravel()), scores.engine.unique()
    averaged = scores.groupby(["split", "engine"])[["squared_error", "nlpd"]].mean()

    def score(split, engine):
        squared_error, nlpd = averaged.loc[split, engine] if (split, engine) in averaged.index else (np.nan, np.nan)
        return {"rmse": float(np.sqrt(squared_error)), "nlpd": float(nlpd)}

    return {str(split): {engine: score(split, engine) for engine in engines} for split in splits}


def _engine_summary(engine: str, posterior: Any, tree: xr.DataTree, table: pd.DataFrame) -> dict:
    if engine == "svi":
        return {"elbo": posterior.elbo}
    max_rhat, min_ess = worst_convergence(table, engine)
    if tree["posterior"].sizes["chain"] == 1:  # nothing to compare it with
        return {"max_rhat": np.nan, "min_ess": min_ess, "lp_rhat": np.nan}
    return {"max_rhat": max_rhat, "min_ess": min_ess, "lp_rhat": log_joint_r_hat(tree)}


def _plain(value: Any) -> Any:
    """NaN has no place in JSON: null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _write(out: Path, data: Data, table, predictions, scores) -> None:
    table[["latent", "engine", "probability", "mcse", "prior"]].to_csv(out / "inclusion.csv", index=False)
    frames = [_prediction_frame(data, engine, prediction) for engine, prediction in predictions.items()]
    pd.concat(frames).to_csv(out / "predictions.csv", index=False)
    # In the file's units: errors times the training sd, densities divided by it.
    in_units = scores.assign(
        squared_error=scores.squared_error * scores.scale**2, nlpd=scores.nlpd + np.log(scores.scale)
    )
    per_output = in_units.groupby(["engine", "split", "output"], sort=False)[["squared_error", "nlpd"]].mean()
    per_output.insert(0, "rmse", np.sqrt(per_output.pop("squared_error")))
    per_output["unit"] = [data.units.get(o, "as in the file") for o in per_output.index.get_level_values("output")]
    per_output.reset_index().to_csv(out / "scores.csv", index=False)


def _prediction_frame(data: Data, engine: str, prediction: xr.Dataset) -> pd.DataFrame:
    in_units = data.to_units(prediction)
    num_times, num_outputs = data.y.shape
    return pd.DataFrame(
        {
            "split": data.split.ravel(),
            **({} if data.dates is None else _columns("date", data.dates, num_outputs)),
            **_columns("input", data.inputs, num_outputs),
            "output": np.tile(data.outputs, num_times),
            "engine": engine,
            "observed": data.y.ravel(),
            **{name: in_units[name].values.ravel() for name in ("mean", "sd", "lower", "upper")},
        }
    )


def _columns(name: str, values: Any, num_outputs: int) -> dict[str, np.ndarray]:
    """``values`` (time,) or (time, column) by the names of their columns, each repeated for every output."""
    columns = np.asarray(values).reshape(len(values), -1).T
    names = [name] if len(columns) == 1 else [f"{name}_{k}" for k in range(len(columns))]
    return {key: np.repeat(column, num_outputs) for key, column in zip(names, columns, strict=True)}


def predict_table(path: Path, table: pd.DataFrame, *, interval: float) -> pd.DataFrame:
    """A saved posterior's predictions at the times of a table, in the units of the table that was fitted.

    The times are its only columns, or those named as the ones that were fitted.
    """
    posterior, conversion = load(path), load_conversion(path)
    if conversion is None:
        raise ValueError(f"{path}: expected a file that alps-ppl run wrote, got one without the table's units")
    wanted = conversion.columns
    columns = [str(column).strip() for column in table.columns]
    if not set(wanted) <= set(columns) and len(columns) != len(wanted):
        raise ValueError(f"expected a column for the times, {', '.join(wanted)}, got {', '.join(columns)}")
    if not set(wanted) <= set(columns) and any(_is_time(column, conversion) for column in columns):
        raise ValueError(f"expected a line with the columns' names first, e.g. {', '.join(wanted)}, got {columns[0]}")
    table = table.set_axis(columns, axis=1)
    times = (table[wanted] if set(wanted) <= set(columns) else table).to_numpy()
    times = times[:, 0] if len(wanted) == 1 else times
    inputs = conversion.to_inputs(times)
    prediction = conversion.to_units(predict(posterior, new_inputs=inputs, interval=interval))
    num_outputs = len(conversion.outputs)
    return pd.DataFrame(
        {
            **({} if conversion.origin is None else _columns("date", times, num_outputs)),
            **_columns("input", inputs, num_outputs),
            "output": np.tile(conversion.outputs, len(times)),
            **{name: prediction[name].values.ravel() for name in ("mean", "sd", "lower", "upper")},
        }
    )


def _is_time(name: str, conversion: Conversion) -> bool:
    """Whether a column's name is a time itself: the file has no header."""
    try:
        conversion.to_inputs(np.array([float(name) if conversion.step is None else name]))
    except (TypeError, ValueError):
        return False
    return True


def _figures(out: Path, data: Data, table, predictions, trees, posteriors, comparison) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from alps_ppl import plots

    def save(axes, name):
        figure = np.ravel(axes)[0].figure
        figure.savefig(out / "figures" / f"{name}.png", dpi=130)
        plt.close(figure)

    in_units = {engine: data.to_units(prediction) for engine, prediction in predictions.items()}
    held_out = data.split != "train"
    if data.inputs.ndim == 2 and data.inputs.shape[1] > 1:  # no one axis to draw a reconstruction over
        save(plots.plot_predicted(in_units, data.y, held_out=held_out, units=data.units), "predicted")
    else:
        reconstruction = plots.plot_reconstruction(
            in_units, data.y, held_out=held_out, input_label=data.input_label, units=data.units
        )
        save(reconstruction, "reconstruction")
    save(plots.plot_inclusion(table), "inclusion")
    save(plots.plot_mixing(trees, unit="training sd of the output"), "mixing")
    if data.inputs.ndim == 1:
        save(plots.plot_latents(trees, input_label=data.input_label), "latents")
    if comparison is not None:
        save(plots.plot_engines(comparison, unit="training sd of the output"), "engines")
    if "svi" in posteriors:
        save(plots.plot_training(posteriors["svi"]), "training")


def _wide(table: pd.DataFrame, engines: list[str]) -> pd.DataFrame:
    """A row per latent: the prior, each engine's probability, and the sampler's diagnostics."""
    latents = list(dict.fromkeys(table.latent))
    wide = table.pivot(index="latent", columns="engine", values="probability").loc[latents, engines]
    wide.insert(0, "prior", table.drop_duplicates("latent").set_index("latent").prior)
    if "gibbs" in engines:
        wide = wide.join(table[table.engine == "gibbs"].set_index("latent")[["mcse", "r_hat", "ess"]])
    return wide.rename_axis(index=None, columns=None)


def _text(table: pd.DataFrame) -> str:
    return table.to_string(float_format="{:.3f}".format, formatters={"ess": "{:.0f}".format}, na_rep="-")


def _combinations(tree: xr.DataTree) -> str:
    """The three most probable gate vectors, in words."""
    vectors = gate_vectors(tree, top=3)
    latents = vectors.columns[:-2]
    names = [" + ".join(latents[row == 1]) or "none of them" for row in vectors[latents].to_numpy()]
    return "; ".join(f"{name} ({p:.3f})" for name, p in zip(names, vectors.probability, strict=True))


def _report(out: Path, table: pd.DataFrame, summary: dict, trees: dict[str, xr.DataTree]) -> None:
    engines = list(trees)
    wide = _wide(table, engines)
    click.echo("\nWhich processes are there? The probability that each gate is on:")
    click.echo(_text(wide))
    if "gibbs" in engines:
        click.echo("mcse (Monte Carlo standard error), r_hat and ess (effective draws) are the Gibbs sampler's.")
    if wide.get("ess", wide.prior).isna().any():
        click.echo("-: a gate that has the same value in every draw has no ess; with one chain none has an r_hat.")
    if "gibbs" in engines:
        click.echo(f"\nThe most probable combinations (Gibbs): {_combinations(trees['gibbs'])}.")
    click.echo("\nScores, the lower the better: rmse in training sds of each output; nlpd is minus the log predictive")
    click.echo("density per cell of outputs in training sds. In the file's units, per output: scores.csv.")
    rows = {(split, name): row for split, by_name in summary["scores"].items() for name, row in by_name.items()}
    click.echo(_text(pd.DataFrame(rows).T.dropna(how="all")))  # a forecast has no observed cell to score
    click.echo("\n" + ", ".join(f"{engine}: {summary[engine]['seconds']:.1f} s" for engine in engines))
    if "gibbs" in engines:
        _warn(**{name: summary["gibbs"][name] for name in ("max_rhat", "lp_rhat")})
    click.echo(f"Written to {out}; as a page: alps-ppl report {out}")


def _warn(max_rhat: float, lp_rhat: float) -> None:
    if np.isnan(max_rhat):
        click.echo("One chain can't tell whether it has converged; set GIBBS.num_chains to 2 or more.")
    if max_rhat > LARGEST_GATE_R_HAT:
        click.echo(
            f"The chains disagree: the largest R-hat of a gate is {max_rhat:.3f}, above {LARGEST_GATE_R_HAT}. Don't "
            "trust the Gibbs probabilities yet; raise GIBBS.num_warmup and GIBBS.num_samples."
        )
    if lp_rhat > LARGEST_LOG_JOINT_R_HAT:
        click.echo(
            f"The chains sit in different modes: the R-hat of the log joint is {lp_rhat:.2f}, above "
            f"{LARGEST_LOG_JOINT_R_HAT}. Where they agree on the gates, believe those more than H and the bands, which "
            "are averages over the modes. Often the dictionary is short of a process."
        )
