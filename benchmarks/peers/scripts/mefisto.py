"""MEFISTO, a factor model with smooth factors (mofapy2), with the package's defaults.

It learns a squared-exponential lengthscale per factor and takes no dictionary: as many factors as processes on offer,
at most as many as outputs; unused ones are shrunk by its priors.
"""

import contextlib
import io

import numpy as np
from mofapy2.run.entry_point import entry_point


def fit(train_inputs, train_y, test_inputs, dictionary):
    """Means and sds of y: factors at new times, through the weights, plus noise."""
    offered = len(set(dictionary["periods"])) * dictionary["copies"] + len(dictionary["memories"])
    with contextlib.redirect_stdout(io.StringIO()):
        mofa = entry_point()
        mofa.set_data_options(center_groups=False)
        mofa.set_data_matrix([[train_y.copy()]])
        mofa.set_model_options(factors=min(offered, train_y.shape[1]))
        mofa.set_train_options(convergence_mode="fast", seed=0)
        mofa.set_covariates([train_inputs[:, None]])
        mofa.set_smooth_options()
        mofa.build()
        mofa.run()
        mofa.predict_factor(new_covariates=test_inputs[:, None])
    factors = mofa.Zpredictions
    nodes = mofa.model.nodes
    weights = nodes["W"].getExpectations()[0]
    noise = 1 / nodes["Tau"].getExpectation()[0][0]
    variance = factors["variance"] @ weights["E2"].T + factors["mean"] ** 2 @ (weights["E2"] - weights["E"] ** 2).T
    return factors["mean"] @ weights["E"].T, np.sqrt(variance + noise)
