"""Parameters built on the CPU carry no data: a 7 B model needs no RAM before it is moved to the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.virtual_gpu.ledger import Ledger
from vramcast.virtual_gpu.storages import HOST

KEEP_VALUES_BELOW = 65
"""Tiny parameters (scales, temperatures, gates) keep their initial values: programs read them."""


def parameter_new(original: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """`Parameter.__new__` that swaps real CPU data for a data-free tensor of the same shape."""

    def __new__(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor and ledger.open:
            with torch._C.DisableTorchFunction():
                if data.device.type == "cpu" and data.layout is torch.strided:
                    data = without_data(data, ledger)
        return original(cls, data, requires_grad)

    return __new__


def without_data(tensor: torch.Tensor, ledger: Ledger) -> torch.Tensor:
    source = tensor.detach()
    with torch.utils._python_dispatch._disable_current_modes():
        empty = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device="meta")
        block = ledger.book(empty.untyped_storage(), HOST)
        if source.numel() < KEEP_VALUES_BELOW and source.untyped_storage().nbytes() == block.nbytes:
            block.values = source.clone().untyped_storage()
    return empty
