"""As in flash-attn, for training: without its caches for inference and its variants for tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch
from flash_attn.flash_attn_interface import (  # type: ignore[import-not-found]
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from flash_attn.layers.rotary import RotaryEmbedding  # type: ignore[import-not-found]
from torch import Tensor, nn

from vramcast.card.stand_ins.ops import NotInStandIn


class _Inner(nn.Module):
    def __init__(
        self, causal: bool = False, softmax_scale: float | None = None, attention_dropout: float = 0.0,
        window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None, deterministic: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.causal, self.softmax_scale = causal, softmax_scale
        self.drop = nn.Dropout(attention_dropout)
        self.register_buffer("alibi_slopes", alibi_slopes, persistent=False)
        self.window_size, self.deterministic = window_size, deterministic

    def _options(self, causal: bool | None) -> dict[str, Any]:
        return {
            "dropout_p": self.drop.p if self.training else 0.0, "softmax_scale": self.softmax_scale,
            "causal": self.causal if causal is None else causal, "alibi_slopes": self.alibi_slopes,
            "window_size": self.window_size, "deterministic": self.deterministic,
        }  # fmt: skip


class FlashSelfAttention(_Inner):
    def forward(
        self, qkv: Tensor, causal: bool | None = None, cu_seqlens: Tensor | None = None, max_seqlen: int | None = None
    ) -> Any:
        if cu_seqlens is None:
            return flash_attn_qkvpacked_func(qkv, **self._options(causal))
        return flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, **self._options(causal))


class FlashCrossAttention(_Inner):
    def forward(
        self, q: Tensor, kv: Tensor, causal: bool | None = None, cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None, cu_seqlens_k: Tensor | None = None, max_seqlen_k: int | None = None,
    ) -> Any:  # fmt: skip
        if cu_seqlens is None:
            return flash_attn_kvpacked_func(q, kv, **self._options(causal))
        return flash_attn_varlen_kvpacked_func(
            q, kv, cu_seqlens, cu_seqlens_k, max_seqlen, max_seqlen_k, **self._options(causal)
        )


class MHA(nn.Module):
    def __init__(
        self, embed_dim: int, num_heads: int, num_heads_kv: int | None = None, cross_attn: bool = False,
        qkv_proj_bias: bool = True, out_proj_bias: bool = True, dropout: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False, layer_idx: int | None = None, dwconv: bool = False,
        rotary_emb_dim: int = 0, rotary_emb_base: float = 10000.0, rotary_emb_scale_base: float | None = None,
        rotary_emb_interleaved: bool = False, use_alibi: bool = False, window_size: tuple[int, int] = (-1, -1),
        fused_bias_fc: bool = False, use_flash_attn: bool = False, return_residual: bool = False,
        checkpointing: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not use_flash_attn or dwconv or use_alibi:
            raise NotInStandIn(
                "flash_attn.modules.mha.MHA with dwconv, ALiBi, or without use_flash_attn", "set use_flash_attn=True"
            )
        self.num_heads, self.num_heads_kv = num_heads, num_heads_kv or num_heads
        self.head_dim = embed_dim // num_heads
        self.cross_attn, self.causal, self.layer_idx = cross_attn, causal, layer_idx
        self.rotary_emb_dim, self.return_residual, self.checkpointing = rotary_emb_dim, return_residual, checkpointing
        if rotary_emb_dim > 0:
            self.rotary_emb = RotaryEmbedding(
                rotary_emb_dim, base=rotary_emb_base, scale_base=rotary_emb_scale_base,
                interleaved=rotary_emb_interleaved, device=device,
            )  # fmt: skip
        kv_width = 2 * self.head_dim * self.num_heads_kv
        place = {"device": device, "dtype": dtype}
        if cross_attn:
            self.Wq = nn.Linear(embed_dim, embed_dim, bias=qkv_proj_bias, **place)
            self.Wkv = nn.Linear(embed_dim, kv_width, bias=qkv_proj_bias, **place)
        else:
            self.Wqkv = nn.Linear(embed_dim, embed_dim + kv_width, bias=qkv_proj_bias, **place)
        options: dict[str, Any] = {"causal": causal, "softmax_scale": softmax_scale, "attention_dropout": dropout}
        self.inner_attn = FlashSelfAttention(**options, window_size=window_size)
        self.inner_cross_attn = FlashCrossAttention(**options, window_size=window_size)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_proj_bias, **place)

    def forward(
        self, x: Tensor, x_kv: Tensor | None = None, key_padding_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None, max_seqlen: int | None = None, mixer_subset: Any = None,
        inference_params: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        options |= {"cu_seqlens": cu_seqlens, "max_seqlen": max_seqlen}
        if not self.cross_attn and self.num_heads_kv == self.num_heads:
            qkv = self.Wqkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))
            if self.rotary_emb_dim > 0:
                qkv = self.rotary_emb(qkv)
            context = self._attend(self.inner_attn, qkv, **options)
        else:
            if self.cross_attn:
                q = self.Wq(x if mixer_subset is None else x[:, mixer_subset])
                kv = self.Wkv(x if x_kv is None else x_kv)
            else:
                q, kv = self.Wqkv(x).tensor_split([self.num_heads * self.head_dim], dim=-1)
            q = q.unflatten(-1, (self.num_heads, self.head_dim))
            kv = kv.unflatten(-1, (2, self.num_heads_kv, self.head_dim))
            if self.rotary_emb_dim > 0:
                q, kv = self.rotary_emb(q, kv)
            context = self._attend(self.inner_cross_attn, q, kv, **options)
        out = self.out_proj(context.flatten(-2))
        return (out, x) if self.return_residual else out

    def _attend(self, inner: nn.Module, *tensors: Tensor, **options: Any) -> Tensor:
        if self.checkpointing:
            out: Tensor = torch.utils.checkpoint.checkpoint(inner, *tensors, use_reentrant=True, **options)
            return out
        return inner(*tensors, **options)  # type: ignore[no-any-return]
