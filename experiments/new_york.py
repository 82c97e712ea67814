"""New York's weather, ``models/nyc_weather.py``, by the Gibbs sampler over several seeds.

``python -m experiments.new_york --seeds 5`` measures what ``docs/real_tables/new_york.json`` doesn't have yet.
"""

import time

import click
import jax
import numpy as np
import numpyro

import alps_ppl as alps
from alps_ppl.app.scores import of_cells
from alps_ppl.results.inclusion import log_joint_r_hat, worst_convergence
from alps_ppl.results.trees import tree_of
from experiments import store
from models import nyc_weather

PATH = store.ROOT / "docs" / "real_tables" / "new_york.json"


def row(seed: int, **lengths: int) -> dict:
    """Gates, convergence, and scores of the cells held out, in training sds."""
    data = nyc_weather.data()
    begin = time.perf_counter()
    key = jax.random.key(seed)
    fit = alps.fit_gibbs(
        nyc_weather.model(data), data.train_inputs, data.train_y, rng_key=key, progress_bar=False, **lengths
    )
    seconds = time.perf_counter() - begin
    table = alps.inclusion_table(fit)
    prediction = alps.predict(fit, data.inputs)
    density = alps.log_predictive_density(fit, data.inputs, data.standardised)
    in_units = data.to_units(prediction)["mean"].values
    cells = of_cells(data, "gibbs", prediction["mean"].values, density.values, in_units)
    inside = (prediction["lower"].values <= data.standardised) & (data.standardised <= prediction["upper"].values)
    cells["held"] = inside[~np.isnan(data.y)]
    means = cells.groupby("split")[["squared_error", "nlpd", "held"]].mean()
    means["rmse"] = np.sqrt(means.pop("squared_error"))
    scores = means.loc[["test", "gap"], ["rmse", "nlpd", "held"]].to_dict("index")
    return {
        "probability": table.set_index("latent").probability.to_dict(),
        "max_r_hat": worst_convergence(table, "gibbs")[0],
        "lp_r_hat": log_joint_r_hat(tree_of(fit)),
        "scores": scores,
        "seconds": round(seconds, 1),
        **lengths,
    }


@click.command()
@click.option(
    "--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="How many; the seeds are 0, 1, ..."
)
@click.option("--num-warmup", default=nyc_weather.GIBBS["num_warmup"], show_default=True)
@click.option("--num-samples", default=nyc_weather.GIBBS["num_samples"], show_default=True)
@click.option("--num-chains", default=nyc_weather.GIBBS["num_chains"], show_default=True)
def main(seeds: int, **lengths: int) -> None:
    """Measure what isn't kept yet, and print it."""
    numpyro.enable_x64()
    command = " ".join(
        ["python -m experiments.new_york", *(f"--{n.replace('_', '-')} {v}" for n, v in lengths.items())]
    )
    cases = [{"seed": seed} for seed in range(seeds)]
    for found in store.collect(PATH, cases, lambda case: row(case["seed"], **lengths), command=command):
        test, gap = ({n: round(v, 3) for n, v in found["scores"][split].items()} for split in ("test", "gap"))
        click.echo(f"{found['seed']}: test {test}, gap {gap}, R-hat of the log joint {found['lp_r_hat']:.2f}")


if __name__ == "__main__":
    main()
