"""What a tensor says of itself: where it lies, its address, its contents as NumPy, a list or text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vramcast.card.dispatch.functions import CPU, FunctionMode, device_of, handles, placement
from vramcast.card.dispatch.modes import REAL
from vramcast.card.dispatch.storages import GPU, HOST, block_of, known_values

_LARGEST_PRINTED = 1 << 20
"""Elements; a larger tensor is printed without any."""
_unread: list[None] = []


@contextmanager
def written_without_values() -> Iterator[None]:
    """Inside, the text of a tensor is for nobody's eyes, and its values are not asked for."""
    _unread.append(None)
    try:
        yield
    finally:
        _unread.pop()


@handles(torch.Tensor.device.__get__)
def _device(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    return device_of(args[0])


@handles(torch.Tensor.is_cuda.__get__)  # type: ignore[attr-defined]
def _is_cuda(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return device_of(args[0]).type == "cuda"


@handles(torch.Tensor.is_cpu.__get__)  # type: ignore[attr-defined]
def _is_cpu(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return device_of(args[0]).type == "cpu"


@handles(torch.Tensor.is_meta.__get__)  # type: ignore[attr-defined]
def _is_meta(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return device_of(args[0]).type == "meta"


@handles(torch.Tensor.get_device)
def _get_device(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    device = device_of(args[0])
    return device.index if device.type == "cuda" else -1


@handles(torch.Tensor.data_ptr)
def _data_ptr(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    tensor: torch.Tensor = args[0]
    block = block_of(tensor) if tensor.is_meta else None
    if block is None:
        return int(func(tensor))
    return int(block.address + tensor.storage_offset() * tensor.element_size())


@handles(torch.Tensor.numpy)
def _numpy(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if placement(tensor) == GPU and not kwargs.get("force"):
        raise TypeError(
            f"can't convert {device_of(tensor)} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )
    if placement(tensor) == REAL:
        return func(tensor, **kwargs)
    if tensor.requires_grad and not kwargs.get("force"):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    if placement(tensor) == HOST:
        content = known_values(tensor)
        if content is not None:  # what is written to the array is seen by the tensor
            return content.numpy()
    return mode.read(tensor, "read by NumPy").clone().numpy()


@handles(torch.Tensor.__array__)
def _array(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if placement(args[0]) == REAL:
        return func(*args, **kwargs)
    array, dtype = _numpy(mode, func, args[:1], {}), args[1] if len(args) > 1 else kwargs.get("dtype")
    return array if dtype is None else array.astype(dtype, copy=False)


@handles(torch.Tensor.tolist)
def _tolist(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    if placement(tensor) == GPU:
        tensor = mode.move(tensor, CPU, None)
    return func(mode.read(tensor, "read as a list") if placement(tensor) == HOST else tensor)


@handles(torch.Tensor.__format__)
def _format(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensor, *rest = args
    if placement(tensor) == REAL:
        return str(func(*args, **kwargs))
    if tensor.dim() == 0:
        return str(tensor.item().__format__(*rest, **kwargs))
    if any(rest):
        return object.__format__(tensor, *rest)  # which refuses it
    return str(_repr(mode, func, (tensor,), {}))


@handles(torch.Tensor.__repr__, torch.Tensor.__str__)
def _repr(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    tensor = args[0]
    if placement(tensor) == REAL:
        return str(func(*args, **kwargs))
    device = "" if placement(tensor) == HOST else f", device='{device_of(tensor)}'"
    if _unread or tensor.layout is not torch.strided or tensor.numel() > _LARGEST_PRINTED:
        return f"tensor(...{device}, size={tuple(tensor.shape)}, dtype={tensor.dtype})"
    content = mode.read(tensor, "printed")
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        return f"{repr(content.clone()).removesuffix(')')}{device})"
