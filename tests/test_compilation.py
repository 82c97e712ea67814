"""A second fit of the same shapes and settings compiles nothing: model and data are arguments of what is compiled."""

import jax
import numpy as np
import pytest
from problems import sines
from test_svi import SETTINGS as SVI

import alps_ppl as alps

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: COMPILED.append(event) if "backend_compile" in event else None
)

SETTINGS = {
    alps.fit_svi: SVI | {"num_inducing": 12},
    alps.fit_gibbs: {"num_warmup": 5, "num_samples": 5, "num_chains": 2},
}


def problem(seed):
    """Other data with other missing cells, and a model of other numbers under the same names."""
    t, y, _ = sines(seed=seed)
    y[seed] = np.nan
    latents = [(f"T={period:g}", alps.linear_periodic(period + 0.1 * seed)) for period in (7.0, 5.0)]
    return alps.ALPS(latents, 2, mixing_variance=1.0 + seed, noise_variance=0.1 + 0.1 * seed), t + seed, y


@pytest.mark.parametrize("engine", SETTINGS)
def test_a_second_fit_compiles_nothing(engine):
    """Of other data, by another key; nor do its draws of the latents at new inputs."""
    before = len(COMPILED)
    jax.jit(lambda x: 2 * x)(np.ones(3))
    assert len(COMPILED) > before
    for seed in (1, 2):
        before = len(COMPILED)
        model, t, y = problem(seed)
        fit = engine(model, t, y, **(SETTINGS[engine] | {"rng_key": jax.random.key(seed), "progress_bar": False}))
        assert np.isfinite(fit.at(fit.inputs[:7]).gated_H).all()
    assert len(COMPILED) == before
