"""Apex: `csrc/megatron`, `contrib/csrc/layer_norm`, `csrc/layer_norm_cuda.cpp`."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from torch.nn import functional


class FastLayerNormFN:
    """The layer norm of `apex.contrib`."""

    @staticmethod
    def apply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, *rest: Any) -> torch.Tensor:
        return functional.layer_norm(x, weight.shape, weight, bias, eps)

    @staticmethod
    def forward(ctx: Any, x: Any, gamma: Any, beta: Any, epsilon: Any, memory_efficient: bool = False) -> Any:
        """Megatron-LM looks for `memory_efficient` among its arguments."""


class FusedLayerNormAffineFunction:
    forward = FastLayerNormFN.forward

    @staticmethod
    def apply(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, shape: Any, eps: float, *rest: Any
    ) -> torch.Tensor:
        return functional.layer_norm(x, tuple(shape), weight, bias, eps)


def forward(input: torch.Tensor, *mask_and_scale: Any) -> torch.Tensor:
    return torch.softmax(input, -1)


def backward(gradient: torch.Tensor, results: torch.Tensor, scale: Any) -> torch.Tensor:
    """Writes into the gradient it is given."""
    torch.ops.aten.mul_(gradient, 1.0)
    return gradient


def get_batch_per_block(query_length: int, key_length: int, batches: int, heads: int) -> int:
    """`csrc/megatron/scaled_masked_softmax.h`: rows of a block of 128 threads."""
    elements = 1 << (key_length - 1).bit_length()
    warp = min(elements, 32)
    return 128 // warp * (2 if elements <= 128 else 1)


def wgrad_gemm_accum_fp32(input: torch.Tensor, gradient: torch.Tensor, main: torch.Tensor) -> None:
    left, right = gradient.detach().flatten(0, -2).t(), input.detach().flatten(0, -2)
    target = main.detach().view(left.shape[0], right.shape[1])
    if main.dtype == left.dtype:
        torch.addmm(target, left, right, out=target)
    else:
        torch.ops.aten.addmm.dtype_out(target, left, right, main.dtype, out=target)


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def install() -> None:
    softmax = {"forward": forward, "backward": backward, "get_batch_per_block": get_batch_per_block}
    contents: dict[str, dict[str, Any]] = {
        "apex": {},
        "apex.contrib": {},
        "apex.contrib.layer_norm": {},
        "apex.contrib.layer_norm.layer_norm": {"FastLayerNormFN": FastLayerNormFN},
        "apex.normalization": {},
        "apex.normalization.fused_layer_norm": {"FusedLayerNormAffineFunction": FusedLayerNormAffineFunction},
        "scaled_upper_triang_masked_softmax_cuda": softmax,
        "scaled_masked_softmax_cuda": softmax,
        "scaled_softmax_cuda": softmax,
        "fused_weight_gradient_mlp_cuda": {
            "wgrad_gemm_accum_fp32": wgrad_gemm_accum_fp32,
            "wgrad_gemm_accum_fp16": wgrad_gemm_accum_fp16,
        },
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(content)
        sys.modules[name] = module
