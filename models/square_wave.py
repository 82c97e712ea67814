"""The paper's square wave (section 4.1): which harmonics make it up?

One output, a square wave of 0.05 Hz, and m = 8 linear-periodic latents of frequencies i * 0.05 Hz. A square
wave has odd harmonics only, so latents 1, 3, 5 and 7 should be on and the even ones off, with l = 10 inducing inputs.

The paper doesn't say how many times there are, nor the noise. Here: 100 s at 2 Hz (five periods), no noise in the
data, and a model noise sd of 0.2, near what the four harmonics leave over (root mean square 0.21). The gates'
answer doesn't hang on it.
"""

import numpy as np

import alps_ppl as alps

FREQUENCY = 0.05  # Hz
NOISE_SD = 0.2


def data() -> alps.Data:
    """Five periods of the square wave."""
    t = np.arange(0, 100, 0.5)
    wave = np.where((t * FREQUENCY) % 1 < 0.5, 1.0, -1.0)
    return alps.Data(t, wave, outputs=["square wave"], input_label="t [s]")


def model(data: alps.Data) -> alps.ALPS:
    """Eight harmonics, each on with prior probability 1/2."""
    harmonics = {f"{i} f": alps.linear_periodic(1 / (i * FREQUENCY)) for i in range(1, 9)}
    return alps.ALPS(harmonics, data.outputs, inclusion_prob=0.5, mixing_variance=1.0, noise_variance=NOISE_SD**2)


SVI = {"num_inducing": 10, "num_steps": 10_000, "learning_rate": 0.01}
GIBBS = {"num_warmup": 500, "num_samples": 1_000, "num_chains": 4}
