"""Importing a model library: quick, and without a change in what it does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from vramcast.jobs.building.libraries import library


def test_functions_are_compiled_when_they_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import torch\n\n@torch.compile(backend='eager')\ndef twice(x):\n    return 2 * x\n"
    (tmp_path / "library_that_compiles.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    compiled: list[str] = []
    real = torch.compile

    def counted(model: object, **settings: object) -> object:
        compiled.append(getattr(model, "__name__", ""))
        return real(model, **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(torch, "compile", counted)
    module = library("library_that_compiles", "a test")
    assert torch.compile is counted and compiled == []
    assert module.twice(torch.ones(2)).tolist() == [2.0, 2.0] and compiled == ["twice"]
    module.twice(torch.ones(2))
    assert compiled == ["twice"]
    del sys.modules["library_that_compiles"]
