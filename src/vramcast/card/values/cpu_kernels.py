"""What ops that only CUDA has compute, by ops of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_aten = torch.ops.aten


def on_cpu(func: Any) -> Callable[..., Any]:
    """The op itself, or what computes the same."""
    same: Callable[..., Any] = _SAME.get(func._schema.name, func)
    return same


def _batch_norm(
    input: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    outs = _aten.native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps)
    return (*outs, torch.zeros(0, dtype=torch.uint8, device="cpu"))


def _batch_norm_backward(
    input: Any,
    gradient: Any,
    weight: Any,
    mean: Any,
    variance: Any,
    saved_mean: Any,
    saved_var: Any,
    eps: float,
    _: Any,
) -> Any:
    wanted = [True, True, True]
    return _aten.native_batch_norm_backward(
        gradient, input, weight, mean, variance, saved_mean, saved_var, True, eps, wanted
    )


_SAME: dict[str, Callable[..., Any]] = {
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
}
