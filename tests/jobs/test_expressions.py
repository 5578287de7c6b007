"""Shapes as arithmetic: as Python computes it, and nothing that is not arithmetic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.errors import UsageError
from vramcast.jobs.expressions import check, evaluate

SIZES = {"batch": 4, "frames": 17, "height": 480, "width": 720}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batch", 4),
        ("(frames - 1) // 4 + 1", 5),
        ("height // 8 * (width // 8)", 5400),
        ("ceil(frames / 4)", 5),
        ("max(batch, 9, 2) ** 2", 81),
        ("min(frames, 3) - -2", 5),
        ("floor(width / 7) % 10", 2),
        ("round(frames / 2)", 8),
    ],
)
def test_arithmetic(text: str, value: int) -> None:
    assert evaluate(text, SIZES, "inputs.x.shape") == value


@pytest.mark.parametrize(
    "text",
    [
        "", "batch +", "batch.real", "open('x')", "__import__('os')", "[1]", "1 if batch else 2", "batch or 1", "0.5",
        "'a'", "lambda: 1", "max()", "ceil(1, 2)", "max(*batch)", "True", "f'{1}'", "(batch := 3)", "9" * 300,
        "a" * 201, "(" * 150 + "1" + ")" * 49, "batch\nbatch",
    ],
)  # fmt: skip
def test_what_is_not_arithmetic(text: str) -> None:
    with pytest.raises(UsageError):
        evaluate(text, SIZES, "inputs.x.shape")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth", "sizes"),
        ("batch / 3", "not a whole number"),
        ("batch - 4", "at least 1"),
        ("1 // 0", "divides by zero"),
        ("2 ** 65", "exponent"),
        ("2 ** batch ** 9", "exponent"),
        ("9223372036854775807 * 3", "far too large"),
    ],
)
def test_what_has_no_good_value(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        evaluate(text, SIZES, "inputs.x.shape")
    assert str(caught.value).startswith("inputs.x.shape")


def test_the_names_it_needs() -> None:
    assert check("max(batch, height // 8) + depth") == {"batch", "height", "depth"}


_TERMS = st.recursive(
    st.one_of(st.integers(0, 50).map(str), st.sampled_from(sorted(SIZES))),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
        lambda t: f"({' '.join(t)})"
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(_TERMS)
def test_it_computes_what_python_does(text: str) -> None:
    try:
        expected = eval(text, {"__builtins__": {}}, dict(SIZES))
    except ZeroDivisionError:
        expected = None
    try:
        value = evaluate(text, SIZES, "key")
    except UsageError:
        assert expected is None or expected < 1 or abs(expected) >= 2**63 or len(text) > 200 or math.isnan(expected)
        return
    assert value == expected
