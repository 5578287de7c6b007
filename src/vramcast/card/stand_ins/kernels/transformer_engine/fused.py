"""Norms, activations, and gradients of biases, with what comes out of them quantized at once where a kernel can
(`normalization.cpp`, `activation.cpp`, `bias.cpp`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.kernels.transformer_engine.launches import launch, parts
from vramcast.card.stand_ins.kernels.transformer_engine.names import torch_dtype
from vramcast.card.stand_ins.kernels.transformer_engine.quantizers import create, fill, kind_of
from vramcast.card.stand_ins.ops import multiprocessors

_AT_ONCE = ("", "Float8Quantizer", "MXFP8Quantizer")
"""Quantizers whose numbers an activation's kernel writes itself."""
_CURRENT = "Float8CurrentScalingQuantizer"
_REGISTERS = 256
"""Of a thread in a norm's backward pass: as many as there are. What the compiler gives it is not in the source."""


def _through(
    quantizer: Any, shape: Any, dtype: torch.dtype, reads: list[Tensor], *, at_once: bool, out: Any = None,
    before: Callable[[Tensor], None] | None = None,
) -> Any:  # fmt: skip
    """The result of a kernel, quantized: at once, or by way of a tensor in the dtype of the computation. `before`: what
    else is made of that tensor."""
    if out is None:
        out = create(quantizer, shape, dtype, reads[0].device)
    if at_once:
        launch(reads, parts(out))
        return out
    amax = torch.zeros(1, dtype=torch.float32, device=reads[0].device) if kind_of(quantizer) == _CURRENT else None
    plain = torch.empty(shape, dtype=dtype, device=reads[0].device)
    launch(reads, [plain])
    if before is not None:
        before(plain)
    fill(quantizer, plain, out, amax=amax)
    return out


# -- norms ------------------------------------------------------------------------------------------------------------


def layernorm_fwd(
    input: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Any, quantizer: Any, otype: Any, *rest: Any
) -> list[Any]:
    rows = input.numel() // input.shape[-1]
    mean, deviation = (input.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return [_normed([input, weight, bias], input.shape, out, quantizer, otype), mean, deviation]


def rmsnorm_fwd(
    input: Tensor, weight: Tensor, eps: float, out: Any, quantizer: Any, otype: Any, *rest: Any
) -> list[Any]:
    deviation = input.new_empty(input.numel() // input.shape[-1], dtype=torch.float32)
    return [_normed([input, weight], input.shape, out, quantizer, otype), None, deviation]


def _normed(reads: list[Tensor], shape: Any, out: Any, quantizer: Any, otype: Any) -> Any:
    whole_tiles = prod(shape[:-1]) % 128 == 0 and shape[-1] % 128 == 0
    of_cudnn = os.environ.get("NVTE_NORM_FWD_USE_CUDNN", "0") not in ("", "0") and whole_tiles
    kind = kind_of(quantizer)
    at_once = kind in ("", "Float8Quantizer") or (kind == "MXFP8Quantizer" and of_cudnn)
    return _through(quantizer, shape, torch_dtype(otype), reads, at_once=at_once, out=out)


def layernorm_bwd(dz: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, gamma: Tensor, *rest: Any) -> list[Any]:
    return _norm_backward([dz, x, mean, deviation, gamma], x, gamma, gradients=2)


def rmsnorm_bwd(dz: Tensor, x: Tensor, deviation: Tensor, gamma: Tensor, *rest: Any) -> list[Any]:
    return _norm_backward([dz, x, deviation, gamma], x, gamma, gradients=1)


def rmsnorm_bwd_add(dz: Tensor, x: Tensor, add: Tensor, deviation: Tensor, gamma: Tensor, *rest: Any) -> list[Any]:
    return _norm_backward([dz, x, add, deviation, gamma], x, gamma, gradients=1)


def _norm_backward(reads: list[Tensor], x: Tensor, gamma: Tensor, *, gradients: int) -> list[Tensor]:
    """Blocks sum the gradients of the weights by themselves, in fp32."""
    reads = [tensor.contiguous() for tensor in reads]
    dx = torch.empty_like(x.contiguous())
    of_weights = [torch.empty_like(gamma) for _ in range(gradients)]
    width = x.shape[-1]
    threads = 256 if width == 6144 else 128
    blocks = multiprocessors(x) * (65536 // (threads * _REGISTERS))
    sums = x.new_empty((gradients, min(blocks, x.numel() // width), width), dtype=torch.float32)
    launch(reads, [dx, *of_weights])
    del sums
    return [dx, *of_weights]


# -- activations ------------------------------------------------------------------------------------------------------


def _activation(halves: int, input: Tensor, quantizer: Any, *settings: Any, **named: Any) -> Any:
    input = input.contiguous()
    shape = [*input.shape[:-1], input.shape[-1] // halves]
    return _through(quantizer, shape, input.dtype, [input], at_once=kind_of(quantizer) in _AT_ONCE)


def _activation_backward(grad: Tensor, input: Tensor, quantizer: Any, *settings: Any, **named: Any) -> Any:
    grad, input = grad.contiguous(), input.contiguous()
    return _through(quantizer, input.shape, input.dtype, [grad, input], at_once=kind_of(quantizer) in _AT_ONCE)


def _activation_and_bias_backward(grad: Tensor, input: Tensor, quantizer: Any) -> list[Any]:
    """(gradient of the bias, quantized gradient of what went into the activation)"""
    grad, input = grad.contiguous(), input.contiguous()
    bias = grad.new_empty(input.shape[-1])
    out = create(quantizer, input.shape, grad.dtype, grad.device)
    at_once = kind_of(quantizer) in _AT_ONCE[1:]
    before = partial(_sum_rows, bias)
    return [bias, _through(quantizer, input.shape, grad.dtype, [grad, input], at_once=at_once, out=out, before=before)]


def _sum_rows(bias: Tensor, tensor: Tensor) -> None:
    torch.sum(tensor.reshape(-1, bias.shape[0]), 0, out=bias)


def bgrad_quantize(grad: Tensor, quantizer: Any) -> list[Any]:
    grad = grad.contiguous()
    bias = grad.new_empty(grad.shape[-1])
    if quantizer is None:
        _sum_rows(bias, grad)
        return [bias, grad]
    out = create(quantizer, grad.shape, grad.dtype, grad.device)
    if not _sums_and_quantizes(quantizer):
        _sum_rows(bias, grad)
        fill(quantizer, grad, out)
    else:
        launch([grad], [bias, *parts(out)])
    return [bias, out]


def _sums_and_quantizes(quantizer: Any) -> bool:
    kind = kind_of(quantizer)
    if kind == "Float8Quantizer":
        both_ways = quantizer.rowwise_usage and quantizer.columnwise_usage
        return both_ways or torch.cuda.get_device_capability() >= (10, 0)
    return kind == "MXFP8Quantizer"


_UNGATED = ("gelu", "qgelu", "relu", "srelu", "silu")
_GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu", "situglu", "clamped_swiglu")

ACTIVATIONS: dict[str, Callable[..., Any]] = {
    **{name: partial(_activation, 1) for name in _UNGATED},
    **{name: partial(_activation, 2) for name in _GATED},
    **{f"d{name}": _activation_backward for name in (*_UNGATED, *_GATED)},
    "clamped_dswiglu": _activation_backward,
    **{f"dbias_d{name}": _activation_and_bias_backward for name in _UNGATED},
}
