"""Counts the Python functions that a program calls between two ops: its own, its libraries', not PyTorch's or ours.

What PyTorch's own functions take on the way to an op is part of what the op takes. The rest of Python (samplers,
metrics, loops of a trainer) shows in nothing else that the card sees.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

_OURS = str(Path(__file__).parents[2])
_NOT_COUNTED = (str(Path(torch.__file__).parent), _OURS, "<frozen importlib")


class PythonCalls:
    """Counts in the thread that starts it, unless the program profiles itself there."""

    def __init__(self) -> None:
        self.count = 0
        self.started = False
        self._known: dict[int, tuple[CodeType, bool]] = {}
        """By address, since hashing code takes long; the code itself is kept so that the address stays its own."""
        self._hook = self._called

    def start(self) -> None:
        self.started = True
        if sys.getprofile() is None:
            sys.setprofile(self._hook)

    def stop(self) -> bool:
        """Whether it counted: then `start` lets it go on."""
        if sys.getprofile() is not self._hook:
            return False
        sys.setprofile(None)
        return True

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            known = self._known.get(id(code))
            if known is None:
                known = self._known[id(code)] = (code, not code.co_filename.startswith(_NOT_COUNTED))
            caller = frame.f_back
            if known[1] and (caller is None or not caller.f_code.co_filename.startswith(_OURS)):
                self.count += 1
