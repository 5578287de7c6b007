"""Pooling and upsampling: a gradient that is not dense is copied first."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual_gpu.kernels.registry import Call, kernel


@kernel(
    "aten::upsample_bilinear2d_backward", "aten::upsample_bicubic2d_backward", "aten::upsample_nearest2d_backward",
    "aten::upsample_trilinear3d_backward", "aten::max_pool3d_with_indices_backward",
    "aten::avg_pool3d_backward", "aten::upsample_linear1d_backward", "aten::upsample_nearest3d_backward",
)  # fmt: skip
def resample_backward(call: Call) -> Any:
    out = call.run()
    grad = call.args[0]
    layout = torch.channels_last if grad.dim() == 4 else torch.channels_last_3d if grad.dim() == 5 else None
    dense = grad.is_contiguous() or (layout is torch.channels_last and grad.is_contiguous(memory_format=layout))
    if not dense:
        call.scratch(grad.numel() * grad.element_size())
    return out
