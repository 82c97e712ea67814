"""Covariances as text: ``covariance("linear() + rbf(10y) * periodic(1y)", unit="days")``.

The grammar, all of it::

    sum     = product {"+" product}
    product = factor {"*" factor}
    factor  = number | name "(" [argument {"," argument}] ")" | "(" sum ")"

A number scales the product that it stands in; an argument is a number, a duration such as 24h, or, for ``on``, a
column and a covariance. The text is parsed here and never evaluated as Python.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tinygp import kernels

from alps_ppl.covariances import Covariance, linear, linear_periodic, on_column
from alps_ppl.model import short

# In hours. A year is 365.25 days, a month a twelfth of it.
DURATIONS = {"s": 1 / 3600, "min": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0, "mo": 8766 / 12, "y": 8766.0}
UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks", "mo": "months", "y": "years"}
NUMBER = r"(?>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
TOKENS = re.compile(
    rf"(?P<duration>{NUMBER}\s?[A-Za-z]+)|(?P<number>{NUMBER})|(?P<name>[A-Za-z_]\w*)"
    r"""|(?P<string>"[^"]*"|'[^']*')|(?P<sign>[-+*(),])|(?P<space>\s+)|(?P<other>.)""",
    re.DOTALL | re.ASCII,
)
DEEPEST, LONGEST = 20, 2_000


class Parsed(NamedTuple):
    """A covariance, its Python source, and the times it speaks of, in the inputs' unit."""

    covariance: Covariance
    source: str
    periods: tuple[float, ...] = ()
    lengthscales: tuple[float, ...] = ()


class _Token(NamedTuple):
    kind: str
    text: str
    place: int


def covariance(
    text: str, *, unit: str | None = None, inputs: Any = None, columns: Sequence[str] | None = None
) -> Covariance:
    """The tinygp covariance that ``text`` describes: sums and products of these, and numbers that scale them.

    - ``linear_periodic(period)``: sine waves of one period; ``periodic(period, lengthscale=1)``: any shape of it,
      exp(-2 sin^2(pi d / period) / lengthscale^2).
    - ``rbf(lengthscale)``, ``matern12``, ``matern32``, ``matern52``, ``rational_quadratic(lengthscale, alpha=1)``.
    - ``linear(center, scale)``: a straight line; ``linear()`` takes the mean and sd of ``inputs``, so that its variance
      is 1 on average there. ``constant(variance=1)``.
    - ``on(column, covariance)``: of inputs (time, column) one column, by its number from 0 or its name in ``columns``,
      as in ``on("rm", rbf(1))``.

    Periods and lengthscales are durations, such as 30s, 10min, 24h, 4d, 2w, 1mo, 10y, or plain numbers in the unit of
    the inputs. A year is 365.25 days, a month a twelfth of it. ``unit`` says what the inputs are in: "hours", "days",
    ... (``Data.input_unit``); None, the default: plain numbers, for which a duration is an error.

    Raises a ValueError that points at the place for anything else.

    >>> covariance("rbf(10d) * periodic(24h)", unit="hours")  # doctest: +ELLIPSIS
    Product(...)
    """
    return parse(text, unit=unit, inputs=inputs, columns=columns).covariance


def parse(text: str, *, unit: str | None = None, inputs: Any = None, columns: Sequence[str] | None = None) -> Parsed:
    """``covariance``, with its source for a model file (``alps`` and tinygp's ``kernels`` imported) and its times."""
    if not isinstance(text, str):
        raise TypeError(f"covariance: expected text such as 'rbf(4d)', got {short(text)}")
    values = None if inputs is None else np.asarray(inputs, float)
    return _Parser(text, unit_name(unit), values, columns).parse()


def unit_name(unit: str | None) -> str | None:
    """The short name, "h" for "h", "hours" or "hour"; None for None; a ValueError for anything else."""
    if unit is None:
        return None
    for short_name, name in UNITS.items():
        if unit in (short_name, name, name[:-1]):
            return short_name
    raise ValueError(f"unit: expected one of {', '.join(UNITS.values())}, got {unit!r}")


def duration(text: str | float, unit: str | None = None) -> float:
    """``"4d"`` in ``unit``; a number as it is. Raises a ValueError for anything else."""
    match = re.fullmatch(rf"\s*({NUMBER})\s?([A-Za-z]*)\s*", str(text))
    if match is None:
        raise ValueError(f"expected a duration such as 24h or 4d, or a number, got {text!r}")
    number, suffix = float(match[1]), match[2]
    unit = unit_name(unit)
    if not np.isfinite(number):
        raise ValueError(f"expected a finite number, got {text!r}")
    if not suffix:
        return number
    if suffix not in DURATIONS:
        raise ValueError(f"unknown unit {suffix!r} of time; known are {', '.join(DURATIONS)}")
    if unit is None:
        raise ValueError(
            f"{str(text).strip()!r} is a duration, but the inputs are plain numbers; give a number in their own unit, "
            "or say what that unit is"
        )
    return float(f"{number * DURATIONS[suffix] / DURATIONS[unit]:.15g}")  # 7.7, not 7.699999999999999


