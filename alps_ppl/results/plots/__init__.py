"""The paper's figures, as functions that return matplotlib axes.

``outputs``: series and predictions. ``latents``: gates, the mixing matrix, what the latents add. ``engines``: SVI's
training, both engines side by side. ``backtests``: rolling origins. ``calibration``: fits of simulated tables.
``style``: the engines' colours and names.
"""

from alps_ppl.results.plots.backtests import plot_backtest_forecasts, plot_backtest_gates, plot_calibration
from alps_ppl.results.plots.calibration import plot_ranks, plot_rates, plot_reliability
from alps_ppl.results.plots.engines import plot_engines, plot_training
from alps_ppl.results.plots.latents import plot_inclusion, plot_latents, plot_mixing, plot_strengths
from alps_ppl.results.plots.outputs import plot_predicted, plot_reconstruction
from alps_ppl.results.plots.style import COLOURS, NAMES

__all__ = [
    "COLOURS",
    "NAMES",
    "plot_backtest_forecasts",
    "plot_backtest_gates",
    "plot_calibration",
    "plot_engines",
    "plot_inclusion",
    "plot_latents",
    "plot_mixing",
    "plot_predicted",
    "plot_ranks",
    "plot_rates",
    "plot_reconstruction",
    "plot_reliability",
    "plot_strengths",
    "plot_training",
]
