"""Ways to make and to move tensors that a mode does not see as they are: a module's `to`, data made of tensors, and
what a storage says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.functions import FunctionMode, device_of, handles, placement
from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, HOST, Block

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches


def install(put: Patches) -> None:
    put.set(torch.UntypedStorage, "device", property(_storage_device(torch.UntypedStorage.device)))
    put.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(_wrapper(torch.Tensor._make_wrapper_subclass)))


def _storage_device(original: Any) -> Callable[[Any], torch.device]:
    def device(storage: Any) -> torch.device:
        block: Block | None = storage.__dict__.get(ATTRIBUTE)
        if block is not None and block.device == GPU:
            return torch.device("cuda", block.card)
        return original.__get__(storage)  # type: ignore[no-any-return]

    return device


def _wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    """A subclass that wraps tensors of the card is, like these, without data: autograd asks the driver for the stream
    of anything that says "cuda". No comprehension: Dynamo refuses the frame of one in code that it compiles whole."""

    def make(*args: Any, **kwargs: Any) -> Any:
        for key, value in kwargs.items():
            kwargs[key] = _without_card(value)
        return original(*map(_without_card, args), **kwargs)

    return make


def _without_card(value: Any) -> Any:
    return torch.device("meta") if isinstance(value, torch.device) and value.type == "cuda" else value


@handles(torch._C._nn._parse_to)
def _parse_to(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `Module.to` was told: it only reads its arguments, and names the device for what follows."""
    tensor = kwargs.get("tensor", args[0] if args else None)
    if type(tensor) is int:  # the machine itself may have no accelerator to count
        return func(torch.device("cuda", tensor), *args[1:], **kwargs)
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
