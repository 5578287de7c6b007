"""Where a tensor belongs that an op makes by itself. C++ is told no more than "meta", which the tensors of the card are
and those of the host that have no data."""

from __future__ import annotations

import sys
from types import CodeType

import torch

from vramcast.card.dispatch.arguments import booked_block, tensors_of
from vramcast.card.dispatch.storages import HOST

CALLS: set[CodeType] = set()
"""Functions that see each call of the Python API, as `args` and `kwargs`."""


def is_for_host() -> bool:
    """Whether the API function now running was given tensors of the host, and none of the card."""
    frame = sys._getframe(1)
    while frame.f_code not in CALLS:
        if frame.f_back is None:
            return False
        frame = frame.f_back
    given = [*frame.f_locals["args"], *(frame.f_locals["kwargs"] or {}).values()]
    blocks = [booked_block(unwrapped(value)) for value in tensors_of(given) if isinstance(value, torch.Tensor)]
    return {block.device for block in blocks if block is not None} == {HOST}


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Under torch.func a tensor holds another, on each of its levels."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor
