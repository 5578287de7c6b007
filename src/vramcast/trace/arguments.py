"""Arguments of an operator as text: what both recorders, of a real card and of the virtual one, write of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_DTYPE_NAMES = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8",
    torch.bool: "b8", torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip

Place = Callable[[torch.device, "torch.Tensor | None"], str]
"""The device as it is written; asked with a tensor that lies there, or with an argument that names a device."""


def as_it_is(device: torch.device, tensor: torch.Tensor | None) -> str:
    return str(device)


def describe_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], place: Place = as_it_is) -> str:
    """A compact text of an operator's arguments: dtype, shape, and strides where not contiguous."""
    parts = [_describe(value, place) for value in args]
    parts += [f"{name}={_describe(value, place)}" for name, value in kwargs.items()]
    return ", ".join(parts)


def _describe(value: Any, place: Place) -> str:
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value, place)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_describe(item, place) for item in value) + "]"
    if value is None or isinstance(value, bool | int | str):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, torch.device):
        return place(value, None)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value).removeprefix("torch.")
    return type(value).__name__


def _describe_tensor(tensor: torch.Tensor, place: Place) -> str:
    dtype = _DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    where = place(tensor.device, tensor)
    prefix = "" if where.startswith("cuda") else f"{where.partition(':')[0]}:"
    shape = ",".join(map(str, tensor.shape))
    if tensor.layout is not torch.strided:
        return f"{prefix}{dtype}({shape}){str(tensor.layout).removeprefix('torch.')}"
    strides = "" if tensor.is_contiguous() else "{" + ",".join(map(str, tensor.stride())) + "}"
    return f"{prefix}{dtype}({shape}){strides}"
