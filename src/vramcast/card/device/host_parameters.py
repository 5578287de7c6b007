"""Parameters built on the CPU carry no data: a 7 B model needs no RAM before it is moved to the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.ledger import Ledger
from vramcast.card.dispatch.storages import HOST
from vramcast.card.values import known_values

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches
    from vramcast.card.dispatch.position import Position

LARGE_BUFFER_BYTES = 1 << 26
"""Buffers from this size on carry no data either; below, programs compute with them before they move the model."""


def install(put: Patches, ledger: Ledger, position: Position) -> None:
    parameter, module = torch.nn.Parameter, torch.nn.Module
    put.set(parameter, "__new__", staticmethod(parameter_new(parameter.__new__, ledger, position)))
    put.set(module, "register_buffer", buffer_registrar(module.register_buffer, ledger))
    put.set(torch.Tensor, "share_memory_", sharer(torch.Tensor.share_memory_))
    for lazy in (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer):
        put.set(lazy, "__new__", staticmethod(uninitialized_new(lazy.__new__, ledger)))


def parameter_new(original: Callable[..., Any], ledger: Ledger, position: Position) -> Callable[..., Any]:
    """`Parameter.__new__` that swaps real CPU data for a data-free tensor of the same shape."""

    def __new__(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if isinstance(data, torch.Tensor) and ledger.open:
            position.mark_weight(data)
            if type(data) is torch.Tensor and _is_host(data):
                data = without_data(data, ledger, "weights")
        return original(cls, data, requires_grad)

    return __new__


def uninitialized_new(original: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """Lazy parameters have no data from the start, so that `.data` can be set to a tensor without data later."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(cls, *args, **kwargs)
        if not ledger.open or not _is_host(made):
            return made
        with torch._C.DisableTorchFunction():
            empty = torch.Tensor._make_subclass(cls, without_data(made.data, ledger, "weights"), made.requires_grad)
        vars(empty).update(vars(made))
        return empty

    return __new__


def buffer_registrar(original: Callable[..., None], ledger: Ledger) -> Callable[..., None]:
    def register_buffer(self: Any, name: str, tensor: Any, persistent: bool = True) -> None:
        plain = type(tensor) is torch.Tensor and ledger.open and _is_host(tensor) and not tensor.requires_grad
        if plain and tensor.numel() * tensor.element_size() >= LARGE_BUFFER_BYTES:
            tensor = without_data(tensor, ledger, "buffers")
        original(self, name, tensor, persistent)

    return register_buffer


def sharer(original: Callable[..., Any]) -> Callable[..., Any]:
    """share_memory_: there is nothing to share in a tensor without data."""

    def share_memory_(self: Any) -> Any:
        with torch._C.DisableTorchFunction():
            without = self.is_meta
        return self if without else original(self)

    return share_memory_


def _is_host(tensor: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return tensor.device.type == "cpu" and tensor.layout is torch.strided


def without_data(tensor: torch.Tensor, ledger: Ledger, kind: str) -> torch.Tensor:
    with (
        torch._C.DisableTorchFunction(),
        torch.utils._python_dispatch._disable_current_modes(),
        ledger.made_on_host(kind=kind),
    ):
        source = tensor.detach()
        empty = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device="meta")
        block = ledger.book(empty.untyped_storage(), HOST)
        keeps_values = source.numel() < known_values.KEEP_VALUES_BELOW or known_values.are_of_all_sizes()
        if keeps_values and source.untyped_storage().nbytes() == block.nbytes:
            block.values = source.clone().untyped_storage()
    return empty
