"""Covariances and durations as text: random expressions are tinygp's, so is their source; garbage is a ValueError."""

import contextlib

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinygp import kernels

import alps_ppl as alps
from alps_ppl.model.covariances import parameters
from alps_ppl.tables.durations import DURATIONS, duration, period_name
from alps_ppl.tables.grammar import FUNCTIONS, parse

T = np.array([-3.0, -0.7, 0.0, 0.4, 2.0, 11.3])
HOURS = {suffix: hours for suffix, hours in DURATIONS.items() if hours >= 1 / 60}


@st.composite
def times(draw):
    """(text, value in days) of a duration or a plain number."""
    value = draw(st.integers(1, 999)) / 100
    suffix = draw(st.sampled_from(["", *HOURS]))
    return f"{value}{suffix}", value * HOURS[suffix] / 24 if suffix else value


@st.composite
def leaves(draw):
    (text, value), number = draw(times()), draw(st.integers(1, 300)) / 100
    return draw(
        st.sampled_from(
            [
                (f"linear_periodic({text})", kernels.Cosine(scale=value)),
                (f"periodic({text})", kernels.ExpSineSquared(scale=value, gamma=2.0)),
                (f"periodic( {text},{number})", kernels.ExpSineSquared(scale=value, gamma=2.0 / number**2)),
                (f"rbf({text})", kernels.ExpSquared(scale=value)),
                (f"matern12({text})", kernels.Exp(scale=value)),
                (f"matern32({text})", kernels.Matern32(scale=value)),
                (f"matern52({text})", kernels.Matern52(scale=value)),
                (f"rational_quadratic({text})", kernels.RationalQuadratic(scale=value, alpha=1.0)),
                (f"rational_quadratic({text}, {number})", kernels.RationalQuadratic(scale=value, alpha=number)),
                ("linear(0, 1)", kernels.DotProduct()),
                ("constant()", kernels.Constant(1.0)),
                (f"constant({number})", kernels.Constant(number)),
            ]
        )
    )


def grown(expressions):
    pairs = st.tuples(expressions, expressions)
    return st.one_of(
        pairs.map(lambda p: (f"{p[0][0]} + {p[1][0]}", p[0][1] + p[1][1])),
        pairs.map(lambda p: (f"({p[0][0]})*({p[1][0]})", p[0][1] * p[1][1])),
        st.tuples(expressions, st.integers(1, 50)).map(lambda p: (f"{p[1]} * ({p[0][0]})", p[1] * p[0][1])),
        st.tuples(expressions, st.integers(1, 50)).map(lambda p: (f"(({p[0][0]}) * {p[1]})", p[1] * p[0][1])),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(leaves(), grown, max_leaves=4))
def test_a_random_expression_is_the_tinygp_covariance(expression):
    text, expected = expression
    with jax.disable_jit():
        gram = expected(T, T)
        parsed = parse(text, unit="days")
        # A period's last bit turns a cosine by as many times as it fits into the times.
        turns = np.ptp(T) / min((*parsed.periods, *parsed.lengthscales, 1.0))
        close = {"rtol": 1e-9, "atol": 1e-9 + 1e-14 * turns * np.abs(gram).max()}
        np.testing.assert_allclose(parsed.covariance(T, T), gram, **close)
        # The source that model files get is the same covariance.
        source = eval(parsed.source, {"alps": alps, "kernels": kernels})
        np.testing.assert_allclose(source(T, T), gram, **close)


TOKENS = [*FUNCTIONS, *"()+*,-'", "1", "2.5h", "1e999", "1e-200", " ", "__import__", "\n"]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(TOKENS)).map("".join)))
def test_garbage_raises_only_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert isinstance(alps.covariance(text, unit="hours", inputs=T), kernels.Kernel)


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("", 1, "expected a sum or product"),
        ("rbf(4d", 4, "expected a sum or product"),
        ("rbf", 1, "expected a covariance such as rbf"),
        ("rbf(4d 5)", 5, "expected a sum or product"),
        ("rbf(1) rbf(2)", 8, "expected a sum or product"),
        ("rbf(1) + foo(2)", 10, "unknown covariance 'foo'"),
        ("rbf(4q)", 5, "unknown unit 'q'"),
        ("rbf(-1)", 5, "positive and finite, got -1.0"),
        ("rbf(1e999)", 5, "finite"),
        ("periodic(1, 1e-200)", 1, "squares"),
        ("0 * rbf(1)", 1, "scale factor"),
        ("rbf(1) + 3", 10, r"constant\(3.0\)"),
        ("periodic(24h, 1h)", 15, "relative lengthscale"),
        ("rbf()", 1, r"rbf\(lengthscale\)"),
        ("rbf(1, 2)", 1, r"expected rbf\(lengthscale\), got 2"),
        ("linear()", 1, "inputs"),
        ("(" * 50, 50, "expected a sum or product"),
    ],
)
def test_errors_point_at_the_place(text, place, word):
    with pytest.raises(ValueError, match=word) as error:
        alps.covariance(text, unit="hours")
    first, excerpt, caret = str(error.value).split("\n")
    assert f"at character {place}:" in first
    assert caret.index("^") - 2 == place - 1 - max(0, place - 61)
    assert excerpt.strip() in text or len(text) > 60


