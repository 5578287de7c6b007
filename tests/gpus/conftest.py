"""A machine with the cards that a test wants, at the level of NVML's C calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lab.measuring.nvml_calls import Call, Replayer, use_library
from tests.gpus.constructed import Card, machine

Machine = Callable[..., Replayer]


@pytest.fixture
def cards_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """`cards_here(Card(...), ...)`, or `cards_here(calls=[...])` from a recording."""
    pytest.importorskip("pynvml")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    with ExitStack() as stack:

        def make(*cards: Card, calls: list[Call] | None = None) -> Replayer:
            library = Replayer(machine(*cards) if calls is None else calls)
            stack.enter_context(use_library(library))
            return library

        yield make
