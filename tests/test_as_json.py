"""Models in plain data come back to the bit, and nobody's code runs."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from problems import COVARIANCES, OF_COLUMNS

import alps_ppl as alps
from alps_ppl.model.as_json import decode, describe, encode, foreign, rebuild

T = np.arange(40.0) + 0.25 * (np.arange(40) % 3)


@pytest.mark.parametrize("name", [*COVARIANCES, *OF_COLUMNS])
def test_a_covariance_comes_back_to_the_bit(name):
    covariance = (COVARIANCES | OF_COLUMNS)[name]
    description = json.loads(json.dumps(encode(covariance)))
    assert foreign(description) == []
    again = decode(description)
    assert jax.tree.structure(again) == jax.tree.structure(covariance)
    inputs = jnp.asarray(T if name in COVARIANCES else np.stack([T, T[::-1] / 3], 1))
    np.testing.assert_array_equal(again(inputs, inputs), covariance(inputs, inputs))


@pytest.mark.parametrize(
    "noise",
    [0.1, [0.1, 0.25], dist.InverseGamma(2.0, 0.1), dist.HalfNormal(jnp.array([0.1, 1 / 3])), dist.LogNormal(0.0, 1.0),
     dist.HalfCauchy(0.3).expand([2]), dist.InverseGamma(3.0, 0.4).expand([2])],
)  # fmt: skip
def test_a_model_comes_back(noise):
    model = alps.ALPS(
        COVARIANCES, ["u", "v"], noise_variance=noise, jitter=1e-7, mixing_variance=[0.5, 1 / 3],
        inclusion_prob=np.linspace(0, 1, len(COVARIANCES)),
    )  # fmt: skip
    again = rebuild(json.loads(json.dumps(describe(model))))
    assert (again.latents, again.outputs, again.jitter) == (model.latents, model.outputs, model.jitter)
    for name in ("inclusion_prob", "mixing_variance", "noise_variance"):
        expected, got = (jax.tree.leaves(getattr(m, name)) for m in (model, again))
        assert type(getattr(again, name)) is type(getattr(model, name))
        assert all(map(np.array_equal, got, expected))


def test_gates_come_back():
    """Shared gates, a learnt theta, latents without a gate, bounds of covariance parameters."""
    model = alps.ALPS(
        {"day/night": COVARIANCES["cosine"], "b": COVARIANCES["exp"], "c": COVARIANCES["rbf"]},
        inclusion_prob=dist.Beta(1.0, 3.0),
        always_on=["c"],
        shared_gates={"both": ["day/night", "b"]},
        covariance_bounds={"day/night": {"scale": (6.0, 8.0)}},
        noise_variance=0.1,
    )
    again = rebuild(json.loads(json.dumps(describe(model))))
    assert (again.gate_names, again.covariance_bounds) == (model.gate_names, model.covariance_bounds)
    np.testing.assert_array_equal(again.gate_of, model.gate_of)
    np.testing.assert_array_equal(again.inclusion_prob, model.inclusion_prob)
    assert (again.inclusion_prior.concentration1, again.inclusion_prior.concentration0) == (1.0, 3.0)


def test_a_file_runs_nobodys_code():
    """A class that isn't tinygp's or NumPyro's is refused, whatever the file says."""
    for name in ("os.system", "alps_ppl.model.alps.ALPS", "numpyro.distributions.Mine", "tinygp.kernels.base.eqx"):
        with pytest.raises(ValueError, match="expected a class of tinygp's or NumPyro's, got"):
            decode({"class": name, "fields": {}})
