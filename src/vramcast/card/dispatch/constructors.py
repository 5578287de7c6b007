"""Ways to make and to move tensors that a mode does not see as they are: a module's `to`, data made of tensors, and
what a storage says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.functions import FunctionMode, device_of, handles, placement, to_device
from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, HOST, Block
from vramcast.card.ops import sparse
from vramcast.card.values import reads

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


@handles(torch.tensor, torch.as_tensor, torch.asarray, torch.sparse_coo_tensor, torch.sparse_csr_tensor)
def _from_data(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """PyTorch reads each tensor of a list as a number, below every mode."""
    return mode.call(func, tuple(numbers(arg) for arg in args), {key: numbers(arg) for key, arg in kwargs.items()})


@handles(torch.Tensor.new)
def _new(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The old constructor, which sparse optimizers use as `grad.new(indices, values, size)`."""
    if args[0].layout is torch.sparse_coo and args[0].is_meta and len(args) == 4:
        return sparse.sparse_tensor(*args[1:])
    args = (args[0], *(numbers(arg) for arg in args[1:]))
    if placement(args[0]) == GPU and len(args) > 1 and not isinstance(args[1], (int, torch.Size, torch.Tensor)):
        return mode.from_data(torch.tensor, (args[1],), {"dtype": args[0].dtype}, device_of(args[0]))
    return func(*args, **kwargs)


@handles(torch.Tensor.new_tensor)
def _new_tensor(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, data = args[0], numbers(args[1] if len(args) > 1 else kwargs.pop("data"))
    device = to_device(kwargs.pop("device", None)) or device_of(tensor)
    if device.type != "cuda":
        return func(tensor, data, device=device, **kwargs)
    dtype = kwargs.pop("dtype", None) or tensor.dtype
    return mode.from_data(torch.tensor, (data,), {"dtype": dtype, **kwargs}, device)


@handles(torch.Tensor.__float__, torch.Tensor.__index__)
def _read_below_modes(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.FloatTensor([...])` asks here for each tensor of a list, while the mode below sees no op."""
    tensor = args[0]
    if placement(tensor) in (GPU, HOST) and torch._C._dispatch_tls_is_dispatch_key_excluded(
        torch._C.DispatchKey.Python
    ):
        return func(reads.read(mode.dispatch.machine, tensor, "read as a Python number"))
    return func(*args, **kwargs)


def numbers(data: Any) -> Any:
    """The same with every tensor of the card in a list read as PyTorch reads it."""
    if not isinstance(data, (list, tuple)) or isinstance(data, torch.Size):
        return data
    return [_numbers(item) for item in data]


def _numbers(data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        if placement(data) not in (GPU, HOST):
            return data
        return [_numbers(part) for part in data.unbind()] if data.dim() else data.item()
    return numbers(data)
