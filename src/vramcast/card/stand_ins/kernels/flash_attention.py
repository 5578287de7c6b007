"""flash-attn 2: what flash_api.cpp allocates (mha_fwd, mha_varlen_fwd, mha_bwd, mha_varlen_bwd) and what
flash_attn_interface.py keeps for the backward pass; version 2.8.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vramcast.card.ops.attention import key_splits
from vramcast.card.stand_ins.ops import dense_rows, is_traced, multiprocessors, op, rounded

WIDTH_UNIT = 8
_ROWS = 128
"""Rows of a sequence are rounded up to this many in scratch memory."""


def padded_width(width: int) -> int:
    """head_size_rounded."""
    return rounded(width, 32 if width <= 128 else 64)


@op(
    "flash_attn::_flash_attn_forward(Tensor q, Tensor k, Tensor v, float dropout_p, float softmax_scale, bool causal, "
    "SymInt window_size_left, SymInt window_size_right, float softcap, Tensor? alibi_slopes, bool return_softmax) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
def forward(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool, left: int, right: int,
    softcap: float, alibi_slopes: Tensor | None, return_softmax: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    batch, queries, heads, width = q.shape
    out = torch.empty_like(q)
    sums = q.new_empty((batch, heads, queries), dtype=torch.float32)
    dropped = _dropped(q, (batch, heads, queries, k.shape[1]), return_softmax)
    parts = 1
    if not is_traced(q) and dropout_p == 0.0:
        parts = key_splits(batch * heads, queries, k.shape[1], width, multiprocessors(q))
    partial = None
    if parts > 1:
        shape = (parts, batch, heads, queries)
        partial = [q.new_empty(s, dtype=torch.float32) for s in (shape, (*shape, padded_width(width)))]
    seed = torch.empty(2, dtype=torch.int64, device=q.device)
    del partial
    return out, sums, dropped, seed


def _dropped(q: Tensor, shape: tuple[int, int, int, int], wanted: bool) -> Tensor:
    batch, heads, queries, keys = shape
    return q.new_empty((batch, heads, rounded(queries, _ROWS), rounded(keys, _ROWS)) if wanted else (0,))


@op(
    "flash_attn::_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, float dropout_p, float softmax_scale, bool causal, "
    "SymInt window_size_left=-1, SymInt window_size_right=-1, float softcap=0.0, Tensor? alibi_slopes=None, "
    "bool return_softmax=False, Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, "
    "bool zero_tensors=False, SymInt num_splits=0) -> (Tensor, Tensor, Tensor, Tensor)"
)
def varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float, causal: bool, left: int = -1, right: int = -1, softcap: float = 0.0,
    alibi_slopes: Tensor | None = None, return_softmax: bool = False, *rest: Any, **named: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    total, heads, _ = q.shape
    out = torch.empty_like(q)
    sums = q.new_empty((heads, total), dtype=torch.float32)
    shape = (cu_seqlens_q.shape[0] - 1, heads, max_seqlen_q, max_seqlen_k)
    dropped = _dropped(q, shape, return_softmax)
    return out, sums, dropped, torch.empty(2, dtype=torch.int64, device=q.device)


@op(
    "flash_attn::_flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor(a6!)? dq, Tensor(a7!)? dk, Tensor(a8!)? dv, float dropout_p, float softmax_scale, bool causal, "
    "SymInt window_size_left, SymInt window_size_right, float softcap, Tensor? alibi_slopes, bool deterministic, "
    "Tensor? rng_state=None) -> Tensor"
)
def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, dropout_p: float, softmax_scale: float, causal: bool, left: int, right: int,
    softcap: float, alibi_slopes: Tensor | None, deterministic: bool, rng_state: Tensor | None = None,
) -> Tensor:  # fmt: skip
    held = [dense_rows(tensor) for tensor in (dout, q, k, v, out)]
    batch, queries, heads, width = q.shape
    rows = rounded(queries, _ROWS)
    delta = q.new_empty((batch, heads, rows), dtype=torch.float32)
    if not is_traced(q):
        _backward_scratch(q, k, (batch, rows, heads, padded_width(width)), batch * heads, deterministic)
    del held
    return delta


@op(
    "flash_attn::_flash_attn_varlen_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, "
    "Tensor softmax_lse, Tensor(a6!)? dq, Tensor(a7!)? dk, Tensor(a8!)? dv, Tensor cu_seqlens_q, "
    "Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, float dropout_p, float softmax_scale, "
    "bool causal, SymInt window_size_left, SymInt window_size_right, float softcap, Tensor? alibi_slopes, "
    "bool deterministic, Tensor? rng_state=None, bool zero_tensors=False) -> Tensor"
)
def varlen_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor | None,
    dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
    max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, left: int, right: int, softcap: float,
    alibi_slopes: Tensor | None, deterministic: bool, rng_state: Tensor | None = None, zero_tensors: bool = False,
) -> Tensor:  # fmt: skip
    held = [dense_rows(tensor) for tensor in (dout, q, k, v, out)]
    total, heads, width = q.shape
    batch = cu_seqlens_q.shape[0] - 1
    rows = total + _ROWS * batch
    delta = q.new_empty((heads, rows), dtype=torch.float32)
    if not is_traced(q):
        _backward_scratch(q, k, (rows, heads, padded_width(width)), batch * heads, deterministic)
    del held
    return delta


def _backward_scratch(q: Tensor, k: Tensor, sums: tuple[int, ...], heads_of_all: int, deterministic: bool) -> None:
    """dq is summed in fp32, for each part by itself where the order of additions is fixed; keys that several heads
    share get their gradients head by head."""
    parts = -(-multiprocessors(q) // heads_of_all) if deterministic else 1
    taken = [q.new_empty((parts, *sums), dtype=torch.float32)]
    heads, shared = q.shape[-2], k.shape[-2]
    if heads != shared:
        taken += [q.new_empty((*k.shape[:-2], heads, q.shape[-1])) for _ in range(2)]
    del taken


# -- autograd ---------------------------------------------------------------------------------------------------------


def _parts(tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v: given one by one, or some of them in one tensor, along the dimension before heads and width."""
    found: list[Tensor] = []
    for tensor in tensors:
        if len(tensors) == 3 or (len(tensors) == 2 and not found):
            found.append(tensor)
        else:
            found += [tensor.select(-3, place) for place in range(tensor.shape[-3])]
    q, k, v = found
    return q, k, v


