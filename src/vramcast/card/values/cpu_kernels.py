"""What ops that only CUDA has compute, or only CUDA with these types, by ops of the CPU.

A function may give fewer results than the op has: those that follow it are for its backward pass alone (seeds,
logarithms of sums), which is computed without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.card.values.cpu_attention import ATTENTION

_aten = torch.ops.aten


def on_cpu(func: Any) -> Callable[..., Any]:
    """The op itself, or what computes the same."""
    same: Callable[..., Any] = _SAME.get(func._schema.name, func)
    return same


def _batch_norm(
    input: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    outs = _native_batch_norm(input, weight, bias, mean, variance, training, momentum, eps)
    return (*outs, torch.zeros(0, dtype=torch.uint8, device="cpu"))


def _native_batch_norm(
    input: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Half-precision activations beside fp32 weights: in fp32."""
    out, *saved = _aten.native_batch_norm(_wide(input), weight, bias, mean, variance, training, momentum, eps)
    return (out.to(input.dtype), *saved)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.element_size() < 4 else tensor


def _native_batch_norm_backward(gradient: Any, input: Any, *rest: Any) -> Any:
    of_input, *others = _aten.native_batch_norm_backward(_wide(gradient), _wide(input), *rest)
    return (of_input.to(input.dtype), *others)


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
    return _native_batch_norm_backward(
        gradient, input, weight, mean, variance, saved_mean, saved_var, True, eps, wanted
    )


_SAME: dict[str, Callable[..., Any]] = {
    **ATTENTION,
    "aten::native_batch_norm": _native_batch_norm,
    "aten::native_batch_norm_backward": _native_batch_norm_backward,
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
}