class _Parser:
    """Recursive descent over the tokens of one text; a rule of the grammar is a method."""

    def __init__(self, text: str, unit: str | None, inputs: np.ndarray | None, columns: Sequence[str] | None):
        self.text, self.unit, self.inputs, self.columns = text, unit, inputs, columns
        if len(text) > LONGEST:
            raise ValueError(f"covariance: expected a text of at most {LONGEST} characters, got {len(text)}")
        found = [_Token(str(m.lastgroup), m.group(), m.start()) for m in TOKENS.finditer(text)]
        self.tokens = [token for token in found if token.kind != "space"] + [_Token("end", "the end", len(text))]
        self.next = 0
        self.depth = 0

    def parse(self) -> Parsed:
        start = self.token
        value = self.sum()
        if self.token.kind != "end":
            raise self.error(f"expected + or * or the end, got {self.token.text!r}")
        return self.a_covariance(value, start)

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def error(self, message: str, token: _Token | None = None) -> ValueError:
        place = (token or self.token).place
        shown = re.sub(r"\s", " ", self.text)
        start = max(0, place - 60)  # of a long text, what is around the place
        excerpt = shown[start : place + 60]
        return ValueError(
            f"covariance {short(shown)}: at character {place + 1}: {message}\n  {excerpt}\n  {' ' * (place - start)}^"
        )

    def take(self, *texts: str) -> _Token | None:
        """The token, if it is one of these signs."""
        if self.token.kind == "sign" and self.token.text in texts:
            self.next += 1
            return self.tokens[self.next - 1]
        return None

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            end = self.token.kind == "end"
            raise self.error(f"{sign!r} is missing" if end else f"expected {sign!r}, got {self.token.text!r}")

    def sum(self) -> Parsed | float:
        start = self.token
        value = self.product()
        while self.take("+"):
            second = self.token
            a, b = self.a_covariance(value, start), self.a_covariance(self.product(), second)
            value = Parsed(a.covariance + b.covariance, f"{a.source} + {b.source}", *_times(a, b))
        return value

    def product(self) -> Parsed | float:
        value = self.factor()
        while self.take("*"):
            value = self.times(value, self.factor())
        return value

    def times(self, a: Parsed | float, b: Parsed | float) -> Parsed | float:
        if isinstance(a, Parsed):
            return _product(a, b) if isinstance(b, Parsed) else _scaled(b, a)
        if isinstance(b, Parsed):
            return _scaled(a, b)
        return self.positive(a * b, self.tokens[self.next - 1], "a scale factor")

    def factor(self) -> Parsed | float:
        token = self.token
        if token.kind == "number":
            self.next += 1
            return self.positive(float(token.text), token, "a scale factor")
        if token.kind == "name":
            return self.call()
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"expected at most {DEEPEST} nested parentheses")
        if not self.take("("):
            raise self.error(f"expected a covariance such as rbf(1), a number or '(', got {token.text!r}")
        value = self.sum()
        self.expect(")")
        self.depth -= 1
        return value

    def call(self) -> Parsed:
        name = self.token
        if name.text not in FUNCTIONS:
            raise self.error(f"unknown covariance {name.text!r}; known are {', '.join(FUNCTIONS)}")
        self.next += 1
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"expected at most {DEEPEST} nested parentheses")
        self.expect("(")
        value = self.on_column() if name.text == "on" else self.function(name)
        self.depth -= 1
        return value

    def function(self, name: _Token) -> Parsed:
        build, parameters, defaults = FUNCTIONS[name.text]
        arguments: list[float] = []
        while not self.take(")"):
            if arguments and not self.take(","):
                more = len(arguments) < len(parameters) and self.token.kind != "end"
                self.expect("," if more else ")")
            if len(arguments) == len(parameters):
                raise self.error(f"expected {name.text}({', '.join(parameters)}), got another argument")
            arguments.append(self.argument(name.text, parameters[len(arguments)]))
        if name.text == "linear" and not arguments:
            arguments = list(self.middle_and_sd(name))
        missing = len(parameters) - len(arguments)
        if missing > len(defaults):
            raise self.error(f"expected {name.text}({', '.join(parameters)}), got {len(arguments)} argument(s)", name)
        return build(*arguments, *defaults[len(defaults) - missing :])

    def argument(self, function: str, parameter: str) -> float:
        """A number or, where the parameter is a time, a duration, in the inputs' unit."""
        start = self.token
        sign = -1.0 if self.take("-") else 1.0
        token, is_time = self.token, parameter not in PURE_NUMBERS
        if token.kind not in ("number", "duration") or (token.kind == "duration" and not is_time):
            what = "a number or a duration such as 24h" if is_time else "a number"
            raise self.error(f"expected {what} as {function}'s {parameter}, got {token.text!r}")
        self.next += 1
        try:
            value = sign * duration(token.text, self.unit)
        except ValueError as error:
            raise self.error(str(error), token) from None
        return value if parameter == "center" else self.positive(value, start, f"{function}'s {parameter}")

    def positive(self, value: float, token: _Token, what: str) -> float:
        if not (np.isfinite(value) and value > 0):
            raise self.error(f"expected {what} to be positive and finite, got {value!r}", token)
        return value

    def a_covariance(self, value: Parsed | float, start: _Token) -> Parsed:
        if not isinstance(value, Parsed):
            raise self.error(f"expected a covariance, got the number {value!r}; constant({value!r}) is one", start)
        return value

    def on_column(self) -> Parsed:
        column, inputs = self.column(), self.inputs
        self.expect(",")
        self.inputs = inputs[:, column] if inputs is not None and inputs.ndim == 2 else inputs
        start = self.token
        inner = self.a_covariance(self.sum(), start)
        self.inputs = inputs
        self.expect(")")
        return Parsed(on_column(inner.covariance, column), f"alps.on_column({inner.source}, {column})", *inner[2:])

    def column(self) -> int:
        token, names = self.token, list(self.columns or [])
        self.next += token.kind != "end"
        if token.kind == "string" and token.text[1:-1] in names:
            return names.index(token.text[1:-1])
        known = f"one of {', '.join(names)}" if names else "a number from 0"
        if token.kind != "number" or not token.text.isdecimal():
            raise self.error(f"expected a column, {known}, got {token.text!r}", token)
        width = len(names) or (self.inputs.shape[1] if self.inputs is not None and self.inputs.ndim == 2 else None)
        if width is not None and int(token.text) >= width:
            raise self.error(f"expected a column below {width}, got {token.text}", token)
        return int(token.text)

    def middle_and_sd(self, name: _Token) -> tuple[float, float]:
        if self.inputs is None:
            raise self.error("linear() needs the inputs; pass inputs=, or write linear(center, scale)", name)
        if self.inputs.ndim != 1:
            raise self.error("linear() of several columns; say which one, as in on(0, linear())", name)
        return float(self.inputs.mean()), float(self.inputs.std()) or 1.0


