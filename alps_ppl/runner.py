"""What ``alps-ppl run`` does with a model file: fit, tabulate, predict, score, draw and write."""

import inspect
import json
import platform
import time
import traceback
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import jax
import numpy as np
import pandas as pd
import xarray as xr
from numpyro.infer import MCMC
from scipy.stats import norm

from alps_ppl.cli import BadInput
from alps_ppl.data import Data
from alps_ppl.diagnostics import inclusion_table, log_joint_r_hat, to_datatree, worst_convergence
from alps_ppl.gibbs import ALPSGibbs
from alps_ppl.model import ALPS
from alps_ppl.prediction import log_predictive_density, predict
from alps_ppl.svi import NonFiniteLossError, fit_svi

KERNEL_SETTINGS = ("blocks", "max_rank", "tolerance")
MCMC_SETTINGS = ("num_warmup", "num_samples", "num_chains", "thinning", "chain_method")
PACKAGES = ("alps-ppl", "numpyro", "jax", "tinygp", "arviz-base", "arviz-stats", "numpy")


def run(module: ModuleType, *, engines: list[str], seed: int, out: Path, progress: bool) -> None:
    """Everything, in order; bad input is found before the first fit."""
    file = Path(str(module.__file__)).name
    try:
        data = _called(module, "data", Data)
        model = _called(module, "model", ALPS, data)
        model.check(data.inputs)
        inputs, y = model.check(data.train_inputs, data.train_y)
        if list(model.outputs) != data.outputs:
            raise ValueError(f"{file}: the model's outputs {list(model.outputs)} aren't the data's {data.outputs}")
        _check_keys("SVI", module.SVI, _svi_settings())
        _check_keys("GIBBS", module.GIBBS, (*KERNEL_SETTINGS, *MCMC_SETTINGS))
    except (ValueError, TypeError, OSError) as error:
        raise BadInput(str(error)) from error
    click.echo(f"{file}: {data}")

    baselines = {}
    if hasattr(module, "baselines"):
        click.echo("Baselines ...")
        baselines = _called(module, "baselines", dict, data)
    posteriors: dict[str, Any] = {}
    trees: dict[str, xr.DataTree] = {}
    summary: dict[str, Any] = {"seed": seed, "model_file": file, "versions": versions()}
    summary["settings"] = {engine: getattr(module, engine.upper()) for engine in engines}
    keys = dict(zip(("svi", "gibbs"), jax.random.split(jax.random.key(seed)), strict=True))
    for engine in engines:
        fit = {"svi": _fit_svi, "gibbs": _fit_gibbs}[engine]
        start = time.perf_counter()
        try:
            posteriors[engine] = fit(model, inputs, y, getattr(module, engine.upper()), keys[engine], progress)
        except NonFiniteLossError as error:
            raise click.ClickException(str(error)) from error
        except (ValueError, TypeError) as error:
            raise BadInput(str(error)) from error
        summary[engine] = {"seconds": round(time.perf_counter() - start, 2)}
        # Written at once: what comes after can't lose a fit that took minutes.
        trees[engine] = to_datatree(posteriors[engine], model, inputs, y)
        _write_tree(out / f"posterior_{engine}.nc", trees[engine])

    table = inclusion_table(trees)
    predictions = {name: predict(p, model, inputs, y, data.inputs) for name, p in posteriors.items()}
    cells = _scored_cells(data, predictions, posteriors, model, inputs, y)
    cells += _baseline_cells(data, baselines)
    scores = pd.concat(cells, ignore_index=True)

    _write(out, data, table, predictions, scores)
    for engine in engines:
        summary[engine] |= _engine_summary(engine, posteriors[engine], trees[engine], table, scores)
    summary["scores"] = _summary_scores(scores)
    (out / "summary.json").write_text(json.dumps(_plain(summary), indent=2, default=str) + "\n")
    _figures(out, data, table, predictions, trees, posteriors)
    _report(out, table, summary, engines)


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {name: metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **found}


def _called(module: ModuleType, name: str, kind: type, *arguments: Any) -> Any:
    """What the model file's function returns; whatever it raises becomes one line that names the place."""
    path = str(module.__file__)
    try:
        value = getattr(module, name)(*arguments)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        place = f"{Path(path).name}, line {lines[-1]}, in {name}()" if lines else f"{Path(path).name}: {name}()"
        raise BadInput(f"{place}: {type(error).__name__}: {error}") from error
    if not isinstance(value, kind):
        expected = f"an alps.{kind.__name__}" if kind in (Data, ALPS) else f"a {kind.__name__}"
        raise BadInput(f"{Path(path).name}: {name}(): expected it to return {expected}, got {type(value).__name__}")
    return value


def _svi_settings() -> tuple[str, ...]:
    fixed = {"model", "inputs", "y", "rng_key", "progress_bar"}
    return tuple(name for name in inspect.signature(fit_svi).parameters if name not in fixed)


def _check_keys(which: str, settings: dict, known: tuple[str, ...]) -> None:
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise ValueError(f"{which}: unknown setting(s) {', '.join(unknown)}; known are {', '.join(known)}")


def _fit_svi(model, inputs, y, settings, key, progress):
    return fit_svi(model, inputs, y, rng_key=key, progress_bar=progress, **settings)


def _fit_gibbs(model, inputs, y, settings, key, progress):
    kernel = ALPSGibbs(model, **{name: settings[name] for name in KERNEL_SETTINGS if name in settings})
    defaults = {"num_warmup": 500, "num_samples": 1000, "num_chains": 4, "chain_method": "vectorized"}
    chosen = defaults | {name: settings[name] for name in MCMC_SETTINGS if name in settings}
    mcmc = MCMC(kernel, progress_bar=progress, **chosen)
    click.echo(f"Gibbs: {chosen['num_chains']} chains of {chosen['num_warmup']} + {chosen['num_samples']} sweeps")
    mcmc.run(key, inputs, y)
    jax.block_until_ready(mcmc.get_samples())
    return mcmc


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
    for name, (mean, sd) in baselines.items():
        mean, sd = (np.broadcast_to(mean, data.y.shape) - data.loc) / data.scale, np.asarray(sd) / data.scale
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


