"""Autocast for cuDNN's RNN: always to fp16, with all weights copied into one flat fp16 buffer.

Follows _cudnn_rnn_cast_reflatten in aten/src/ATen/cudnn/AutocastRNN.cpp, which ignores the region's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

HALF = torch.float16


class _FlatHalf(torch.autograd.Function):
    """fp32 weights as views of one fp16 buffer; their gradients come back one by one in fp32."""

    @staticmethod
    def forward(ctx: Any, *weights: torch.Tensor) -> Any:
        ctx.dtypes = [w.dtype for w in weights]
        flat = torch.zeros(sum(w.numel() for w in weights), dtype=HALF, device=weights[0].device)
        views, offset = [], 0
        for weight in weights:
            part = flat[offset : offset + weight.numel()]
            part.copy_(weight.view(-1))
            views.append(part.view(weight.size()))
            offset += weight.numel()
        return tuple(views)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        # On CUDA each copy is an autograd node of its own, and nodes run backward last made first.
        pairs = list(zip(grads, ctx.dtypes, strict=True))
        return tuple(reversed([g.to(dtype) for g, dtype in reversed(pairs)]))


def cudnn_rnn(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], cast: Callable[..., Any]) -> Any:
    """Run `_cudnn_rnn` on fp16 casts of its arguments."""
    arguments = list(args)
    weights = arguments[1]
    if any(w.dtype != HALF for w in weights):
        weights = list(_FlatHalf.apply(*weights))
        storage = weights[0].untyped_storage()
        arguments[3] = weights[0].detach().as_strided((storage.nbytes() // HALF.itemsize,), (1,), 0)
    arguments[1] = weights
    for position in (5, 4, 0):  # cx, hx, input: GCC evaluates a call's arguments from the last to the first
        arguments[position] = cast(HALF, arguments[position])
    return op(*arguments, **kwargs)
