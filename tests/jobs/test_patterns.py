"""Regular expressions over names: the same answer as Python's own, without the time that can take."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.errors import UsageError
from vramcast.jobs.patterns import matching_names

NAMES = (
    "", "model", "model.layers.0.self_attn.q_proj", "model.layers.10.self_attn.v_proj", "model.layers.3.mlp.down_proj",
    "visual.blocks.1.attn.q_proj", "lm_head", "Q_PROJ", "a" * 60,
)  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    [
        r".*\.(q_proj|v_proj)", r"^(?!.*visual).*(?:q_proj|k_proj)$", r"model\.layers\.\d+\..*_proj", r".*", "",
        r"model\.layers\.[0-4]\..*", r"(?i).*q_PROJ", r"[^.]+", r"\w+", r".*\bself_attn\b.*", r"a{3,60}", r"(a|aa)+",
        r"(a+)+b", r"(a*)*", r".*?_proj", r"(?=.*attn).*v.*", r"\S*[A-Z]\S*", r"model(\.layers)?(\.\d{1,2})?.*mlp.*",
        r"(?!)", r"x|", r".*[\d]\D.*",
    ],
)  # fmt: skip
def test_as_python_matches(pattern: str) -> None:
    names = NAMES if pattern != r"(a+)+b" else NAMES[:-1]  # Python itself does not come back from the last
    assert matching_names(pattern, names, "x") == [name for name in names if re.fullmatch(pattern, name)]


@settings(max_examples=150, deadline=None)
@given(st.text("ab.*+?()[]|\\d{2,}^$!=:", max_size=8), st.text("ab.1", max_size=6))
def test_any_pattern_as_python_matches(pattern: str, name: str) -> None:
    try:
        found = matching_names(pattern, [name], "x")
    except UsageError:
        return
    assert bool(found) == bool(re.fullmatch(pattern, name))


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", ".*.*.*.*.*.*.*.*x", "(.*)*(.*)*(.*)*y", "((a*)*)*z"])
def test_patterns_that_never_end_end_here(pattern: str) -> None:
    assert matching_names(pattern, ["a" * 200] * 20, "x") == []


@pytest.mark.parametrize(
    "pattern", ["(", "a{99999999999999999999}", r"(a)\1", "(?<=a)b", "(?m)a", "a" * 2000, "(" * 900]
)
def test_patterns_that_are_not_followed(pattern: str) -> None:
    with pytest.raises(UsageError, match="lora"):
        matching_names(pattern, ["a"], "lora")
