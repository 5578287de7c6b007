"""Which calls start a kernel: not those that only make room, look at memory in another way, or copy it as it is."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual_gpu.kernels.copies import needs_kernel
from vramcast.virtual_gpu.storages import is_virtual_gpu

_MAKES_ROOM = frozenset({
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::set_", "aten::resize_", "aten::record_stream",
})  # fmt: skip
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::clone"})


def runs_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> bool:
    """Whether the card computes something in this call."""
    name = func._schema.name
    target = _tensor(out)
    if target is None and args:
        target = _tensor(args[0])  # foreach ops that work in place return nothing
    if target is None or name in _MAKES_ROOM or _is_view(func):
        return False
    if name in _COPIES:
        source = args[0] if target is not args[0] else args[1]
        return needs_kernel(target, source, bool(kwargs.get("non_blocking")))
    return is_virtual_gpu(target)


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _tensor(value: Any) -> torch.Tensor | None:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None
