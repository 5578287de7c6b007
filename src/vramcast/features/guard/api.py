"""`vramcast.guard`: the function, with the names that belong to it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vramcast.base.errors import GuardWarning
from vramcast.features.guard.entry import Guard
from vramcast.features.guard.entry import guard as check_and_watch
from vramcast.features.guard.result import GuardResult

if TYPE_CHECKING:
    from vramcast.features.guard.hugging_face import VramcastCallback
    from vramcast.features.guard.lightning import LightningVramcastCallback

_CALLBACKS = {"VramcastCallback": "hugging_face", "LightningVramcastCallback": "lightning"}


class _Guarding:
    Guard = Guard
    GuardResult = GuardResult
    GuardWarning = GuardWarning
    if TYPE_CHECKING:
        VramcastCallback = VramcastCallback
        LightningVramcastCallback = LightningVramcastCallback

    __call__ = staticmethod(check_and_watch)
    __doc__ = check_and_watch.__doc__

    def __getattr__(self, name: str) -> Any:
        """Callbacks are subclasses of the library's own, which is imported when one is asked for."""
        home = _CALLBACKS.get(name)
        if home is None:
            raise AttributeError(f"vramcast.guard has no attribute {name!r}")
        return getattr(importlib.import_module(f"vramcast.features.guard.{home}"), name)


guard = _Guarding()
