"""xformers' memory_efficient_attention (ops/fmha of version 0.0.34), which chooses among kernels of others: flash-attn
3 on Hopper, PyTorch's flash attention, PyTorch's CUTLASS kernels for everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.kernels import flash_attention_3
from vramcast.card.stand_ins.kernels.xformers_biases import (
    AttentionBias,
    BlockDiagonalMask,
    bias_tensor,
    is_causal,
    mask_type,
    window,
)
from vramcast.card.stand_ins.ops import NotInStandIn

_HALF = (torch.float16, torch.bfloat16)
_WIDEST = 256
_ALIGNMENT = 8
FLASH_3, FLASH, CUTLASS = "flash 3", "flash", "cutlass"


class AttentionOpBase:
    """A kernel that a program asks for, in place of xformers' choice."""

    kind = ""


class _Cutlass(AttentionOpBase):
    kind = CUTLASS


class _Flash(AttentionOpBase):
    kind = FLASH


class _Flash3(AttentionOpBase):
    kind = FLASH_3


CUTLASS_OP, FLASH_OP, FLASH_3_OP = (_Cutlass, _Cutlass), (_Flash, _Flash), (_Flash3, _Flash3)
"""Of the forward and the backward pass."""


def _asked(op: Any) -> str:
    """The kernel that is asked for; empty for xformers' choice."""
    kinds = {getattr(each, "kind", None) for each in op or () if each is not None}
    if len(kinds) > 1 or None in kinds:
        raise NotInStandIn(f"memory_efficient_attention with op={op}", "leave op out, or ask for one kernel")
    return str(kinds.pop()) if kinds else ""


def chosen(q: Tensor, k: Tensor, v: Tensor, bias: Any, p: float) -> str:
    """The first in xformers' order that takes these inputs."""
    capability = torch.cuda.get_device_capability(q.device)
    width = q.shape[-1]
    fits = q.dtype in _HALF and bias_tensor(bias) is None and width == v.shape[-1] and width <= _WIDEST
    same_length = isinstance(bias, BlockDiagonalMask) or not is_causal(bias) or q.shape[1] == k.shape[1]
    if not fits or width % _ALIGNMENT or not same_length or capability < (8, 0):
        return CUTLASS
    return FLASH_3 if capability == (9, 0) and p == 0.0 else FLASH


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Any, p: float, scale: float | None, kind: str) -> Any:
        ctx.kind = kind or chosen(q, k, v, bias, p)
        ctx.p, ctx.scale, ctx.bias = p, scale, bias
        ctx.one_tensor = (
            q.shape[0] == k.shape[0] and q.shape[-1] == v.shape[-1] and q.stride(-2) == 2 * q.shape[-1] + k.shape[-1]
        )
        run: Callable[..., Any] = {FLASH_3: _flash_3, FLASH: _flash, CUTLASS: _cutlass}[ctx.kind]
        out, sums, ctx.seeds = run(q, k, v, bias, p, scale)
        ctx.save_for_backward(q, k, v, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, sums = ctx.saved_tensors
        run: Callable[..., Any]
        if ctx.kind == CUTLASS:
            dq, dk, dv, dbias = _cutlass_backward(ctx, grad, q, k, v, out, sums)
            return dq, dk, dv, dbias, None, None, None
        run = _flash_3_backward if ctx.kind == FLASH_3 else _flash_backward
        dq, dk, dv = run(ctx, grad, q, k, v, out, sums)
        return dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape), None, None, None, None


def _lengths(q: Tensor, k: Tensor, bias: Any) -> tuple[Any, Any, int, int]:
    if isinstance(bias, BlockDiagonalMask):
        queries, keys = bias.q_seqinfo, bias.k_seqinfo
        return queries.seqstart, keys.seqstart, queries.max_seqlen, keys.max_seqlen
    return None, None, q.shape[1], k.shape[1]


def _rows(tensor: Tensor, bias: Any) -> Tensor:
    """All sequences one after the other, where they have offsets."""
    return tensor.flatten(0, 1) if isinstance(bias, BlockDiagonalMask) else tensor


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _flash_3(q: Tensor, k: Tensor, v: Tensor, bias: Any, p: float, scale: float | None) -> Any:
    out, sums = torch.ops.flash_attn_3._flash_attn_3_forward(
        *(_rows(t, bias) for t in (q, k, v)), *_lengths(q, k, bias), _scale(q, scale), is_causal(bias),
        *window(bias), 0.0,
    )  # fmt: skip
    return out.reshape(*q.shape[:-1], v.shape[-1]), sums, None


