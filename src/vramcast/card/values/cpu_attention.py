"""Fused attention of CUDA computed step by step on the CPU, forward and backward.

Without dropout: which weights a card would drop is not known anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor


def _weights(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> tuple[Tensor, float]:
    """The softmax over keys, and the scale of the scores."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ k.mT * factor
    if bias is not None:
        scores = scores + bias
    if causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0), factor  # a row without keys gives zeros


def _for_each_head(heads: int, tensor: Tensor) -> Tensor:
    """Keys and values in fp32, repeated where several heads share them."""
    return tensor.float().repeat_interleave(heads // tensor.shape[1], 1)


def _forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    heads = q.shape[1]
    weights, _ = _weights(q.float(), _for_each_head(heads, k), None if bias is None else bias.float(), causal, scale)
    return (weights @ _for_each_head(heads, v)).to(q.dtype)


def _backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values and scores."""
    heads, g = q.shape[1], gradient.float()
    each_k, each_v = _for_each_head(heads, k), _for_each_head(heads, v)
    weights, factor = _weights(q.float(), each_k, None if bias is None else bias.float(), causal, scale)
    of_weights = g @ each_v.mT
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
    return (
        (of_scores @ each_k * factor).to(q.dtype),
        _added_up(of_scores.mT @ q.float() * factor, k),
        _added_up(weights.mT @ g, v),
        of_scores,
    )


def _added_up(gradient: Tensor, shared: Tensor) -> Tensor:
    batch, heads, *rest = gradient.shape
    return gradient.view(batch, shared.shape[1], heads // shared.shape[1], *rest).sum(2).to(shared.dtype)


def _efficient(q: Any, k: Any, v: Any, bias: Any, _: bool, dropout: float = 0, causal: bool = False, *,
               scale: float | None = None) -> Any:  # fmt: skip
    return (_forward(q, k, v, bias, causal, scale),)


def _efficient_backward(
    gradient: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, logsumexp: Any, seed: Any, offset: Any, dropout: float,
    wanted: list[bool], causal: bool = False, *, scale: float | None = None,
) -> Any:  # fmt: skip
    of_q, of_k, of_v, of_scores = _backward(gradient, q, k, v, bias, causal, scale)
    if bias is None or not wanted[3]:
        return of_q, of_k, of_v
    return of_q, of_k, of_v, of_scores.sum_to_size(bias.shape).to(bias.dtype)


def _flash(q: Any, k: Any, v: Any, dropout: float = 0, causal: bool = False, debug: bool = False, *,
           scale: float | None = None) -> Any:  # fmt: skip
    return (_forward(q, k, v, None, causal, scale),)


def _flash_backward(
    gradient: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, starts_q: Any, starts_k: Any, longest_q: Any,
    longest_k: Any, dropout: float, causal: bool, seed: Any, offset: Any, *, scale: float | None = None,
) -> Any:  # fmt: skip
    return _backward(gradient, q, k, v, None, causal, scale)[:3]


def _cudnn(q: Any, k: Any, v: Any, bias: Any, _: bool, dropout: float = 0, causal: bool = False, debug: bool = False, *,
           scale: float | None = None) -> Any:  # fmt: skip
    return (_forward(q, k, v, bias, causal, scale),)


def _cudnn_backward(
    gradient: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, seed: Any, offset: Any, bias: Any, starts_q: Any,
    starts_k: Any, longest_q: Any, longest_k: Any, dropout: float, causal: bool, *, scale: float | None = None,
) -> Any:  # fmt: skip
    return _backward(gradient, q, k, v, bias, causal, scale)[:3]


ATTENTION: dict[str, Callable[..., Any]] = {
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