def _padded(tensor: Tensor) -> Tensor:
    width = tensor.shape[-1]
    return F.pad(tensor, [0, WIDTH_UNIT - width % WIDTH_UNIT]) if width % WIDTH_UNIT else tensor


class Attention(torch.autograd.Function):
    """`lengths`: of all sequences, where they lie one after the other: offsets and longest of queries and of keys."""

    @staticmethod
    def forward(
        ctx: Any, lengths: Any, dropout_p: float, scale: float | None, causal: bool, window: Any, softcap: float,
        alibi_slopes: Tensor | None, deterministic: bool, return_softmax: bool, *tensors: Tensor,
    ) -> Any:  # fmt: skip
        q, k, v = (_padded(tensor.detach()) for tensor in _parts(tensors))
        width = tensors[0].shape[-1]
        scale = width**-0.5 if scale is None else scale
        options = (dropout_p, scale, causal, window[0], window[1], softcap, alibi_slopes)
        wanted = return_softmax and dropout_p > 0
        if lengths is None:
            out, sums, dropped, seed = torch.ops.flash_attn._flash_attn_forward(q, k, v, *options, wanted)
        else:
            out, sums, dropped, seed = torch.ops.flash_attn._flash_attn_varlen_forward(
                q, k, v, *lengths, *options, wanted
            )
        offsets = () if lengths is None else lengths[:2]
        ctx.save_for_backward(q, k, v, out, sums, seed, *offsets)
        ctx.longest = () if lengths is None else lengths[2:]
        ctx.options, ctx.deterministic, ctx.given = options, deterministic, len(tensors)
        cut = out[..., :width]
        return (cut, sums, dropped) if return_softmax else cut

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dout = grads[0]
        q, k, v, out, sums, seed, *offsets = ctx.saved_tensors
        buffers = _gradients(q, k, ctx.given)
        dq, dk, dv = _parts(buffers)
        dense, width = _padded(dout), dout.shape[-1]
        given = (dense, q, k, v, out, sums, dq, dk, dv)
        if offsets:
            torch.ops.flash_attn._flash_attn_varlen_backward(
                *given, *offsets, *ctx.longest, *ctx.options, ctx.deterministic, rng_state=seed
            )
        else:
            torch.ops.flash_attn._flash_attn_backward(*given, *ctx.options, ctx.deterministic, rng_state=seed)
        return *(None,) * 9, *(buffer[..., :width] for buffer in buffers)


def _gradients(q: Tensor, k: Tensor, given: int) -> tuple[Tensor, ...]:
    """One for each tensor that was given: what came in one tensor gets its gradient in one."""
    if given == 3:
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(k)
    if given == 2:
        return torch.empty_like(q), k.new_empty((*k.shape[:-2], 2, *k.shape[-2:]))
    return (q.new_empty((*q.shape[:-2], 3, *q.shape[-2:])),)


def attention(
    *tensors: Tensor, lengths: Any = None, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    check(tensors[0])
    apply: Callable[..., Any] = Attention.apply
    return apply(
        lengths, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, *tensors,
    )  # fmt: skip


def check(q: Tensor) -> None:
    """Refuse what the real kernels refuse, in their words."""
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if q.shape[-1] > 256:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")
    if not q.is_cuda:
        raise RuntimeError("Input tensor must be on CUDA device")