@pytest.mark.parametrize(
    ("text", "arguments", "word"),
    [
        ("rbf(24h)", {}, "'24h' is a duration, but the inputs are plain numbers"),
        ("rbf(24h)", {"unit": "fortnights"}, "unit: .* seconds"),
        ("linear()", {"inputs": np.ones((3, 2))}, r"linear\(center, scale\)"),
        ("rbf(1)" * 400, {}, "at most 2000 characters"),
        (kernels.Exp(), {}, "covariance: expected text"),
    ],
)
def test_arguments_that_cannot_be(text, arguments, word):
    with pytest.raises((ValueError, TypeError), match=word):
        alps.covariance(text, **arguments)


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("30min", "hours", 0.5),
        ("10 s", "min", 1 / 6),
        ("1y", "days", 365.25),
        ("1mo", "d", 365.25 / 12),
        ("2w", "h", 336),
        (7.5, None, 7.5),
    ],
)
def test_durations(text, unit, expected):
    assert duration(text, unit) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(
    ("period", "unit", "name"),
    [(24, "hours", "24 h"), (365.25, "days", "1 y"), (7, "days", "7 d"), (0.5, "hours", "30 min"), (7.5, None, "7.5")],
)
def test_periods_are_named_as_people_do(period, unit, name):
    assert period_name(period, unit) == name


def test_linear_has_variance_one_on_average():
    t = np.array([3.0, 10.0, 4.0, 7.5])
    variance = np.diagonal(alps.covariance("linear()", inputs=t)(t, t))
    assert variance.mean() == pytest.approx(1)


def test_periods_and_lengthscales_are_told():
    parsed = parse("2 * periodic(1y, 3) * (rbf(10d) + matern12(12h)) + linear_periodic(24h)", unit="days")
    assert parsed.periods == (365.25, 1.0)
    assert parsed.lengthscales == (10.0, 0.5)


@pytest.mark.parametrize(
    ("text", "path", "low", "high"),
    [
        ("matern12(1h..4d)", "scale", 1 / 24, 4),
        ("linear_periodic(20h .. 28h)", "scale", 20 / 24, 28 / 24),
        ("periodic(1..2.5, 3)", "scale", 1, 2.5),
        ("rbf(12..36h)", "scale", 0.5, 1.5),
        ("rbf(24..1.2e2h)", "scale", 1, 5),
        ("2 * rbf(.5..4)", "kernel2.scale", 0.5, 4),
        ("step(-36h .. 2.5d)", "at", -1.5, 2.5),
        ("step(-4..-.5)", "at", -4, -0.5),
        ("rbf(3d) + 2 * (matern32(1d) * rational_quadratic(2d..1w))", "kernel2.kernel2.kernel2.scale", 2, 7),
    ],
)
def test_a_range_is_of_the_parameter_at_its_place(text, path, low, high):
    parsed = parse(text, unit="days")
    assert parsed.ranges == {path: (pytest.approx(low), pytest.approx(high))}
    middle = (low + high) / 2 if path == "at" else np.sqrt(low * high)
    assert parameters(parsed.covariance)[path] == pytest.approx(middle)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("rbf(4d..1h)", "from a smaller to a larger lengthscale"),
        ("rbf(0..1h)", "range of positive numbers"),
        ("rbf(1h..)", "expected a range as low..high"),
        ("rbf(-1h..4h)", "range of positive numbers"),
        ("rbf(1h..-4h)", "from a smaller to a larger lengthscale"),
        ("step(2..-4)", "from a smaller to a larger at"),
        ("step(-5...5)", "expected a range as low..high"),
        ("step(--5..5)", "expected a range as low..high"),
        ("rbf(1h..4)", "a unit at the end of the range"),
        ("rbf(1e-300d..1e400d)", "finite"),
        ("rbf(1h..2q)", "unknown unit 'q'"),
        ("periodic(1d, 1..2)", "expected a number as periodic's relative lengthscale"),
        ("constant(1..2)", "expected a number as constant's variance"),
        ("rbf(1..2) + rbf(3..4)", "expected one range, got 2"),
        ("1..2", "expected a covariance"),
    ],
)
def test_what_isnt_a_range(text, word):
    with pytest.raises(ValueError, match=word):
        parse(text, unit="days")


def test_white_is_a_covariance():
    white = alps.covariance("2 * white()")
    np.testing.assert_array_equal(white(T, T), 2 * np.eye(len(T)))


def test_a_range_is_no_covariance_in_python():
    with pytest.raises(ValueError, match=r"covariance_ranges=\{latent: \{'scale': \(1.0, 4.0\)\}\}"):
        alps.covariance("rbf(1d..4d)", unit="days")
