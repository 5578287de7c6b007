"""PyTorch's own batch norm, where cuDNN's is not used: aten/src/ATen/native/cuda/Normalization.cu and .cuh."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.layout import are_mergeable, suggested_format
from vramcast.card.ops.registry import Call, kernel

_INDEX_LIMIT = 1 << 31
_MAX_BLOCK_SIZE = 512
_OPTIMAL_TILE_W = 32
_ELEMENTS_PER_THREAD = 16
_MAX_H_BLOCK = 128
_FEWEST_ROWS_OF_BLOCKS = 8


@kernel("aten::native_batch_norm")
def native_batch_norm(call: Call) -> Any:
    out = call.run()
    x = call.args[0]
    if not call.argument("training"):
        return out
    volume = x.dim() == 5 and suggested_format(x) is torch.channels_last_3d
    if volume and x.dtype in (torch.float16, torch.bfloat16):
        call.scratch(4 * x.numel())  # no kernel for this layout: statistics of an fp32 copy
    elif not volume and _has_channels_last_kernels(x) and x.numel() < _INDEX_LIMIT:
        _staging(call, x, 4, out[1].element_size())
    return out


@kernel("aten::native_batch_norm_backward")
def native_batch_norm_backward(call: Call) -> Any:
    """One fused kernel, which sees batch, channel and all the rest: what cannot be viewed so is copied, and the
    gradient is dense. With channels last, sums first, then the gradient."""
    grad, x = call.args[0], call.args[1]
    mask = call.argument("output_mask")
    if not mask[0] or not (call.argument("train") or mask[1] or mask[2]) or x.numel() >= _INDEX_LIMIT:
        return call.run()
    weight = call.argument("weight")
    statistics = (x.size(1),), torch.float32 if weight is None else weight.dtype
    channels_last = _has_channels_last_kernels(x)
    if channels_last and _has_channels_last_kernels(grad):
        sums = [call.empty(*statistics) for _ in range(2)]
        dw, db = call.empty(*statistics), call.empty(*statistics)
        _staging(call, x, 2, sums[0].element_size())
        dx = call.empty(x.size(), x.dtype, x.stride())
        del sums
    elif channels_last:
        held = _flattened(call, x, grad)
        sums = [call.empty(*statistics) for _ in range(2)]
        dw, db = call.empty(*statistics), call.empty(*statistics)
        del held
        dx = call.empty(x.size(), x.dtype, x.stride())
        del sums
    else:
        held = _flattened(call, x, grad)
        dx = call.empty(x.size(), x.dtype)
        gradients = [call.empty(*statistics) if wanted else None for wanted in mask[1:]]
        del held
        return dx, *gradients
    return dx, dw if mask[1] else None, db if mask[2] else None


def _has_channels_last_kernels(x: torch.Tensor) -> bool:
    """batch_norm_use_channels_last_kernels."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return True
    if x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d):
        return True
    return x.is_contiguous() and x.stride(1) == 1


def _staging(call: Call, x: torch.Tensor, per_channel: int, element_size: int) -> None:
    """Long columns are summed by several blocks, which meet in global memory (flexible_launch_configs)."""
    channels = x.size(1)
    rows = x.numel() // max(channels, 1)
    if not channels or not rows:
        return
    block_x = min(_power_of_two(channels), _OPTIMAL_TILE_W)
    block_y = min(_power_of_two(-(-rows // _ELEMENTS_PER_THREAD)), _MAX_BLOCK_SIZE // block_x)
    if block_x * block_y != _MAX_BLOCK_SIZE:
        block_x = min(_power_of_two(channels), _MAX_BLOCK_SIZE // block_y)
    grid_x = -(-channels // block_x)
    grid_y = min(-(-rows // (block_y * _ELEMENTS_PER_THREAD)), _MAX_H_BLOCK)
    if grid_y >= _FEWEST_ROWS_OF_BLOCKS:
        call.scratch(per_channel * channels * grid_y * element_size, 4 * grid_x)


def _power_of_two(n: int) -> int:
    """The largest that is not above n."""
    return 1 << (n.bit_length() - 1)


def _flattened(call: Call, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [call.empty(t.size(), t.dtype) for t in tensors if not are_mergeable(t.shape[2:], t.stride()[2:])]
