"""Softmax with scale and mask, rotary embeddings, dropout, and what moves tokens to experts (`softmax.cpp`,
`apply_rope.cpp`, `dropout.cpp`, `permutation.cpp`, `padding.cpp`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.kernels.transformer_engine.launches import launch

_OWN_GRADIENT = (2, 19)
"""From this version on the gradient of a softmax is a tensor of its own; before, it is written over the incoming one
(https://github.com/NVIDIA/TransformerEngine/pull/3201)."""


def softmax_forward(input: Tensor, *rest: Any) -> Tensor:
    input = input.contiguous()
    out = input.new_empty(input.shape)
    launch([input], [out])
    return out


def softmax_backward(grad: Tensor, results: Tensor, scale: Any) -> Tensor:
    grad, results = grad.contiguous(), results.contiguous()
    out = grad.new_empty(grad.shape) if _version() >= _OWN_GRADIENT else grad
    launch([grad, results], [out])
    return out


def _version() -> tuple[int, ...]:
    import transformer_engine  # type: ignore[import-not-found]

    return tuple(int(part) for part in str(transformer_engine.__version__).split(".")[:2])


_MASKS = ("scaled", "scaled_masked", "scaled_upper_triang_masked", "scaled_aligned_causal_masked")
SOFTMAXES: dict[str, Callable[..., Tensor]] = {
    **{f"{mask}_softmax_forward": softmax_forward for mask in _MASKS},
    **{f"{mask}_softmax_backward": softmax_backward for mask in _MASKS},
}


# -- rotary embeddings ------------------------------------------------------------------------------------------------


def fused_rope_forward(input: Tensor, *rest: Any) -> Tensor:
    out = input.new_empty(input.shape)
    launch([input], [out])
    return out


def fused_rope_backward(grad: Tensor, *rest: Any) -> Tensor:
    return fused_rope_forward(grad)


def fused_qkv_rope_forward(
    qkv: Tensor, q_frequencies: Tensor, k_frequencies: Tensor, start: Any, widths: list[int], *rest: Any
) -> tuple[Tensor, ...]:
    """`widths`: of the parts of the last dimension; heads of k and v are as wide as one of them."""
    head = widths[1]
    outs = tuple(qkv.new_empty((*qkv.shape[:2], qkv.shape[2] * width // head, head)) for width in widths)
    launch([qkv], outs)
    return outs


def fused_qkv_rope_backward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    width = q.shape[-1] * (q.shape[2] // k.shape[2] + 2)
    out = q.new_empty((*q.shape[:2], k.shape[2], width))
    launch([q, k, v], [out])
    return out


# -- dropout ----------------------------------------------------------------------------------------------------------


def dropout_fwd(input: Tensor, probability: float, out: Tensor | None = None) -> list[Tensor]:
    """The mask has a bit for each number."""
    out = torch.empty_like(input) if out is None else out
    mask = input.new_empty(input.numel() // 8, dtype=torch.uint8)
    state = input.new_empty(2, dtype=torch.int64)
    launch([input], [out, mask])
    del state
    return [out, mask]


def dropout_bwd(grad: Tensor, mask: Tensor, probability: float, out: Tensor | None = None) -> Tensor:
    out = torch.empty_like(grad) if out is None else out
    launch([grad, mask], [out])
    return out


# -- experts ----------------------------------------------------------------------------------------------------------


def moe_permute_fwd(
    input: Tensor, dtype: Any, indices: Tensor, tokens_out: int, workspace: list[Tensor], most_tokens: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    tokens, chosen = indices.shape
    if not workspace:
        rows = torch.arange(most_tokens, dtype=torch.int32, device=input.device)
        sorted_indices, sorted_rows, sorting = (torch.empty_like(rows) for _ in range(3))
        workspace = [sorted_indices, rows, sorted_rows, sorting]
    out = input.new_empty((tokens_out if tokens_out > 0 else tokens * chosen, input.shape[1]))
    row_map = torch.empty(tokens * chosen, dtype=torch.int32, device=input.device)
    launch([input, indices], [out, row_map])
    return out, row_map, workspace


def moe_unpermute_fwd(
    input: Tensor, dtype: Any, row_map: Tensor, probabilities: Tensor, tokens: int, chosen: int
) -> Tensor:
    out = input.new_empty((tokens, input.shape[1]))
    launch([input, row_map], [out])
    return out


moe_permute_bwd = moe_unpermute_fwd


def moe_unpermute_bwd(
    grad: Tensor, input: Tensor, dtype: Any, row_map: Tensor, probabilities: Tensor
) -> tuple[Tensor, Tensor]:
    chosen = probabilities.shape[1] if probabilities.numel() else 1
    tokens = probabilities.shape[0] if probabilities.numel() else grad.shape[0]
    out = input.new_empty((input.shape[0], grad.shape[1]))
    of_probabilities = input.new_empty((tokens, chosen), dtype=torch.float32)
    launch([grad, input, row_map], [out, of_probabilities])
    return out, of_probabilities


def fused_multi_row_padding(input: Tensor, output: Tensor, *rows: Any) -> None:
    launch([input], [output])


fused_multi_row_unpadding = fused_multi_row_padding
