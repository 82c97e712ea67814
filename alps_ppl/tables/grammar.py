"""Covariances as text: ``covariance("linear() + rbf(10y) * periodic(1y)", unit="days")``.

The grammar, all of it::

    sum     = product {"+" product}
    product = factor {"*" factor}
    factor  = number | name "(" [argument {"," argument}] ")" | "(" sum ")"

A number scales the product that it stands in; an argument is a number or a duration such as 24h. The text is parsed
here and never evaluated as Python.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tinygp import kernels

from alps_ppl.checks import short
from alps_ppl.model.covariances import Covariance, linear, linear_periodic
from alps_ppl.tables.durations import NUMBER, duration, unit_name

TOKENS = re.compile(
    rf"(?P<duration>{NUMBER}\s?[A-Za-z]+)|(?P<number>{NUMBER})|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>[-+*(),])|(?P<space>\s+)|(?P<other>.)",
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


def covariance(text: str, *, unit: str | None = None, inputs: Any = None) -> Covariance:
    """The tinygp covariance that ``text`` describes: sums and products of these, and numbers that scale them.

    - ``linear_periodic(period)``: sine waves of one period; ``periodic(period, lengthscale=1)``: any shape of it,
      exp(-2 sin^2(pi d / period) / lengthscale^2).
    - ``rbf(lengthscale)``, ``matern12``, ``matern32``, ``matern52``, ``rational_quadratic(lengthscale, alpha=1)``.
    - ``linear(center, scale)``: a straight line; ``linear()`` takes the mean and sd of ``inputs``, so that its variance
      is 1 on average there. ``constant(variance=1)``.

    Parameters
    ----------
    text
        Periods and lengthscales in it are durations, such as 30s, 10min, 24h, 4d, 2w, 1mo, 10y (a year is 365.25 days,
        a month a twelfth of it), or plain numbers in the unit of the inputs.
    unit
        What the inputs are in: "hours", "days", ... (``Data.input_unit``). None: plain numbers, for which a duration is
        an error.
    inputs
        (time,) the inputs, which only ``linear()`` needs.

    Raises a ValueError that points at the place for anything else.

    >>> covariance("rbf(10d) * periodic(24h)", unit="hours")  # doctest: +ELLIPSIS
    Product(...)
    """
    return parse(text, unit=unit, inputs=inputs).covariance


def parse(text: str, *, unit: str | None = None, inputs: Any = None) -> Parsed:
    """``covariance``, with its source for a model file (``alps`` and tinygp's ``kernels`` imported) and its times.

    Parameters
    ----------
    text, unit, inputs
        As ``covariance`` has them.
    """
    if not isinstance(text, str):
        raise TypeError(f"covariance: expected text such as 'rbf(4d)', got {short(text)}")
    return _Parser(text, unit_name(unit), None if inputs is None else np.asarray(inputs, float)).parse()


class _Parser:
    """Recursive descent over the tokens of one text; a rule of the grammar is a method."""

    def __init__(self, text: str, unit: str | None, inputs: np.ndarray | None):
        self.text, self.unit, self.inputs = text, unit, inputs
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

    def take(self, sign: str) -> bool:
        """Whether the token is this sign; it then goes on to the next one."""
        taken = self.token.kind == "sign" and self.token.text == sign
        self.next += taken
        return taken

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            end = self.token.kind == "end"
            raise self.error(f"{sign!r} is missing" if end else f"expected {sign!r}, got {self.token.text!r}")

    def go_deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"expected at most {DEEPEST} nested parentheses")

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
        self.go_deeper()
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
        build, parameters, defaults = FUNCTIONS[name.text]
        self.next += 1
        self.go_deeper()
        self.expect("(")
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
        self.depth -= 1
        try:
            return build(*arguments, *defaults[len(defaults) - missing :])
        except ArithmeticError:
            raise self.error(f"expected arguments of {name.text} whose squares are numbers", name) from None

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

    def middle_and_sd(self, name: _Token) -> tuple[float, float]:
        if self.inputs is None or self.inputs.ndim != 1:
            raise self.error("linear() needs inputs of one column; pass inputs=, or write linear(center, scale)", name)
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

    def build(scale: float) -> Parsed:
        return Parsed(getattr(kernels, name)(scale=scale), f"kernels.{name}(scale={scale!r})", (), (scale,))

    return build, ["lengthscale"], []


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
}
