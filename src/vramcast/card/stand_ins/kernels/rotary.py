"""Rotary embeddings of flash-attn (layers/rotary.py, ops/triton/rotary.py); version 2.8.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import op


@op("flash_attn::rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor")
def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x)


@op("flash_attn::rotary_(Tensor(a!) x, Tensor cos, Tensor sin) -> ()")
def rotated_in_place(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    return None


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, seqlen_offsets: Any = 0, cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None, interleaved: bool = False, inplace: bool = False, conjugate: bool = False,
) -> Tensor:  # fmt: skip
    cos, sin = cos.contiguous(), sin.contiguous()
    width = 2 * cos.shape[-1]
    if inplace:
        torch.ops.flash_attn.rotary_(x, cos, sin)
        return x
    out: Tensor = torch.ops.flash_attn.rotary(x, cos, sin)
    if width < x.shape[-1]:
        out[..., width:].copy_(x[..., width:])
    return out


class Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, inplace: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.inplace = inplace
        return apply_rotary(x, cos, sin, inplace=inplace)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return apply_rotary(grad, cos, sin, inplace=ctx.inplace), None, None, None


class RotaryOfParts(torch.autograd.Function):
    """In place, of the first `rotated` of the heads (or of the groups of heads) that lie along a dimension."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, cos: Tensor, sin: Tensor, dim: int, rotated: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.part = (dim, rotated)
        apply_rotary(packed.narrow(dim, 0, rotated), cos, sin, inplace=True)
        return packed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        dim, rotated = ctx.part
        apply_rotary(grad.narrow(dim, 0, rotated), cos, sin, inplace=True)
        return grad, None, None, None, None


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False, seqlen_offsets: Any = 0,
    cu_seqlens: Tensor | None = None, max_seqlen: int | None = None,
) -> Tensor:  # fmt: skip
    apply: Callable[..., Tensor] = Rotary.apply
    return apply(x, cos, sin, inplace)


def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, cos_k: Tensor | None = None, sin_k: Tensor | None = None,
    interleaved: bool = False, seqlen_offsets: Any = 0, num_heads_q: int | None = None,
) -> Tensor:  # fmt: skip
    heads = qkv.shape[2]
    rotated = 2 if num_heads_q is None else num_heads_q + (heads - num_heads_q) // 2
    apply: Callable[..., Tensor] = RotaryOfParts.apply
    return apply(qkv, cos, sin, 2, rotated)


def apply_rotary_emb_kv_(
    kv: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, seqlen_offsets: Any = 0
) -> Tensor:
    apply: Callable[..., Tensor] = RotaryOfParts.apply
    return apply(kv, cos, sin, 2, 1)


class RotaryEmbedding(torch.nn.Module):
    inv_freq: Tensor

    def __init__(
        self, dim: int, base: float = 10000.0, interleaved: bool = False, scale_base: float | None = None,
        pos_idx_in_fp32: bool = True, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = dim, float(base), interleaved, scale_base
        steps = torch.arange(0, dim, 2, device=device, dtype=torch.float32)
        self.register_buffer("inv_freq", 1.0 / (self.base ** (steps / dim)), persistent=False)
        self.register_buffer("scale", None if scale_base is None else (steps + 0.4 * dim) / (1.4 * dim), False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
        known = self._cos_cached
        if known is not None and seqlen <= self._seq_len_cached and known.device == device and known.dtype == dtype:
            return
        self._seq_len_cached = seqlen
        places = torch.arange(seqlen, device=device, dtype=torch.float32)
        angles = torch.outer(places, self.inv_freq.to(device=device, dtype=torch.float32))
        self._cos_cached, self._sin_cached = torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)

    def forward(
        self, qkv: Tensor, kv: Tensor | None = None, seqlen_offset: Any = 0, max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:  # fmt: skip
        length = qkv.shape[1] + (seqlen_offset if isinstance(seqlen_offset, int) else 0)
        self._update_cos_sin_cache(max_seqlen or length, device=qkv.device, dtype=qkv.dtype)
        cos, sin = self._cos_cached, self._sin_cached
        assert cos is not None and sin is not None
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, cos, sin, num_heads_q=num_heads_q)
        return apply_rotary_emb(qkv, cos, sin, inplace=True), apply_rotary_emb_kv_(kv, cos, sin)
