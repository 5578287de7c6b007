"""Ops that make_fx records while they run, as torch.func.linearize does.

Its mode lies below all others in torch's stack, so that what the virtual card does for an op would be recorded, too.
Here it goes first, and the op that it makes comes to the card.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_PROXY = torch._C._TorchDispatchModeKey.PROXY
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_get = torch._C._get_dispatch_mode


def recorder() -> TorchDispatchMode | None:
    """make_fx's mode, where it records real tensors: those that it makes up itself take no memory."""
    found: TorchDispatchMode | None = _get(_PROXY)
    return found if found is not None and _get(_FAKE) is None else None


def record(recorder: TorchDispatchMode, card: TorchDispatchMode, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    torch._C._unset_dispatch_mode(_PROXY)
    try:
        with card:
            return recorder.__torch_dispatch__(func, types, args, kwargs)
    finally:
        torch._C._set_dispatch_mode(recorder)
