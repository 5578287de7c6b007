"""Batch norm on CUDA: cuDNN's kernel or PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from vramcast.card.ops.layout import suggested_format

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec

Tensor = torch.Tensor
aten = torch.ops.aten

CUDNN_MIN_EPSILON = 1e-5
CUDNN_MAX_BATCH_TRAINING = 880801
CUDNN_MAX_BATCH_EVAL = 65535


def batch_norm_for(gpu: GpuSpec) -> Callable[..., Tensor]:
    def batch_norm(
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool,
    ) -> Tensor:
        if uses_cudnn(input, weight, bias, running_mean, running_var, training, eps, cudnn_enabled):
            dense = input.contiguous(memory_format=suggested_format(input))
            return aten.cudnn_batch_norm.default(  # type: ignore[no-any-return]
                dense, weight, bias, running_mean, running_var, training, momentum, eps
            )[0]
        return aten.native_batch_norm.default(  # type: ignore[no-any-return]
            input, weight, bias, running_mean, running_var, training, momentum, eps
        )[0]

    return batch_norm


def uses_cudnn(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    eps: float,
    enabled: bool,
) -> bool:
    """The conditions of _select_batch_norm_backend in aten/src/ATen/native/Normalization.cpp."""
    if not enabled or input.dim() < 3 or weight is None or bias is None or eps < CUDNN_MIN_EPSILON:
        return False
    if (running_mean is None) != (running_var is None) or (running_mean is None and not training):
        return False
    if torch.bfloat16 in (input.dtype, weight.dtype):
        return False
    if input.dtype == torch.float16 and weight.dtype != torch.float32:
        return False
    return input.size(0) <= (CUDNN_MAX_BATCH_TRAINING if training else CUDNN_MAX_BATCH_EVAL)
