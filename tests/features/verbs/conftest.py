"""A fixed width, and no card of the machine that the tests happen to run on."""

from __future__ import annotations

import pytest

from vramcast.gpus import state
from vramcast.gpus.survey import Survey


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(state, "_by_nvml", Survey)
