"""Kernels that read dense tensors only: what is not dense is copied first, or once the result is made."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.layout import suggested_format
from vramcast.card.ops.registry import Call, kernel


@kernel("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d")
def copied_before(call: Call) -> Any:
    x = call.args[0]
    held = [] if _is_dense(x) else [call.empty(x.size(), x.dtype)]
    out = call.run()
    del held
    return out


@kernel("aten::median.dim", "aten::nanmedian.dim", "aten::kthvalue", "aten::_cdist_forward")
def made_contiguous_before(call: Call) -> Any:
    inputs = [tensor for tensor in call.args[:2] if isinstance(tensor, torch.Tensor)]
    held = [call.empty(tensor.size(), tensor.dtype) for tensor in inputs if not tensor.is_contiguous()]
    out = call.run()
    del held
    return out


@kernel(
    "aten::max_pool2d_with_indices", "aten::max_pool3d_with_indices", "aten::avg_pool3d", "aten::upsample_nearest1d",
    "aten::_upsample_nearest_exact1d", "aten::upsample_nearest2d", "aten::_upsample_nearest_exact2d",
)  # fmt: skip
def copied_after(call: Call) -> Any:
    """Once the result is made, in the memory format that the input suggests."""
    out = call.run()
    x = call.args[0]
    if not _is_dense(x):
        call.scratch(x.numel() * x.element_size())
    return out


@kernel(
    "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d", "aten::_upsample_bilinear2d_aa",
    "aten::_upsample_bicubic2d_aa",
    "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::rrelu_with_noise", "aten::mode", "aten::aminmax",
)  # fmt: skip
def made_contiguous_after(call: Call) -> Any:
    """Once the result is made, always in the usual format; so is the result, which is then copied to its own."""
    out = call.run()
    results = out if isinstance(out, (tuple, list)) else (out,)
    copies = [tensor for tensor in (*results, call.args[0]) if not tensor.is_contiguous()]
    call.scratch(*(tensor.numel() * tensor.element_size() for tensor in copies))
    return out


@kernel("aten::_upsample_bilinear2d_aa_backward", "aten::_upsample_bicubic2d_aa_backward")
def antialiased_backward(call: Call) -> Any:
    """The gradient alone."""
    out = call.run()
    grad = call.args[0]
    if not grad.is_contiguous():
        call.scratch(grad.numel() * grad.element_size())
    return out


@kernel("aten::glu_backward")
def glu_backward(call: Call) -> Any:
    """The gradient is worked out in the usual format, half by half."""
    out = call.run()
    if not out.is_contiguous():
        call.scratch(out.numel() * out.element_size())
    return out


@kernel("aten::adaptive_max_pool2d_backward", "aten::adaptive_max_pool3d_backward")
def adaptive_max_backward(call: Call) -> Any:
    """Gradient, positions and gradient of the input, all in the usual format; copied back where the input is not."""
    out = call.run()
    grad, x, indices = call.args
    copies = [t for t in (grad, indices) if not t.is_contiguous()]
    if not out.is_contiguous():
        copies.append(x)
    call.scratch(*(t.numel() * t.element_size() for t in copies))
    return out


@kernel("aten::searchsorted.Tensor", "aten::bucketize.Tensor")
def searched(call: Call) -> Any:
    """Boundaries and values are made dense and of one dtype (searchsorted_pre_check and its callers)."""
    out = call.run()
    first, second = call.args[:2]
    boundaries, x = (first, second) if call.func._schema.name == "aten::searchsorted" else (second, first)
    dtype = torch.promote_types(boundaries.dtype, x.dtype)
    call.scratch(*(t.numel() * dtype.itemsize for t in (x, boundaries) if t.dtype != dtype or not t.is_contiguous()))
    return out


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=suggested_format(tensor))
