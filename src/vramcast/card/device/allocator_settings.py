"""The allocator's settings of a run: what its environment says when PyTorch first uses the card."""

from __future__ import annotations

import os

from vramcast.allocator import AllocatorConf
from vramcast.allocator.conf import from_environment
from vramcast.base.errors import UsageError
from vramcast.card.device.installed_torch import INSTALLED


class AllocatorSettings:
    """A program may set the variables itself, after `import torch` too: PyTorch reads them late, and once."""

    def __init__(self, asked: str | None) -> None:
        """`asked`: what to predict for instead of what the environment says now."""
        self._seen = _environment()
        self.conf = AllocatorConf.parse((self._seen or "") if asked is None else asked)

    def read(self) -> bool:
        """Read the environment again; true where the program has changed it."""
        before, self._seen = self._seen, _environment()
        if self._seen == before:
            return False
        self.conf = _parsed(self._seen or "")
        return True

    def change(self, text: str) -> None:
        """Change the settings that the text names; the others stay as they are."""
        self.conf = _parsed(text, self.conf)

    def ignored(self) -> str | None:
        """A note, where the program changed the environment too late."""
        now = _environment()
        if now == self._seen:
            return None
        name = "PYTORCH_CUDA_ALLOC_CONF" if "PYTORCH_CUDA_ALLOC_CONF" in os.environ else "PYTORCH_ALLOC_CONF"
        return f"{name}={now or ''} was set after CUDA had been initialized: PyTorch ignores it, and so does this"


def _parsed(text: str, before: AllocatorConf | None = None) -> AllocatorConf:
    """What the program said; it fails there, with the kind of error that PyTorch has for it."""
    try:
        return AllocatorConf.parse(text, before)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _environment() -> str | None:
    return from_environment(os.environ, INSTALLED)