def _product(a: Parsed, b: Parsed) -> Parsed:
    return Parsed(a.covariance * b.covariance, f"{_bracketed(a.source)} * {_bracketed(b.source)}", *_times(a, b))


def _scaled(number: float, a: Parsed) -> Parsed:
    """The number first, as the sampler's Markov form has it."""
    return Parsed(kernels.Constant(number) * a.covariance, f"{number!r} * {_bracketed(a.source)}", *a[2:])


def _times(a: Parsed, b: Parsed) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return a.periods + b.periods, a.lengthscales + b.lengthscales


def _bracketed(source: str) -> str:
    """A sum as a factor."""
    depth = 0
    for sign in source:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if sign == "+" and depth == 0:
            return f"({source})"
    return source


def _of_lengthscale(name: str) -> tuple[Callable, list[str], list[float]]:
    """A tinygp covariance of one lengthscale."""
    build = getattr(kernels, name)
    return (
        (lambda scale: Parsed(build(scale=scale), f"kernels.{name}(scale={scale!r})", (), (scale,))),
        ["lengthscale"],
        [],
    )


def _linear_periodic(period: float) -> Parsed:
    return Parsed(linear_periodic(period), f"alps.linear_periodic({period!r})", (period,))


def _periodic(period: float, lengthscale: float) -> Parsed:
    gamma = 2.0 / lengthscale**2
    source = f"kernels.ExpSineSquared(scale={period!r}, gamma={gamma!r})"
    return Parsed(kernels.ExpSineSquared(scale=period, gamma=gamma), source, (period,))


def _rational_quadratic(scale: float, alpha: float) -> Parsed:
    source = f"kernels.RationalQuadratic(scale={scale!r}, alpha={alpha!r})"
    return Parsed(kernels.RationalQuadratic(scale=scale, alpha=alpha), source, (), (scale,))


PURE_NUMBERS = ("relative lengthscale", "alpha", "variance")
# How a covariance is built, its parameters, and the defaults of the last ones.
FUNCTIONS: dict[str, Any] = {
    "linear_periodic": (_linear_periodic, ["period"], []),
    "periodic": (_periodic, ["period", "relative lengthscale"], [1.0]),
    "rbf": _of_lengthscale("ExpSquared"),
    "matern12": _of_lengthscale("Exp"),
    "matern32": _of_lengthscale("Matern32"),
    "matern52": _of_lengthscale("Matern52"),
    "rational_quadratic": (_rational_quadratic, ["lengthscale", "alpha"], [1.0]),
    "linear": (lambda c, s: Parsed(linear(c, s), f"alps.linear({c!r}, {s!r})"), ["center", "scale"], []),
    "constant": (lambda v: Parsed(kernels.Constant(v), f"kernels.Constant({v!r})"), ["variance"], [1.0]),
    "on": None,
}
