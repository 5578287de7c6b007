"""The allocator's settings of a run: what its environment says when PyTorch first uses the card."""

from __future__ import annotations

import os

from vramcast.allocator import AllocatorConf
from vramcast.errors import UsageError

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first that is set counts."""


class AllocatorSettings:
    """A program may set the variables itself, after `import torch` too: PyTorch reads them late, and once."""

    def __init__(self, asked: str | None) -> None:
        """`asked`: what to predict for instead of what the environment says now."""
        self._seen = _environment()
        self.conf = AllocatorConf.parse(self._seen if asked is None else asked)

    def read(self) -> bool:
        """Read the environment again; true where the program has changed it."""
        before, self._seen = self._seen, _environment()
        if self._seen == before:
            return False
        self.conf = _parsed(self._seen or "")
        return True

    def change(self, text: str) -> None:
        """What the text does not name stays as it is."""
        self.conf = _parsed(text, self.conf)

    def ignored(self) -> str | None:
        """In words, where the program changed the environment too late."""
        now = _environment()
        if now == self._seen:
            return None
        name = next((name for name in VARIABLES if name in os.environ), VARIABLES[0])
        return f"{name}={now or ''} was set after CUDA had been initialized: PyTorch ignores it, and so does this"


def _parsed(text: str, before: AllocatorConf | None = None) -> AllocatorConf:
    """What the program said; it fails there, with the kind of error that PyTorch has for it."""
    try:
        return AllocatorConf.parse(text, before)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _environment() -> str | None:
    return next((os.environ[name] for name in VARIABLES if name in os.environ), None)
