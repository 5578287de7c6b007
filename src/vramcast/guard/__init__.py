"""A check in front of training, and a watch while it runs.

The package can be called: `vramcast.guard(job)`. Python binds the name of a package to the package itself as soon as
one of its modules is imported, so a function of that name beside it would come and go.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vramcast.errors import GuardWarning
from vramcast.guard.entry import Guard, guard
from vramcast.memory.guarded import GuardResult

if TYPE_CHECKING:
    from vramcast.guard.hugging_face import VramcastCallback
    from vramcast.guard.lightning import LightningVramcastCallback

__all__ = ["Guard", "GuardResult", "GuardWarning", "LightningVramcastCallback", "VramcastCallback", "guard"]

_LIBRARIES = {"VramcastCallback": "hugging_face", "LightningVramcastCallback": "lightning"}


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Guard:
        return guard(*args, **kwargs)

    __call__.__doc__ = guard.__doc__


def __getattr__(name: str) -> Any:
    """Callbacks are subclasses of the library's own, which is imported when one is asked for."""
    import importlib

    home = _LIBRARIES.get(name)
    if home is None:
        raise AttributeError(f"module 'vramcast.guard' has no attribute {name!r}")
    return getattr(importlib.import_module(f"vramcast.guard.{home}"), name)


sys.modules[__name__].__class__ = _CallablePackage