def _flash_3_backward(ctx: Any, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor) -> Any:
    bias = ctx.bias
    rows = [_rows(tensor, bias) for tensor in (q, k, v)]
    gradients = _gradients(rows, ctx.one_tensor)
    torch.ops.flash_attn_3._flash_attn_3_backward(
        _rows(grad.contiguous(), bias), *rows, _rows(out, bias), sums, *_lengths(q, k, bias), *gradients,
        _scale(q, ctx.scale), is_causal(bias), *window(bias), 0.0, False,
    )  # fmt: skip
    return gradients


def _gradients(rows: list[Tensor], one_tensor: bool) -> tuple[Tensor, Tensor, Tensor]:
    """In one tensor where q, k and v came in one, so that nothing need be concatenated."""
    q, k, v = rows
    if one_tensor:
        packed = q.new_empty((*q.shape[:-2], 3, *q.shape[-2:]))
        return packed.select(-3, 0), packed.select(-3, 1), packed.select(-3, 2)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _flash(q: Tensor, k: Tensor, v: Tensor, bias: Any, p: float, scale: float | None) -> Any:
    left, right = window(bias)
    out, sums, seeds, _, _ = torch.ops.aten._flash_attention_forward(
        *(_rows(t, bias) for t in (q, k, v)), *_lengths(q, k, bias), p, is_causal(bias), False,
        scale=_scale(q, scale), window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return out.reshape(*q.shape[:-1], v.shape[-1]), sums, seeds


def _flash_backward(ctx: Any, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor) -> Any:
    bias = ctx.bias
    left, right = window(bias)
    return torch.ops.aten._flash_attention_backward(
        _rows(grad.contiguous(), bias), *(_rows(t, bias) for t in (q, k, v)), _rows(out, bias), sums,
        *_lengths(q, k, bias), ctx.p, is_causal(bias), ctx.seeds, ctx.seeds, scale=_scale(q, ctx.scale),
        window_size_left=left, window_size_right=right,
    )  # fmt: skip


def _cutlass_lengths(bias: Any) -> dict[str, Any]:
    if not isinstance(bias, BlockDiagonalMask):
        return {"cu_seqlens_q": None, "cu_seqlens_k": None, "max_seqlen_q": -1, "max_seqlen_k": -1}
    queries, keys = bias.q_seqinfo, bias.k_seqinfo
    return {
        "cu_seqlens_q": queries.seqstart, "cu_seqlens_k": keys.seqstart,
        "max_seqlen_q": queries.max_seqlen, "max_seqlen_k": keys.max_seqlen,
    }  # fmt: skip


def _cutlass(q: Tensor, k: Tensor, v: Tensor, bias: Any, p: float, scale: float | None) -> Any:
    out, sums, seed, offset, _, _ = torch.ops.aten._efficient_attention_forward(
        q, k, v, bias_tensor(bias), **_cutlass_lengths(bias), dropout_p=p, custom_mask_type=mask_type(bias),
        compute_log_sumexp=True, scale=scale,
    )  # fmt: skip
    return out, sums, (seed, offset)


def _cutlass_backward(ctx: Any, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor) -> Any:
    tensor = bias_tensor(ctx.bias)
    lengths = _cutlass_lengths(ctx.bias)
    longest = {"max_seqlen_q": q.shape[1], "max_seqlen_k": k.shape[1]} if lengths["cu_seqlens_q"] is None else {}
    lengths |= longest
    wants_grad = tensor is not None and tensor.requires_grad
    return torch.ops.aten._efficient_attention_backward(
        grad, q, k, v, tensor, out, **lengths, logsumexp=sums, dropout_p=ctx.p, philox_seed=ctx.seeds[0],
        philox_offset=ctx.seeds[1], custom_mask_type=mask_type(ctx.bias), bias_requires_grad=wants_grad,
        scale=ctx.scale,
    )  # fmt: skip


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | AttentionBias | None = None, p: float = 0.0,
    scale: float | None = None, *, op: Any = None, output_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    shape = (*query.shape[:-1], value.shape[-1])
    if query.ndim == 3:
        query, key, value = (tensor.unsqueeze(2) for tensor in (query, key, value))
        if isinstance(attn_bias, Tensor) and attn_bias.ndim == 3:
            attn_bias = attn_bias.unsqueeze(1)
    elif query.ndim == 5:  # groups of heads
        query, key, value = (tensor.flatten(2, 3) for tensor in (query, key, value))
    apply: Callable[..., Tensor] = Attention.apply
    return apply(query, key, value, attn_bias, p, scale, _asked(op)).reshape(shape)


assert flash_attention_3 is not None  # it defines the operators
