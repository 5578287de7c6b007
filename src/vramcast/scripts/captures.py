"""Whether a script is going to capture a CUDA graph: that takes memory which the steps before it do not show."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vramcast.card.device.patches import Patches
from vramcast.card.dispatch.unknown import is_own

_CAPTURES = re.compile(rb"\bCUDAGraph\b|\bmake_graphed_callables\b|\bcuda\.graphs?\b")


class Captures:
    """`watched` holds while the script runs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._there_before = set(sys.modules)
        self._ended = 0
        self._mentioned: bool | None = None

    def is_ahead(self) -> bool:
        """Whether the script, or a module of its own, mentions capturing a graph, and none was captured so far."""
        if self._ended:
            return False
        if self._mentioned is None:
            imported = set(sys.modules) - self._there_before
            self._mentioned = any(map(_mentions, [self._path, *_own_files(imported)]))
        return self._mentioned

    @contextmanager
    def watched(self) -> Iterator[None]:
        patches = Patches()
        kind: Any = torch.cuda.CUDAGraph
        if isinstance(kind, type) and hasattr(kind, "capture_end"):
            original = kind.capture_end

            @functools.wraps(original)
            def capture_end(*args: Any, **kwargs: Any) -> Any:
                self._ended += 1
                return original(*args, **kwargs)

            patches.set(kind, "capture_end", capture_end)
        try:
            yield
        finally:
            patches.undo()


def _own_files(modules: Iterable[str]) -> Iterator[str]:
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_own(file):
            yield file


def _mentions(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return _CAPTURES.search(file.read(1 << 20)) is not None
    except OSError:
        return False
