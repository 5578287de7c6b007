"""Ways to make and to move tensors that a mode does not see as they are: constructors from before there were devices,
storages, a module's `to`, and data made of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual_gpu.functions import (
    CPU,
    CUDA0,
    FunctionMode,
    check_index,
    device_of,
    handles,
    placement,
    to_device,
)
from vramcast.virtual_gpu.storages import ATTRIBUTE, GPU, HOST, Block

if TYPE_CHECKING:
    from vramcast.virtual_gpu.ledger import Ledger
    from vramcast.virtual_gpu.patches import Patches


def install(put: Patches, ledger: Ledger) -> None:
    storage = torch.UntypedStorage
    put.set(storage, "__new__", staticmethod(_storage_maker(storage.__new__, ledger)))
    put.set(storage, "device", property(_storage_device(storage.device)))


def _storage_maker(original: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    """`UntypedStorage(nbytes, device="cuda")`."""

    def __new__(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        where = to_device(device)
        if where is None or where.type != "cuda" or not ledger.open:
            return original(cls, *args, **kwargs, **({} if device is None else {"device": device}))
        check_index(where)
        size = args[0] if args else kwargs.get("size", 0)
        if not isinstance(size, int):
            raise TypeError("storage can't be made on the card from a sequence; make a tensor and take its storage")
        storage = original(cls, size, device="meta")
        ledger.book(storage, GPU)
        return storage

    return __new__


def _storage_device(original: Any) -> Callable[[Any], torch.device]:
    def device(storage: Any) -> torch.device:
        block: Block | None = storage.__dict__.get(ATTRIBUTE)
        if block is None:
            return original.__get__(storage)  # type: ignore[no-any-return]
        return CUDA0 if block.device == GPU else CPU

    return device


@handles(torch._C._nn._parse_to)
def _parse_to(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `Module.to` was told: it only reads its arguments, and names the device for what follows."""
    tensor = kwargs.get("tensor", args[0] if args else None)
    if not isinstance(tensor, torch.Tensor):
        return func(*args, **kwargs)
    _, _, non_blocking, memory_format = func(*args, **kwargs)
    return device_of(tensor), tensor.dtype, non_blocking, memory_format


@handles(torch.Tensor.type_as)
def _type_as(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, other = args[0], args[1] if len(args) > 1 else kwargs["other"]
    return mode.move(tensor, device_of(other), other.dtype)


@handles(torch.tensor, torch.as_tensor, torch.asarray)
def _from_data(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """PyTorch reads each tensor of a list as a number, below every mode."""
    if args and isinstance(args[0], (list, tuple)):
        args = (_numbers(args[0]), *args[1:])
    return mode.call(func, args, kwargs)


def _numbers(data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        if placement(data) not in (GPU, HOST):
            return data
        return [_numbers(part) for part in data.unbind()] if data.dim() else data.item()
    if isinstance(data, (list, tuple)):
        return [_numbers(item) for item in data]
    return data
