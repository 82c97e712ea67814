"""The report's charts as SVG paths.

A chart's drawing area is stretched to its box, whatever that is, with strokes that don't scale, and its labels are
HTML text over it. So text stays readable at a phone's width, and colours are the page's CSS variables.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from alps_ppl.results.gaps import with_gaps

SIZE = 1000  # of the drawing area, in its own units
LARGEST = 1500  # points of a line
# Of a label's width at a phone's width, in percent of the chart's: of a character, and of what is around the text.
CHARACTER, PADDING = 2.3, 3.0
LABEL_ROWS = 2


class Layer(NamedTuple):
    """An SVG path and its CSS classes."""

    path: str
    kind: str


class Span(NamedTuple):
    """A shaded stretch of times, in percent of the width.

    ``row``: of its label above the chart, None where there is no room for it. The label's ``anchor`` ("left", "centre"
    or "right") is ``at`` percent.
    """

    left: float
    width: float
    label: str
    kind: str
    row: int | None = None
    at: float = 0.0
    anchor: str = "centre"


class Chart(NamedTuple):
    """What the page's macro draws; ticks are (percent, text). ``every``: 3 if one of three points is drawn."""

    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    x_label: str
    layers: list[Layer]
    spans: list[Span]
    description: str
    every: int


class Axis:
    """Values to the drawing area, from ``low`` to ``high`` with a margin (a share of the range) on both sides."""

    def __init__(self, *values: Any, margin: float = 0.0, dates: bool = False):
        finite = np.concatenate([np.ravel(v).astype(float) for v in values])
        finite = finite[np.isfinite(finite)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        spare = margin * (high - low) if high > low else 0.5 * (abs(low) or 1.0)
        self.low, self.high, self.dates = low - spare, high + spare, dates

    def __call__(self, values: Any) -> np.ndarray:
        """0 at the low end, 1 at the high end."""
        return (np.asarray(values, float) - self.low) / (self.high - self.low)

    def ticks(self, number: int) -> tuple[list[tuple[float, str]], str]:
        """About ``number`` ticks, and what all of their labels share (a date's year, say)."""
        places, labels, shared = _date_ticks(self, number) if self.dates else _number_ticks(self, number)
        inside = [(100 * float(p), label) for p, label in zip(self(places), labels, strict=True) if 0 <= p <= 1]
        return inside, shared


def _number_ticks(axis: Axis, number: int) -> tuple[np.ndarray, list[str], str]:
    from matplotlib.ticker import MaxNLocator

    places = np.asarray(MaxNLocator(number, steps=[1, 2, 5, 10]).tick_values(axis.low, axis.high))
    step = places[1] - places[0]
    decimals = max(0, -int(np.floor(np.log10(step) + 1e-9)))
    if decimals > 4 or np.abs(places).max() >= 1e7:
        return places, [f"{p:.6g}" for p in places], ""
    return places, [f"{p + 0.0:,.{decimals}f}".replace("-", "−") for p in places.round(decimals)], ""


def _date_ticks(axis: Axis, number: int) -> tuple[np.ndarray, list[str], str]:
    """``axis`` is in matplotlib's days."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, num2date

    locator = AutoDateLocator(minticks=number // 2, maxticks=number)
    places = np.asarray(locator.tick_values(num2date(axis.low), num2date(axis.high)))
    places = places[(places >= axis.low) & (places <= axis.high)]
    formatter = ConciseDateFormatter(locator)
    labels = formatter.format_ticks(list(places))
    return places, labels, formatter.get_offset()


def _points(x: np.ndarray, y: np.ndarray) -> list[str]:
    across, down = np.round(SIZE * x, 1), np.round(SIZE * (1 - y)).astype(int)
    return [f"{a:g} {d}" for a, d in zip(across, down, strict=True)]


def _runs(flags: np.ndarray) -> np.ndarray:
    """(start, stop) of each run of True."""
    return np.flatnonzero(np.diff(flags, prepend=False, append=False)).reshape(-1, 2)


def line(x: np.ndarray, y: np.ndarray) -> str:
    """A line through the points, broken where y is NaN; ``x`` and ``y`` are an ``Axis``'s fractions."""
    parts = [_points(x[a:b], y[a:b]) for a, b in _runs(np.isfinite(y))]
    return "".join("M" + "L".join(points) for points in parts)


def band(x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> str:
    """The area between two lines."""
    parts = [
        _points(x[a:b], upper[a:b]) + _points(x[a:b][::-1], lower[a:b][::-1])
        for a, b in _runs(np.isfinite(lower) & np.isfinite(upper))
    ]
    return "".join("M" + "L".join(points) + "Z" for points in parts)


def dots(x: np.ndarray, y: np.ndarray) -> str:
    """Points, as strokes of no length: a round cap that doesn't scale makes each a dot."""
    there = np.isfinite(y)
    return "".join(f"M{point}h0" for point in _points(x[there], y[there]))


def spans(x: np.ndarray, split: Sequence[str], observed: np.ndarray) -> list[Span]:
    """Stretches that were held out, lie ahead of the file or weren't observed, each halfway to its neighbours.

    ``x`` is sorted, in fractions. A stretch has its split's name; one without a cell at the end is a forecast, too. A
    single missing cell isn't shaded.
    """
    splits = np.asarray(split)
    held_out = splits != "train"
    stretches = {name: splits == name for name in splits[held_out].tolist()} | {None: ~held_out & ~observed}
    edges = (100 * np.concatenate([x[:1], (x[1:] + x[:-1]) / 2, x[-1:]])).tolist()
    found = []
    for name, there in stretches.items():
        for start, stop in _runs(there):
            if name is None and stop - start < 2:
                continue
            ahead = name == "forecast" or (name is None and stop == len(x) and start > 0)
            label = "forecast" if ahead else "not observed" if name is None else name
            left, width = round(edges[start], 2), round(edges[stop] - edges[start], 2)
            found.append(Span(left, width, label, "ahead" if ahead else "missing" if name is None else "held-out"))
    return sorted(_labelled(found))


def _labelled(found: list[Span]) -> list[Span]:
    """Labels where they cover none other, at a phone's width; first those of what was held out, then by width."""
    few = {kind for kind in ("missing", "held-out", "ahead") if sum(span.kind == kind for span in found) <= 3}
    taken: list[list[tuple[float, float]]] = [[] for _ in range(LABEL_ROWS)]
    done = []
    for span in sorted(found, key=lambda span: (span.kind == "missing", -span.width)):
        width, middle = CHARACTER * len(span.label) + PADDING, span.left + span.width / 2
        at, anchor, low = round(middle, 2), "centre", middle - width / 2
        if low < 0:
            at, anchor, low = span.left, "left", span.left
        elif low + width > 100:
            at, anchor = round(span.left + span.width, 2), "right"
            low = at - width
        free = (k for k, row in enumerate(taken) if all(low + width <= a or b <= low for a, b in row))
        row = next(free, None) if width <= 100 and (span.kind in few or span.width > 15) else None
        if row is not None:
            taken[row].append((low, low + width))
        done.append(span._replace(row=row, at=at, anchor=anchor))
    return done


def thinned(number: int, every: int) -> np.ndarray:
    """One row of each ``every``, at random: every third hour of a day would draw a cycle that isn't there."""
    starts = np.arange(0, number, every)
    return starts + np.random.default_rng(0).integers(np.minimum(every, number - starts))


def draw(
    across: Axis,
    places: np.ndarray,
    layers: Mapping[str, Any],
    spans: list[Span],
    label: str,
    text: str,
    over_time: bool = True,
) -> Chart:
    """A chart over sorted ``places``.

    ``layers`` by CSS class: (lower, upper) is a band, other values are a line, or dots where the class starts so. Bands
    and lines ``over_time`` end where there is a gap between times.
    """
    down = Axis(*(edge for v in layers.values() for edge in (v if isinstance(v, tuple) else (v,))), margin=0.05)
    every = max(1, -(-len(places) // LARGEST))
    drawn_rows = thinned(len(places), every)
    x = across(places)[drawn_rows]
    drawn = []
    for kind, values in layers.items():
        heights = [down(edge)[drawn_rows] for edge in (values if isinstance(values, tuple) else (values,))]
        shape = band if isinstance(values, tuple) else dots if kind.startswith("dots") else line
        drawn.append(Layer(shape(*(with_gaps(x, *heights) if over_time else (x, *heights))), kind))
    x_ticks, shared = across.ticks(8)
    x_label = ", ".join(part for part in (shared, label) if part)
    y_ticks = [(place, tick) for place, tick in down.ticks(4)[0] if 2 < place < 97]  # not into the title
    return Chart(x_ticks, y_ticks, x_label, drawn, spans, text, every)
