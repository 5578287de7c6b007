"""The line that says where a slow script is must not keep what the script has let go."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path

import pytest

from vramcast.cli import progress


class Tensor:
    """Stands for one."""


def test_variables_of_a_function_die_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_FIRST_WORD_SECONDS", 0.05)
    held: list[weakref.ref[Tensor]] = []

    def slow() -> None:
        tensor = Tensor()
        held.append(weakref.ref(tensor))
        while "without an optimizer step" not in capsys.readouterr().err:
            time.sleep(0.01)
        time.sleep(0.05)

    gc.disable()
    try:
        with progress.announced(Path("train.py")):
            slow()
            assert held[0]() is None
    finally:
        gc.enable()
