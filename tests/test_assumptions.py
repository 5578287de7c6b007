"""How --assume is spelt."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from vramcast.base.assumptions import parse_assumption
from vramcast.errors import UsageError


@pytest.mark.parametrize(
    ("text", "file", "line", "value"),
    [
        ("train.py:120=3.5", "train.py", 120, 3.5),
        ("src/model.py:7=-2", "src/model.py", 7, -2),
        ("train.py:1=true", "train.py", 1, True),
        ("train.py:1=False", "train.py", 1, False),
        ("train.py:1=[0.1, 0.9]", "train.py", 1, [0.1, 0.9]),
        ("train.py:1=1, 2", "train.py", 1, [1, 2]),
        ("train.py:1=[[1, 0], [0, 1]]", "train.py", 1, [[1, 0], [0, 1]]),
        ("train.py:1=inf", "train.py", 1, math.inf),
        ("C:/x/train.py:3=1e-3", "C:/x/train.py", 3, 1e-3),
    ],
)
def test_spellings(text: str, file: str, line: int, value: Any) -> None:
    found = parse_assumption(text)
    assert (found.file, found.line, found.value) == (file, line, value)
    assert type(found.value) is type(value)


@pytest.mark.parametrize(
    "text", ["train.py=3", "train.py:3", "train.py:x=3", ":3=1", "train.py:3=", "train.py:3=high", "train.py:3=[]",
             "train.py:3='a'", "train.py:3=__import__('os')", "train.py:3=[1, 'a']", "train.py:3=" + "[" * 9000]
)  # fmt: skip
def test_bad_spellings(text: str) -> None:
    with pytest.raises(UsageError, match="--assume"):
        parse_assumption(text)


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = parse_assumption("train.py:120=1")
    assert found.holds_at("train.py:120") and found.holds_at("src/train.py:120")
    assert not found.holds_at("train.py:12") and not found.holds_at("mytrain.py:120")
    assert parse_assumption("./src/train.py:1=1").holds_at("src/train.py:1")
    assert parse_assumption(f"{tmp_path}{os.sep}a.py:1=1").holds_at("a.py:1")