def _summary_scores(scores: pd.DataFrame) -> dict:
    """{split: {engine: {rmse, nlpd}}}, in training sds."""
    averaged = scores.groupby(["split", "engine"], sort=False)[["squared_error", "nlpd"]].mean()
    return {
        split: {
            engine: {"rmse": float(np.sqrt(row.squared_error)), "nlpd": float(row.nlpd)}
            for (_, engine), row in rows.iterrows()
        }
        for split, rows in averaged.groupby(level=0, sort=False)
    }


def _engine_summary(engine: str, posterior: Any, tree: xr.DataTree, table: pd.DataFrame, scores: pd.DataFrame) -> dict:
    test = _summary_scores(scores).get("test", {}).get(engine, {"rmse": None, "nlpd": None})
    if engine == "svi":
        return {"elbo": posterior.elbo, **test}
    max_rhat, min_ess = worst_convergence(table, engine)
    return {"max_rhat": max_rhat, "min_ess": min_ess, "lp_rhat": log_joint_r_hat(tree), **test}


def _plain(value: Any) -> Any:
    """NaN has no place in JSON: null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _write_tree(path: Path, tree: xr.DataTree) -> None:
    """As compressed netCDF; draws in single precision, which is far below their Monte Carlo error."""
    encoding = {}
    for name, group in tree.children.items():
        encoding[f"/{name}"] = {
            variable: {"zlib": True, "complevel": 1}
            | ({"dtype": "float32"} if "draw" in values.dims and values.dtype.kind == "f" else {})
            for variable, values in group.data_vars.items()
        }
    tree.to_netcdf(path, encoding=encoding, engine="h5netcdf")


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
    per_output.reset_index().to_csv(out / "scores.csv", index=False)


def _prediction_frame(data: Data, engine: str, prediction: xr.Dataset) -> pd.DataFrame:
    in_units = data.to_units(prediction)
    num_times, num_outputs = data.y.shape
    columns = data.inputs.reshape(num_times, -1)
    names = ["input"] if columns.shape[1] == 1 else [f"input_{k}" for k in range(columns.shape[1])]
    return pd.DataFrame(
        {
            "split": data.split.ravel(),
            **{name: np.repeat(columns[:, k], num_outputs) for k, name in enumerate(names)},
            "output": np.tile(data.outputs, num_times),
            "engine": engine,
            "observed": data.y.ravel(),
            **{name: in_units[name].values.ravel() for name in ("mean", "sd", "lower", "upper")},
        }
    )


def _figures(out: Path, data: Data, table, predictions, trees, posteriors) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from alps_ppl import plots

    def save(axes, name):
        figure = np.ravel(axes)[0].figure
        figure.savefig(out / "figures" / f"{name}.png", dpi=130)
        plt.close(figure)

    in_units = {engine: data.to_units(prediction) for engine, prediction in predictions.items()}
    reconstruction = plots.plot_reconstruction(
        in_units, data.y, held_out=data.split != "train", input_label=data.input_label, units=data.units
    )
    save(reconstruction, "reconstruction")
    save(plots.plot_inclusion(table), "inclusion")
    save(plots.plot_mixing(trees), "mixing")
    if "svi" in posteriors:
        save(plots.plot_training(posteriors["svi"]), "training")


def _wide(table: pd.DataFrame) -> pd.DataFrame:
    """A row per latent: the prior, each engine's probability, and the sampler's diagnostics."""
    latents = list(dict.fromkeys(table.latent))
    wide = table.pivot(index="latent", columns="engine", values="probability").loc[latents]
    wide.insert(0, "prior", table.drop_duplicates("latent").set_index("latent").prior)
    sampled = table[table.mcse.notna()].set_index("latent")
    if len(sampled):
        wide = wide.join(sampled[["mcse", "r_hat"]]).join(sampled.ess.round())
    return wide.rename_axis(index=None, columns=None)


def _report(out: Path, table: pd.DataFrame, summary: dict, engines: list[str]) -> None:
    click.echo("\nWhich processes are there? The probability that each gate is on:")
    click.echo(_wide(table).to_string(na_rep="", float_format=lambda value: f"{value:.3f}"))
    for split, by_engine in summary["scores"].items():
        click.echo(f"\n{split} cells, in training sds:")
        click.echo(pd.DataFrame(by_engine).T.to_string(float_format=lambda value: f"{value:.3f}"))
    for engine in engines:
        click.echo(f"\n{engine}: {summary[engine]['seconds']:.1f} s", nl=False)
    max_rhat = summary.get("gibbs", {}).get("max_rhat") or 0
    if max_rhat > 1.01:
        click.echo(
            f"\nThe chains disagree: the largest R-hat of a gate is {max_rhat:.3f}, above 1.01. Don't trust the Gibbs "
            "probabilities yet; raise GIBBS.num_warmup and GIBBS.num_samples.",
            nl=False,
        )
    lp_rhat = summary.get("gibbs", {}).get("lp_rhat") or 0
    if lp_rhat > 1.1:
        click.echo(
            f"\nThe chains sit in different modes: the R-hat of the log joint is {lp_rhat:.2f}. Their average isn't "
            "the posterior. Often the dictionary is short of a process; compare the chains in posterior_gibbs.nc.",
            nl=False,
        )
    click.echo(f"\nWritten to {out}")
