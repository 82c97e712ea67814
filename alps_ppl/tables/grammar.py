"""Covariances as text: ``covariance("linear() + rbf(10y) * periodic(1y)", unit="days")``.

The text is an expression of +, *, parentheses, numbers and the names in ``FUNCTIONS``, whose arguments are numbers or
durations such as 24h. Python's parser reads it, and nothing in it is ever evaluated as Python.
"""

import ast
import math
import re
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from tinygp import kernels

from alps_ppl.checks import short
from alps_ppl.model.covariances import Covariance, linear, linear_periodic, white
from alps_ppl.model.walks import integrated_walk, random_walk, step
from alps_ppl.tables.durations import NUMBER, duration, unit_name

DURATION = re.compile(rf"(?<![\w.]){NUMBER}\s?[A-Za-z]+", re.ASCII)
# A range of durations or numbers, low..high; a number is then without a dot at its end.
END = r"-?(?:\d+\.\d+|\d+|\.\d+)(?:[eE][+-]?\d+)?\s?[A-Za-z]*"
RANGE = re.compile(rf"(?<![\w.-])({END})\s*\.\.(?!\.)\s*({END})", re.ASCII)
LONGEST = 2_000


class Parsed(NamedTuple):
    """A covariance, its Python source, and the times it speaks of, in the inputs' unit.

    ``ranges`` are those of its unknown scales, (low, high) by the parameter's path; the covariance is at their middle.
    """

    covariance: Covariance
    source: str
    periods: tuple[float, ...] = ()
    lengthscales: tuple[float, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = {}


def covariance(text: str, *, unit: str | None = None, inputs: Any = None) -> Covariance:
    """The tinygp covariance that ``text`` describes: sums and products of these, and numbers that scale them.

    - ``linear_periodic(period)``: sine waves of one period; ``periodic(period, lengthscale=1)``: any shape of it,
      exp(-2 sin^2(pi d / period) / lengthscale^2).
    - ``rbf(lengthscale)``, ``matern12``, ``matern32``, ``matern52``, ``rational_quadratic(lengthscale, alpha=1)``.
    - ``linear(center, scale)``: a straight line; ``linear()`` takes the mean and sd of ``inputs``, so that its variance
      is 1 on average there. ``constant(variance=1)``. ``white()``: noise that the outputs share.
    - ``random_walk(start, span)``: a level that wanders and doesn't come back; ``integrated_walk(start, span)``: a line
      whose slope does. Without arguments they start with ``inputs`` and span them. ``step(at)``: a shift of level.

    Parameters
    ----------
    text
        Periods and lengthscales in it are durations, such as 30s, 10min, 24h, 4d, 2w, 1mo, 10y (a year is 365.25 days,
        a month a twelfth of it), or plain numbers in the unit of the inputs.
    unit
        What the inputs are in: "hours", "days", ... (``Data.input_unit``). None: plain numbers, for which a duration is
        an error.
    inputs
        (time,) the inputs, which only ``linear()`` and the like, without arguments, need.

    Raises a ValueError that points at the place for anything else.

    >>> covariance("rbf(10d) * periodic(24h)", unit="hours")  # doctest: +ELLIPSIS
    Product(...)
    """
    parsed = parse(text, unit=unit, inputs=inputs)
    if parsed.ranges:
        raise ValueError(
            f"covariance {short(text)}: a range is for alps-ppl fit; in Python write a number within it and "
            f"ALPS(covariance_ranges={{latent: {dict(parsed.ranges)}}})"
        )
    return parsed.covariance


def parse(text: str, *, unit: str | None = None, inputs: Any = None) -> Parsed:
    """``covariance``, with its source for a model file (``alps`` and tinygp's ``kernels`` imported) and its times."""
    if not isinstance(text, str):
        raise TypeError(f"covariance: expected text such as 'rbf(4d)', got {short(text)}")
    if len(text) > LONGEST:
        raise ValueError(f"covariance: expected a text of at most {LONGEST} characters, got {len(text)}")
    return _Reader(text, unit_name(unit), None if inputs is None else np.asarray(inputs, float)).read()


class _Reader:
    """From one text to what it means. Python gets a name of the same length for each duration, so places stay."""

    def __init__(self, text: str, unit: str | None, inputs: np.ndarray | None):
        plain = (sign if " " <= sign <= "~" and sign != "#" else " " if sign.isspace() else "?" for sign in text)
        self.text = "".join(plain)
        self.margin = len(self.text) - len(self.text.lstrip())
        self.unit, self.inputs = unit, inputs

    def read(self) -> Parsed:
        python = RANGE.sub(lambda found: "_" * len(found[0]), self.text)
        if ".." in python:
            raise self.error("expected a range as low..high, such as 1h..4d", python.index("..") + 1 - self.margin)
        python = DURATION.sub(lambda found: "_" * len(found[0]), python)[self.margin :]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Python, on what isn't this grammar
                tree = ast.parse(python or "?", mode="eval")
            parsed = self.a_covariance(tree.body)
            if len(parsed.ranges) > 1:
                raise self.error(f"expected one range, got {len(parsed.ranges)}", 1)
            return parsed
        except SyntaxError as error:
            raise self.error(
                f"expected a sum or product of covariances such as rbf(1): {error.msg}", error.offset
            ) from None
        except (RecursionError, MemoryError):
            raise self.error("expected fewer nested parentheses and factors", 1) from None

    def value(self, node: ast.expr) -> Parsed | float:
        match node:
            case ast.BinOp(left, ast.Add(), right):
                a, b = self.a_covariance(left), self.a_covariance(right)
                return Parsed(a.covariance + b.covariance, f"{a.source} + {b.source}", *_times(a, b))
            case ast.BinOp(left, ast.Mult(), right):
                return self.product(self.value(left), self.value(right), node)
            case ast.Call(ast.Name(name), arguments, []):
                return self.call(name, arguments, node)
            case ast.Constant() if re.fullmatch(NUMBER, self.segment(node)):
                return self.positive(float(self.segment(node)), "a scale factor", node)
        raise self.error(f"expected a covariance such as rbf(1), or a number, got {self.segment(node)!r}", node)

    def a_covariance(self, node: ast.expr) -> Parsed:
        value = self.value(node)
        if not isinstance(value, Parsed):
            raise self.error(f"expected a covariance, got the number {value!r}; constant({value!r}) is one", node)
        return value

    def product(self, a: Any, b: Any, node: ast.expr) -> Parsed | float:
        if isinstance(a, Parsed) and isinstance(b, Parsed):
            source = f"{_bracketed(a.source)} * {_bracketed(b.source)}"
            return Parsed(a.covariance * b.covariance, source, *_times(a, b))
        if isinstance(a, Parsed) or isinstance(b, Parsed):  # the number first, as the sampler's Markov form has it
            number, parsed = (b, a) if isinstance(a, Parsed) else (a, b)
            scaled = kernels.Constant(number) * parsed.covariance
            source, ranges = f"{number!r} * {_bracketed(parsed.source)}", _within(parsed.ranges, "kernel2")
            return Parsed(scaled, source, parsed.periods, parsed.lengthscales, ranges)
        return self.positive(a * b, "a scale factor", node)

    def call(self, name: str, arguments: list[ast.expr], node: ast.expr) -> Parsed:
        if name not in FUNCTIONS:
            raise self.error(f"unknown covariance {name!r}; known are {', '.join(FUNCTIONS)}", node)
        build, parameters, defaults = FUNCTIONS[name]
        missing = len(parameters) - len(arguments)
        if name in OF_INPUTS and not arguments:
            values = self.of_inputs(name, node)
        elif 0 <= missing <= len(defaults):
            values = [self.argument(argument, name, p) for argument, p in zip(arguments, parameters, strict=False)]
            values += defaults[len(defaults) - missing :]
        else:
            raise self.error(f"expected {name}({', '.join(parameters)}), got {len(arguments)} argument(s)", node)
        try:
            if values and isinstance(values[0], tuple):
                low, high = values[0]
                middle, path = ((low + high) / 2, "at") if name == "step" else (math.sqrt(low * high), "scale")
                return build(middle, *values[1:])._replace(ranges={path: values[0]})
            return build(*values)
        except ArithmeticError:
            raise self.error(f"expected arguments of {name} whose squares are numbers", node) from None

    def argument(self, node: Any, function: str, parameter: str) -> Any:
        """A number or, where the parameter is a time, a duration or a range of them, in the inputs' unit."""
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        text = self.segment(node.operand if negative else node)
        if found := RANGE.fullmatch(text):
            return self.range(found, function, parameter, node)
        is_duration, is_time = bool(DURATION.fullmatch(text)), parameter not in PURE_NUMBERS
        if not (re.fullmatch(NUMBER, text) or (is_duration and is_time)):
            what = "a number or a duration such as 24h" if is_time else "a number"
            raise self.error(f"expected {what} as {function}'s {parameter}, got {text!r}", node)
        try:
            value = (-1.0 if negative else 1.0) * duration(text, self.unit)
        except ValueError as error:
            raise self.error(str(error), node) from None
        return value if parameter in PLACES else self.positive(value, f"{function}'s {parameter}", node)

    def range(self, found: re.Match, function: str, parameter: str, node: ast.expr) -> tuple[float, float]:
        if parameter not in ("period", "lengthscale", "at"):
            raise self.error(f"expected a number as {function}'s {parameter}, got the range {found[0]!r}", node)
        ends = [end.strip() for end in found.groups()]
        units = [re.search(r"[A-Za-z]*$", end)[0] for end in ends]  # type: ignore[index]
        if bool(units[0]) != bool(units[1]) and units[0]:
            raise self.error(f"expected a unit at the end of the range {found[0]!r}, or none at all", node)
        if units[1] and not units[0]:  # 0.5..1.5d
            ends[0] += units[1]
        try:
            low, high = ((-1 if end[0] == "-" else 1) * duration(end.lstrip("-"), self.unit) for end in ends)
        except ValueError as error:
            raise self.error(str(error), node) from None
        if low <= 0 and parameter != "at":
            raise self.error(f"expected a range of positive numbers as {function}'s {parameter}", node)
        if not low < high < math.inf:
            raise self.error(f"expected a range from a smaller to a larger {parameter}, got {found[0]!r}", node)
        return low, high

    def positive(self, value: float, what: str, node: ast.expr) -> float:
        if not (np.isfinite(value) and value > 0):
            raise self.error(f"expected {what} to be positive and finite, got {value!r}", node)
        return value

    def of_inputs(self, name: str, node: ast.expr) -> list[Any]:
        """The arguments that the inputs give: their middle and sd, their start and span, or where a step may be."""
        if self.inputs is None or self.inputs.ndim != 1:
            arguments = ", ".join(FUNCTIONS[name][1])
            raise self.error(f"{name}() needs inputs of one column; pass inputs=, or write {name}({arguments})", node)
        times = np.unique(self.inputs)
        if name == "linear":
            return [float(self.inputs.mean()), float(self.inputs.std()) or 1.0]
        if name == "step":
            if len(times) < 3:
                raise self.error("step() needs at least three different times to be between", node)
            return [(float(times[:2].mean()), float(times[-2:].mean()))]
        return [float(times[0]), float(np.ptp(times)) or 1.0]

    def segment(self, node: Any) -> str:
        return self.text[self.margin + node.col_offset : self.margin + node.end_col_offset]

    def error(self, message: str, place: Any) -> ValueError:
        """``place`` is a node, or a column from 1."""
        place = self.margin + (place.col_offset if isinstance(place, ast.expr) else (place or 1) - 1)
        start = max(0, place - 60)  # of a long text, what is around the place
        excerpt = f"{self.text[start : place + 60]}\n  {' ' * (place - start)}^"
        return ValueError(f"covariance {short(self.text)}: at character {place + 1}: {message}\n  {excerpt}")


def _times(a: Parsed, b: Parsed) -> tuple[tuple[float, ...], tuple[float, ...], dict]:
    ranges = _within(a.ranges, "kernel1") | _within(b.ranges, "kernel2")
    return a.periods + b.periods, a.lengthscales + b.lengthscales, ranges


def _within(ranges: Mapping[str, tuple[float, float]], part: str) -> dict[str, tuple[float, float]]:
    """The ranges of a covariance that is a part of another."""
    return {f"{part}.{path}": pair for path, pair in ranges.items()}


def _bracketed(source: str) -> str:
    """A sum as a factor."""
    body: Any = ast.parse(source, mode="eval").body
    return f"({source})" if isinstance(body, ast.BinOp) and isinstance(body.op, ast.Add) else source


def _periodic(period: float, lengthscale: float) -> Parsed:
    gamma = 2.0 / lengthscale**2
    source = f"kernels.ExpSineSquared(scale={period!r}, gamma={gamma!r})"
    return Parsed(kernels.ExpSineSquared(scale=period, gamma=gamma), source, (period,))


def _of_lengthscale(name: str, scale: float, alpha: float | None = None) -> Parsed:
    arguments = {"scale": scale} if alpha is None else {"scale": scale, "alpha": alpha}
    source = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return Parsed(getattr(kernels, name)(**arguments), f"kernels.{name}({source})", (), (scale,))


PURE_NUMBERS = ("relative lengthscale", "alpha", "variance")
# Parameters that are times of the inputs' axis, which may be zero or negative.
PLACES = ("center", "start", "at")
# What the inputs give the arguments of, where there are none.
OF_INPUTS = ("linear", "random_walk", "integrated_walk", "step")
# How a covariance is built, its parameters, and the defaults of the last ones.
FUNCTIONS: dict[str, Any] = {
    "linear_periodic": (lambda p: Parsed(linear_periodic(p), f"alps.linear_periodic({p!r})", (p,)), ["period"], []),
    "periodic": (_periodic, ["period", "relative lengthscale"], [1.0]),
    "rbf": (partial(_of_lengthscale, "ExpSquared"), ["lengthscale"], []),
    "matern12": (partial(_of_lengthscale, "Exp"), ["lengthscale"], []),
    "matern32": (partial(_of_lengthscale, "Matern32"), ["lengthscale"], []),
    "matern52": (partial(_of_lengthscale, "Matern52"), ["lengthscale"], []),
    "rational_quadratic": (partial(_of_lengthscale, "RationalQuadratic"), ["lengthscale", "alpha"], [1.0]),
    "white": (lambda: Parsed(white(), "alps.white()"), [], []),
    "linear": (lambda c, s: Parsed(linear(c, s), f"alps.linear({c!r}, {s!r})"), ["center", "scale"], []),
    "random_walk": (lambda a, s: Parsed(random_walk(a, s), f"alps.random_walk({a!r}, {s!r})"), ["start", "span"], []),
    "integrated_walk": (
        lambda a, s: Parsed(integrated_walk(a, s), f"alps.integrated_walk({a!r}, {s!r})"),
        ["start", "span"],
        [],
    ),
    "step": (lambda at: Parsed(step(at), f"alps.step({at!r})"), ["at"], []),
    "constant": (lambda v: Parsed(kernels.Constant(v), f"kernels.Constant({v!r})"), ["variance"], [1.0]),
}
