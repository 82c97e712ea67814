"""How long the rest of a long fit takes, said once its pace is known."""

import logging
from time import perf_counter

LOGGER = logging.getLogger(__name__)
# What takes less needs no word, in seconds.
WORTH_SAYING = 10.0


class Estimate:
    """Logs, at level INFO, how long a fit takes, after its first steps: the bar's word for who sees no bar.

    Made after compilation, which is no part of the pace.
    """

    def __init__(self, name: str, unit: str, left: int):
        self.name, self.unit, self.left = name, unit, left
        self._since: float | None = perf_counter()

    def update(self, done: int) -> None:
        """After each piece of work: how many steps it was."""
        self.left -= done
        if self._since is None:
            return
        seconds = (perf_counter() - self._since) / done * self.left
        self._since = None
        if seconds >= WORTH_SAYING:
            LOGGER.info("%s: about %s for %s more %s", self.name, in_words(seconds), f"{self.left:,}", self.unit)


def in_words(seconds: float) -> str:
    """Such as "40 s", "7 min" or "2.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
