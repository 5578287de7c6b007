"""Pooling and upsampling: a gradient that is not dense is copied first, and some kernels take no more elements than an
int counts."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.base.errors import TooManyElements
from vramcast.card.ops.layout import suggested_format
from vramcast.card.ops.registry import Call, kernel

_INT_MAX = 2**31 - 1


def _refuse_beyond_int(name: str, least_channels: int, **tensors: torch.Tensor) -> None:
    """Refuse as the kernels for channels-last images do; those for the other layout count further."""
    for role, tensor in tensors.items():
        turned = tensor.dim() == 4 and not tensor.is_contiguous() and tensor.size(1) >= least_channels
        if turned and tensor.is_contiguous(memory_format=torch.channels_last) and tensor.numel() >= _INT_MAX:
            raise TooManyElements(
                f"{name} only supports {role} tensors with less than INT_MAX elements, but got {list(tensor.shape)}"
            )


@kernel("aten::upsample_bilinear2d")
def bilinear(call: Call) -> Any:
    out = call.run()
    _refuse_beyond_int("upsample_bilinear2d_nhwc", 16, input=call.args[0], output=out)
    return out


@kernel("aten::upsample_nearest2d_backward")
def nearest_backward(call: Call) -> Any:
    out = resample_backward(call)
    _refuse_beyond_int("upsample_nearest_nhwc", 4, grad_output=call.args[0], grad_input=out)
    return out


@kernel(
    "aten::upsample_bilinear2d_backward",
    "aten::upsample_trilinear3d_backward", "aten::max_pool3d_with_indices_backward",
    "aten::avg_pool3d_backward", "aten::upsample_linear1d_backward", "aten::upsample_nearest3d_backward",
)  # fmt: skip
def resample_backward(call: Call) -> Any:
    out = call.run()
    grad = call.args[0]
    layout = torch.channels_last if grad.dim() == 4 else torch.channels_last_3d if grad.dim() == 5 else None
    dense = grad.is_contiguous() or (layout is torch.channels_last and grad.is_contiguous(memory_format=layout))
    if not dense and grad.shape != out.shape:  # the same size is copied straight
        call.scratch(grad.numel() * grad.element_size())
    return out


@kernel("aten::upsample_bicubic2d_backward")
def bicubic_backward(call: Call) -> Any:
    """In the usual format alone."""
    out = call.run()
    call.scratch(*(t.numel() * t.element_size() for t in (call.args[0], out) if not t.is_contiguous()))
    return out


@kernel("aten::max_pool2d_with_indices_backward")
def max_pool2d_backward(call: Call) -> Any:
    out = call.run()
    grad, x = call.args[0], call.args[1]
    layout = suggested_format(x)
    copies = [t for t in (grad, x) if not t.is_contiguous(memory_format=layout)]
    call.scratch(*(t.numel() * t.element_size() for t in copies))
    return out


@kernel("aten::avg_pool2d", "aten::avg_pool2d_backward")
def dense_pooling(call: Call) -> Any:
    """These kernels read dense inputs only, in either layout."""
    out = call.run()
    tensors = [t for t in call.args[:2] if isinstance(t, torch.Tensor)]
    call.scratch(*(t.numel() * t.element_size() for t in tensors if not _dense(t)))
    return out


@kernel("aten::im2col", "aten::col2im")
def patches(call: Call) -> Any:
    """fold and unfold: the result starts as large as the input and is then resized, which never makes it smaller
    (Im2Col.cu, Col2Im.cu)."""
    x = call.args[0]
    size = call.func(*call.args, **call.kwargs).size()
    held = [] if x.is_contiguous() else [call.empty(x.size(), x.dtype)]
    out = call.empty(x.size(), x.dtype)
    torch.ops.aten.resize_.default(out, list(size))
    call.mode.adopt_tensor(out, call.device)
    del held
    return out


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


@kernel("aten::unfold_backward")
def unfold_backward(call: Call) -> Any:
    """The positions along the dimension are numbered (UnfoldBackward.h)."""
    out = call.run()
    call.scratch(out.size(call.argument("dim")) * torch.int64.itemsize if out.dim() else 0)
    return out
