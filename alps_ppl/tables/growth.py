"""Outputs whose swings grow with their level, as sales do: those of their logarithm don't."""

import numpy as np
from jaxtyping import Float

from alps_ppl.tables.data import Data

# Blocks of neighbouring cells, and the fewest cells of one.
FEWEST_BLOCKS, MOST_BLOCKS, FEWEST_CELLS = 5, 10, 8
# Of log spread over log level: a slope of 1 is a share of the level, one of 0 swings that don't grow.
SLOPE, CORRELATION = 0.6, 0.85
# Below this ratio of levels a logarithm is nearly a straight line.
RATIO = 1.5
# Of the log level with time: a summer whose days differ more than a winter's isn't growth.
GROWS = 0.8


def logarithms(log: str, data: Data) -> list[str]:
    """The outputs to model by their logarithm: "auto" means the growing ones, "none" none, and else they are named."""
    if log.strip().lower() == "auto":
        return growing(data)
    return [] if log.strip().lower() == "none" else [name.strip() for name in log.split(",")]


def growing(data: Data) -> list[str]:
    """The outputs whose training cells grow with their level, and all of whose cells are positive."""
    if data.inputs.ndim > 1:
        return []
    training = np.where(data.train, data.y, np.nan)
    positive = (np.isnan(data.y) | (data.y > 0)).all(0)
    return [
        name
        for name, column, can in zip(data.outputs, training.T, positive, strict=True)
        if can and grows_with_level(data.inputs, column)
    ]


def grows_with_level(t: Float[np.ndarray, " time"], y: Float[np.ndarray, " time"]) -> bool:
    """Whether an output's swings are a share of its level rather than a size of their own.

    The level and the spread about a straight line are taken in blocks of neighbours. The logarithm of the spread must
    rise with that of the level by a slope of .6 or more, with a correlation of .85 or more, and the level must change
    by half at least and go one way, its logarithm correlated by .8 or more with time. So it must be with half or more
    of the divisions into five to ten blocks: a division may cut a season where it looks like growth, or hides it. All
    observed cells must be positive. ``y`` has NaN where nothing is observed.
    """
    seen = ~np.isnan(y)
    order = np.argsort(np.asarray(t)[seen], kind="stable")
    values = np.asarray(y)[seen][order]
    divisions = range(FEWEST_BLOCKS, min(MOST_BLOCKS, len(values) // FEWEST_CELLS) + 1)
    if len(divisions) == 0 or not (values > 0).all():
        return False
    return sum(_grow_in_blocks(np.array_split(values, number)) for number in divisions) >= len(divisions) / 2


def _grow_in_blocks(blocks: list[np.ndarray]) -> bool:
    level = np.array([block.mean() for block in blocks])
    spread = np.array([_about_a_line(block) for block in blocks])
    if not (spread > 0).all() or level.max() < RATIO * level.min():
        return False
    x, z = np.log(level), np.log(spread)
    slope, correlation = np.polyfit(x, z, 1)[0], np.corrcoef(x, z)[0, 1]
    one_way = abs(np.corrcoef(np.arange(len(blocks)), x)[0, 1])
    return bool(slope >= SLOPE and correlation >= CORRELATION and one_way >= GROWS)


def _about_a_line(values: np.ndarray) -> float:
    place = np.arange(len(values))
    return float((values - np.polyval(np.polyfit(place, values, 1), place)).std())
