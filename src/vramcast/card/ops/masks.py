"""Masks: a choice between two tensors, and what CUDA does not take as a mask though a meta tensor would."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.dispatch.storages import known_values
from vramcast.card.ops.embedding import scan_bytes
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


@kernel("aten::masked_fill_")
def masked_fill(call: Call) -> Any:
    refuse_bytes(call.args[1])
    return call.mode.run_in_place(call.func, call.args, call.kwargs, call.device, call.known)


@kernel("aten::masked_scatter_")
def masked_scatter(call: Call) -> Any:
    """How many elements are chosen before each one is counted first (masked_scatter_cuda_impl)."""
    tensor = call.args[0]
    out = call.mode.run_in_place(call.func, call.args, call.kwargs, call.device, call.known)
    call.scratch(tensor.numel() * torch.int64.itemsize, scan_bytes(tensor.numel()))
    return out


def refuse_bytes(mask: torch.Tensor) -> None:
    """Masks of bytes went out of use with torch 1.2, and of masked_fill_ with 2.0 (IndexKernel.cpp)."""
    if mask.dtype is torch.uint8:
        raise RuntimeError("masked_fill_ only supports boolean masks, but got mask with dtype unsigned char")


@kernel("aten::rsub")
def subtract_from(call: Call) -> Any:
    """`1 - mask` (sub_check in BinaryOps.cpp)."""
    if any(isinstance(side, torch.Tensor) and side.dtype is torch.bool for side in call.args[:2]):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, "
            "use the `~` or `logical_not()` operator instead."
        )
    return call.run()
