"""Single values of a YAML text change; the rest stays as it is."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from vramcast.advice.yaml_edit import edit_yaml


@pytest.mark.parametrize(
    ("text", "changes", "after"),
    [
        ("a: 1  # x\nb: 2\n", {"a": 3}, "a: 3  # x\nb: 2\n"),
        ("a: 1", {"b": "all"}, "a: 1\nb: all\n"),
        ("s: {a: 1}  # x\n", {"s.b": 2}, "s: {a: 1, b: 2}  # x\n"),
        ("s: {}\n", {"s.b": 2}, "s: {b: 2}\n"),
        ("s:\n  a: 1  # x\nt: 2\n", {"s.b": 2}, "s:\n  a: 1  # x\n  b: 2\nt: 2\n"),
        ("s:\n  a:\n    c: 1\nt: 2\n", {"s.b": 2}, "s:\n  a:\n    c: 1\n  b: 2\nt: 2\n"),
        ("s:\n  a: 1\n\nt: 2\n", {"s": "x"}, "s: x\n\nt: 2\n"),
        ("t: 2\n", {"s.b.c": 2}, "t: 2\ns: {b: {c: 2}}\n"),
        ("gpus: 4\n", {"gpus.count": 2}, "gpus: 4\n"),
    ],
)
def test_edit(text: str, changes: dict[str, Any], after: str) -> None:
    assert edit_yaml(text, changes) == after
    assert yaml.safe_load(after) is not None
