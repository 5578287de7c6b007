"""Fake tensors that are on the card for Python and on "meta" for C++.

While a function is traced, torch's C++ (autograd above all) asks the CUDA runtime about streams and contexts of every
tensor whose device is CUDA, and ends the process where there is none. A tensor that C++ takes for a meta tensor asks
nobody, and is given to the functions of `composites` and `autocast`, which choose as CUDA would for the named card.
Python code (Dynamo, the decompositions, Inductor) sees the card that the tensor lies on throughout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor, meta_utils
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental import proxy_tensor

from vramcast.card.device.one_card import CARD, index_of
from vramcast.card.dispatch.peer_copies import card_of
from vramcast.card.dispatch.storages import is_virtual_gpu
from vramcast.card.libraries.convolution import convolution_backend
from vramcast.card.ops.convolution import output_format

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

META = torch.device("meta")


def install(put: Patches, on_first_tensor: Callable[[], None]) -> None:
    """`on_first_tensor`: torch allocates a tensor of one element before it makes a fake one."""
    put.set(FakeTensor, "__new__", staticmethod(_made_as_meta(FakeTensor.__new__)))
    # torch.tensor(..., device="cuda") is made on the host and moved by the mode, as where there is no card.
    put.set(FakeTensorMode, "avoid_device_init", property(lambda mode: True))
    put.set(fake_tensor, "init_gpu_context", lambda device: on_first_tensor())
    dispatch: Any = FakeTensor.__torch_dispatch__
    put.set(FakeTensor, "__torch_dispatch__", classmethod(_device_for_cpp(dispatch.__func__)))
    for mode in (FakeTensorMode, proxy_tensor.ProxyTorchDispatchMode, FunctionalTensorMode):
        put.set(mode, "__torch_dispatch__", _factories_on_card(mode.__torch_dispatch__))
    handlers = fake_tensor._DISPATCH_META_HANDLERS
    put.set(fake_tensor, "_DISPATCH_META_HANDLERS", {**handlers, torch.ops.prim.device.default: _cpp_device})
    put.set(FunctionalTensor, "device", property(_functional_device))
    for kind in (FakeTensor, FunctionalTensor):
        put.set(kind, "is_cuda", property(lambda tensor: tensor.device.type == "cuda"))
        put.set(kind, "is_meta", property(lambda tensor: tensor.device.type == "meta"))
        put.set(kind, "is_cpu", property(lambda tensor: tensor.device.type == "cpu"))
        put.set(kind, "new_tensor", _new_tensor)
        put.set(kind, "get_device", lambda tensor: tensor.device.index if tensor.device.type == "cuda" else -1)
    put.set(torch._ops, "resolve_key", _as_for_cuda(torch._ops.resolve_key))
    _forget_resolved()
    for name, function in (
        ("_select_conv_backend", _convolution_backend(torch._C._select_conv_backend)),
        ("_conv_determine_backend_memory_format", _memory_format(torch._C._conv_determine_backend_memory_format)),
    ):
        put.set(torch._C, name, function)
    describer = meta_utils.MetaTensorDescriber
    put.set(describer, "describe_tensor", _described_on_card(describer.describe_tensor))


def remove() -> None:
    """Called after the patches are undone."""
    _forget_resolved()


def _forget_resolved() -> None:
    for op in torch._ops.get_cached_ops():
        op._dispatch_cache.clear()


def _as_for_cuda(original: Callable[..., Any]) -> Callable[..., Any]:
    """Python's dispatcher takes an op apart unless it has a kernel for the device. Some have one for meta tensors
    which cannot be differentiated, and none for CUDA; a few are taken apart in Python only while they are traced, and
    then not by the functions of `composites`."""
    of_meta, of_cuda = torch._C.DispatchKey.AutogradMeta, torch._C.DispatchKey.AutogradCUDA

    def resolve_key(op: Any, key: Any) -> Any:
        if key != of_meta:
            return original(op, key)
        resolved = original(op, of_cuda)
        if resolved in op.py_kernels:
            return resolved
        return key if resolved == of_cuda or op.has_kernel_for_dispatch_key(key) else resolved

    return resolve_key


def _made_as_meta(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def __new__(cls: Any, fake_mode: Any, elem: Any, device: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.device(device).type != "cuda":
            return original(cls, fake_mode, elem, device, *args, **kwargs)
        card = torch.device("cuda", index_of(device))
        fake_tensor.init_gpu_context(card)
        tensor = original(cls, fake_mode, elem, META, *args, **kwargs)
        tensor.fake_device = card
        return tensor

    return __new__


def _cpp_device(args: Any) -> torch.device:
    """What C++ is told when it asks a fake tensor for its device."""
    tensor = args[0]
    if tensor.fake_mode.in_kernel_invocation or tensor.fake_device.type == "cuda":
        return META
    return tensor.fake_device  # type: ignore[no-any-return]


def _device_for_cpp(original: Callable[..., Any]) -> Callable[..., Any]:
    def __torch_dispatch__(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return _cpp_device(args)
        return original(cls, func, types, args, kwargs or {})

    return __torch_dispatch__


def _factories_on_card(original: Callable[..., Any]) -> Callable[..., Any]:
    """C++ puts a new tensor where it believes the others to be."""

    def __torch_dispatch__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and kwargs.get("device") == META:
            kwargs = {**kwargs, "device": CARD.device}
        return original(self, func, types, args, kwargs or {})

    return __torch_dispatch__


def _new_tensor(tensor: Any, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Any:
    """C++ makes a tensor without data where it believes `tensor` to be, and no mode sees it."""
    made = torch.tensor(data, dtype=dtype or tensor.dtype, device="cpu").to(device or tensor.device)
    return made.requires_grad_() if requires_grad else made


def _functional_device(tensor: Any) -> torch.device:
    inner = tensor.elem
    if torch._is_functional_tensor(inner):
        inner = torch._from_functional_tensor(inner)
    return inner.device  # type: ignore[no-any-return]


def _described_on_card(original: Callable[..., Any]) -> Callable[..., Any]:
    def describe_tensor(self: Any, t: torch.Tensor, **kwargs: Any) -> Any:
        described = original(self, t, **kwargs)
        if described.device.type == "meta" and not isinstance(t, FakeTensor) and is_virtual_gpu(t):
            object.__setattr__(described, "device", torch.device("cuda", card_of(t)))
        return described

    return describe_tensor


# -- convolutions: which library runs one, and so the strides of its result -------------------------------------------


def _hint(number: Any) -> int:
    return int(number.node.hint) if isinstance(number, torch.SymInt) else int(number)


def _convolution_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    def _select_conv_backend(
        input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
        output_padding: Any, groups: int, bias_sizes: Any = None,
    ) -> Any:  # fmt: skip
        if input.device.type != "cuda":
            return original(
                input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, bias_sizes
            )
        spatial = input.dim() - 2
        return convolution_backend(
            [_hint(n) for n in input.shape], [_hint(n) for n in weight.shape], _each(stride, spatial),
            _each(dilation, spatial), _hint(groups), bool(transposed), str(input.dtype).removeprefix("torch."),
            output_format(input, weight) is not torch.contiguous_format,
        )  # fmt: skip

    return _select_conv_backend


def _each(values: Any, spatial: int) -> list[int]:
    numbers = [_hint(n) for n in values]
    return numbers * spatial if len(numbers) == 1 else numbers


def _memory_format(original: Callable[..., Any]) -> Callable[..., Any]:
    def _conv_determine_backend_memory_format(input: Any, weight: Any, backend: Any) -> torch.memory_format:
        if not isinstance(backend, str):
            return original(input, weight, backend)  # type: ignore[no-any-return]
        return output_format(input, weight) if backend == "cudnn" else torch.contiguous_format

    return _conv_determine_backend_memory_format
