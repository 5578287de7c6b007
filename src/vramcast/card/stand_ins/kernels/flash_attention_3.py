"""flash-attn 3 (hopper/flash_api.cpp and flash_attn_interface.py), read at version 3.0.0b1 and its successors: they
allocate alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import dense_rows, is_traced, op, rounded

_WIDTHS = (64, 96, 128, 192, 256)


def padded_width(width: int) -> int:
    """round_up_headdim."""
    return next((known for known in _WIDTHS if width <= known), width)


def block_rows(width: int, causal: bool, local: bool, capability: tuple[int, int]) -> int:
    """kBlockM of mha_bwd: rows of queries that are worked on together."""
    if capability[0] >= 9:
        if width <= 96:
            return 128 if width <= 64 else 64
        return (64 if causal or local else 80) if width <= 128 else 64
    if capability in ((8, 6), (8, 9)):
        return 64 if width <= 192 else 32
    return 128 if width <= 64 else 64


def block_columns(width: int, causal: bool, local: bool, capability: tuple[int, int]) -> int:
    """kBlockN of mha_bwd."""
    if capability[0] >= 9:
        return 128 if width <= 128 else 96 if width <= 192 else 80
    if capability in ((8, 6), (8, 9)):
        return 128 if width <= 96 else 96 if width <= 128 else 64
    return 128 if width <= 128 else 80 if width <= 192 else 64


@op(
    "flash_attn_3::_flash_attn_3_forward(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, float softmax_scale, bool causal, SymInt window_size_left, "
    "SymInt window_size_right, float softcap) -> (Tensor, Tensor)"
)
def forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None, max_seqlen_q: int,
    max_seqlen_k: int, softmax_scale: float, causal: bool, left: int, right: int, softcap: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    q, k, v = dense_rows(q), dense_rows(k), dense_rows(v)
    dtype = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    if cu_seqlens_q is None:
        batch, queries, heads, _ = q.shape
        sums = q.new_empty((batch, heads, queries), dtype=torch.float32)
    else:
        total, heads, _ = q.shape
        sums = q.new_empty((heads, total), dtype=torch.float32)
    if not is_traced(q) and (causal or left >= 0 or cu_seqlens_q is not None):
        q.new_empty(1, dtype=torch.int32)  # the counter of tiles
    return out, sums


@op(
    "flash_attn_3::_flash_attn_3_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, Tensor(a!) dq, "
    "Tensor(b!) dk, Tensor(c!) dv, float softmax_scale, bool causal, SymInt window_size_left, "
    "SymInt window_size_right, float softcap, bool deterministic) -> Tensor"
)
def backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None, max_seqlen_q: int, max_seqlen_k: int, dq: Tensor, dk: Tensor, dv: Tensor,
    softmax_scale: float, causal: bool, left: int, right: int, softcap: float, deterministic: bool,
) -> Tensor:  # fmt: skip
    held = [dense_rows(tensor) for tensor in (dout, q, k, v, out)]
    width = padded_width(max(q.shape[-1], v.shape[-1]))
    capability = torch.cuda.get_device_capability(q.device)
    kind = (width, causal, left >= 0 or right >= 0, capability)
    row_block, column_block = block_rows(*kind), block_columns(*kind)
    heads, shared = q.shape[-2], k.shape[-2]
    if cu_seqlens_q is None:
        batch = q.shape[0]
        rows, columns = batch * rounded(q.shape[1], row_block), batch * rounded(k.shape[1], column_block)
    else:
        batch = cu_seqlens_q.shape[0] - 1
        rows = rounded(q.shape[0] + batch * row_block, row_block)
        columns = rounded(k.shape[0] + batch * column_block, column_block)
    delta = q.new_empty((heads, rows), dtype=torch.float32)
    taken = [q.new_empty((heads, rows), dtype=torch.float32), q.new_empty((heads, rows, width), dtype=torch.float32)]
    if heads != shared:
        taken += [q.new_empty((shared, columns, width), dtype=torch.float32) for _ in range(2)]
    if not is_traced(q):
        taken.append(q.new_empty((-(-max_seqlen_q // row_block), batch, heads), dtype=torch.int32))
    del taken, held
    return delta


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, lengths: Any, scale: float, causal: bool, window: Any,
        softcap: float, deterministic: bool, return_sums: bool,
    ) -> Any:  # fmt: skip
        options = (scale, causal, window[0], window[1], softcap)
        out, sums = torch.ops.flash_attn_3._flash_attn_3_forward(q, k, v, *lengths, *options)
        ctx.save_for_backward(q, k, v, out, sums, *lengths[:2])
        ctx.longest, ctx.options, ctx.deterministic = lengths[2:], options, deterministic
        return (out, sums) if return_sums else out

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *unused: Any) -> Any:
        q, k, v, out, sums, *offsets = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        torch.ops.flash_attn_3._flash_attn_3_backward(
            dout, q, k, v, out, sums, *offsets, *ctx.longest, dq, dk, dv, *ctx.options, ctx.deterministic
        )
        return dq, dk, dv, *(None,) * 7


def attention(
    q: Tensor, k: Tensor, v: Tensor, lengths: Any = None, *, softmax_scale: float | None = None, causal: bool = False,
    window_size: Any = (-1, -1), softcap: float = 0.0, deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        raise RuntimeError("FlashAttention only supports fp16, bf16, and fp8_e4m3 data type")
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    lengths = (None, None, q.shape[1], k.shape[1]) if lengths is None else lengths
    apply: Callable[..., Any] = Attention.apply
    return apply(q, k, v, lengths, scale, causal, window_size, softcap, deterministic, return_attn_probs)
