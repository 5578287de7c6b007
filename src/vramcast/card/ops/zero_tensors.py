"""Zeros that autograd's forward mode knows of and never writes: tensors without memory.

Adding or multiplying one works out sizes and dtypes on the meta device (maybe_add_maybe_sub in BinaryOps.cpp); that
result is no memory of the card's either.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.dispatch.storages import GPU, Block, attach
from vramcast.card.ops.registry import Call, kernel


@kernel("aten::_efficientzerotensor")
def zero_tensor(call: Call) -> Any:
    return _without_memory(call.func(*call.args, **call.kwargs))


@kernel("prims::add", "prims::sub", "prims::mul", "prims::div")
def arithmetic(call: Call) -> Any:
    if any(isinstance(value, torch.Tensor) and _is_one_number(value) for value in call.args):
        return _without_memory(call.func(*call.args, **call.kwargs))
    return call.run()


def _is_one_number(tensor: torch.Tensor) -> bool:
    """As the zeros are when an op has to have them after all: one number, expanded (ZeroTensorFallback.cpp)."""
    return tensor._is_zerotensor() or (tensor.numel() > 1 and not any(tensor.stride()))


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    attach(storage, Block(None, GPU, storage.nbytes(), -1, 0))
    return tensor
