"""Quantization-aware training: rounded values, and which of them were in range."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.registry import Call, kernel


@kernel(
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "aten::fake_quantize_per_channel_affine_cachemask",
)
def fake_quantize(call: Call) -> Any:
    x = call.args[0]
    dense = torch.empty_like(x).stride()
    return call.empty(x.size(), x.dtype, dense), call.empty(x.size(), torch.bool, dense)
