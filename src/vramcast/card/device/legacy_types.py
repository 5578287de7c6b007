"""torch.cuda.FloatTensor and its kin: constructors from before there were devices, still common in older scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _CardTensorType(type):
    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Sizes give an empty tensor, anything else is data."""
        if all(isinstance(arg, int) for arg in args):
            return torch.empty(args or (0,), dtype=cls.dtype, device="cuda")
        if isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=cls.dtype, device="cuda")
        if isinstance(args[0], torch.Tensor):
            return args[0].to("cuda", cls.dtype)
        return torch.tensor(args[0], dtype=cls.dtype).to("cuda")


def install(put: Patches) -> None:
    for name, dtype in _DTYPES.items():
        # Its module and name are what torch.Tensor.type(...) reads.
        kind = _CardTensorType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        put.set(torch.cuda, name, kind)
    default: list[_CardTensorType] = []
    put.set(torch, "set_default_tensor_type", _default_setter(default, torch.set_default_tensor_type))
    put.set(torch.Tensor, "__new__", staticmethod(_constructor(default, torch.Tensor.__new__)))


def _constructor(default: list[_CardTensorType], new: Any) -> Any:
    """`torch.Tensor(...)` makes what the default type says. A subclass without a constructor of its own
    (`class Bias(torch.Tensor)`) is made on the host, and PyTorch cannot make one under a dispatch mode."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is not torch.Tensor:
            with _disable_current_modes():
                return new(cls, *args, **kwargs)
        return default[0](*args) if default and not kwargs else new(cls, *args, **kwargs)

    return __new__


def _default_setter(default: list[_CardTensorType], original: Any) -> Any:
    """The default type decides for factory functions, as a default device does, and for `torch.Tensor(...)`."""

    def set_default_tensor_type(t: Any) -> None:
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        if ".cuda." in name:
            default[:] = [getattr(torch.cuda, name.rpartition(".")[2])]
            torch.set_default_dtype(default[0].dtype)
            torch.set_default_device("cuda")
            return
        if default:
            default.clear()
            torch.set_default_device(None)
        original(t)

    return set_default_tensor_type
