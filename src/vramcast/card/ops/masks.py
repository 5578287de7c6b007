"""A choice between two tensors by a mask."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.dispatch.storages import known_values
from vramcast.card.ops.registry import Call, kernel
from vramcast.card.values import known_values as values


@kernel("aten::where.self")
def where(call: Call) -> Any:
    """Both sides become of one dtype, a number on the host is put on the card, and a mask of bytes, which a meta tensor
    refuses, becomes one of booleans, before the result is made (where_self_out in TensorCompare.cpp)."""
    condition, *sides = call.args
    if condition.dtype is torch.bool and all(side.dtype is sides[0].dtype and side.is_meta for side in sides):
        return call.run()
    dtype = torch.result_type(*sides)
    held = [
        call.empty(side.size(), dtype, side.stride()) for side in sides if side.dtype is not dtype or not side.is_meta
    ]
    if condition.dtype is not torch.uint8:
        out = call.run()
    else:
        chosen = call.empty(condition.size(), torch.bool, condition.stride())
        content = known_values(condition) if condition.is_meta else condition
        if content is not None:
            values.learn(chosen, content.bool())
        out = call.mode.make(call.func, (chosen, *sides), call.kwargs, call.device)
    del held
    return out
