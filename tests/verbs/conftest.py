"""A fixed width, and no card of the machine that the tests happen to run on."""

from __future__ import annotations

import pytest

from vramcast.gpus import state


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    if "test_gpu_state" not in str(request.path):
        monkeypatch.setattr(state, "_by_nvml", list)
