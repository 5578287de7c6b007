"""Fused attention of cuDNN: `pytorch/csrc/extensions/attention.cpp`."""

from __future__ import annotations

from typing import Any

import torch

from lab.published.engine_kernels.names import Name

HEADS_FIRST = {"SBHD": (1, 2, 0, 3), "BSHD": (0, 2, 1, 3)}
"""For each layout the permutation to (batch, heads, length, width)."""


def _parts(args: tuple[Any, ...], count: int) -> tuple[list[torch.Tensor], str]:
    """The first `count` tensors of floating point with heads, and the layout among the settings."""
    tensors = [each for each in args if isinstance(each, torch.Tensor) and each.dim() >= 3 and each.is_floating_point()]
    layouts = [str(each) for each in args if isinstance(each, Name) and ("HD" in each or "3D" in each)]
    return tensors[:count], layouts[0].removeprefix("NVTE_") if layouts else "SBHD"


def _first(layout: str) -> tuple[int, ...]:
    for name, order in HEADS_FIRST.items():
        if layout.replace("3", "").replace("2", "").startswith(name):
            return order
    raise NotImplementedError(f"fused attention of layout {layout}")


def _back(order: tuple[int, ...]) -> list[int]:
    return [order.index(place) for place in range(len(order))]


def fused_attn_fwd(*args: Any) -> list[torch.Tensor]:
    (q, k, v), layout = _parts(args, 3)
    order = _first(layout)
    if q.shape[-1] != v.shape[-1]:
        return _by_hand(q, v, order)
    with torch.no_grad():
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(
            q.detach().permute(order), k.detach().permute(order), v.detach().permute(order), 0.0, True
        )
    out = out.permute(_back(order))
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    return [out, lse.unsqueeze(-1), state]


def _by_hand(q: torch.Tensor, v: torch.Tensor, order: tuple[int, ...]) -> list[torch.Tensor]:
    """Values narrower than queries: PyTorch has no such operator, so only the memory is known."""
    batch, heads, length, _ = (q.shape[place] for place in order)
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    stats = torch.empty((batch, heads, length, 1), dtype=torch.float32, device=q.device)
    return [out, stats, torch.empty(2, dtype=torch.int64, device=q.device)]


def fused_attn_bwd(*args: Any) -> list[torch.Tensor | None]:
    (q, k, v, out, grad), layout = _parts(args, 5)
    order = _first(layout)
    grads = _gradients(q, k, v, layout)
    if q.shape[-1] == v.shape[-1]:
        lse = next(each[0] for each in args if isinstance(each, list) and each and isinstance(each[0], torch.Tensor))
        views = [each.detach().permute(order) for each in (grad, q, k, v, out)]
        state = torch.empty(2, dtype=torch.int64, device=q.device)
        length = q.shape[order[2]]
        made = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *views, lse.squeeze(-1), None, None, length, length, 0.0, True, state, state
        )
        del made
    return [*grads, None, None]


def _gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str) -> list[torch.Tensor]:
    """Packed as the inputs are: three in one, a pair in one, or each on its own."""
    groups = layout.split("_")
    if len(groups) == 1:
        packed = torch.empty((*q.shape[:-2], 3, *q.shape[-2:]), dtype=q.dtype, device=q.device)
        return [packed.select(-3, index) for index in range(3)]
    if len(groups) == 2:
        pair = torch.empty((*k.shape[:-2], 2, *k.shape[-2:]), dtype=k.dtype, device=k.device)
        return [torch.empty(q.shape, dtype=q.dtype, device=q.device), pair.select(-3, 0), pair.select(-3, 1)]
    return [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (q, k, v)]
