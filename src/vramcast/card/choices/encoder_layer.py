"""nn.TransformerEncoder in evaluation: PyTorch's fused path, in the order in which it takes memory.

at::native::transformer_encoder_layer_forward and native_multi_head_attention_cuda. Where an encoder is told which
positions are padding, it drops them (nested tensors), and the layers work on what is left. A layer that is given a mask
itself takes the ordinary path here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Forward = Callable[..., torch.Tensor]


def forward_of(original: Forward, is_wanted: Callable[[], bool]) -> Forward:
    """The layer's `forward`. `is_wanted`: torch.backends.mha has not switched the fused path off."""

    def forward(
        self: nn.TransformerEncoderLayer,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        if src_mask is None and src_key_padding_mask is None and is_wanted() and _is_fused(self, src):
            return _fused(self, src)
        return original(self, src, src_mask, src_key_padding_mask, is_causal)

    return forward


def encoder_forward_of(original: Forward, is_wanted: Callable[[], bool]) -> Forward:
    """The encoder's `forward`."""

    def forward(
        self: nn.TransformerEncoder,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        if mask is None and src_key_padding_mask is not None and is_wanted() and _drops_padding(self, src):
            return _without_padding(self, src, src_key_padding_mask)
        return original(self, src, mask, src_key_padding_mask, is_causal)

    return forward


def _drops_padding(encoder: Any, src: torch.Tensor) -> bool:
    return bool(getattr(encoder, "use_nested_tensor", False)) and _is_fused(encoder.layers[0], src)


def _without_padding(encoder: Any, src: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
    """Padding is taken to be at the end of each sequence, as it has to be for this."""
    is_padding = padding if padding.dtype == torch.bool else padding != 0
    tokens = int(is_padding.logical_not().sum())
    x = torch.empty(1, tokens, src.size(-1), dtype=src.dtype, device=src.device)
    for layer in encoder.layers:
        x = _fused(layer, x)
    out = torch.zeros_like(src)
    return out if encoder.norm is None else encoder.norm(out)


def _is_fused(layer: Any, src: torch.Tensor) -> bool:
    """The conditions of TransformerEncoderLayer.forward, and heads that a fused attention kernel takes."""
    attention = layer.self_attn
    return bool(
        src.is_cuda
        and src.dim() == 3
        and not layer.training
        and attention.batch_first
        and attention.in_proj_bias is not None
        and attention._qkv_same_embed_dim
        and layer.activation_relu_or_gelu
        and layer.norm1.eps == layer.norm2.eps
        and attention.num_heads % 2 == 0
        and attention.head_dim % 8 == 0
        and not torch.is_autocast_enabled()
        and not (torch.is_grad_enabled() and (src.requires_grad or any(p.requires_grad for p in layer.parameters())))
    )


def _fused(layer: Any, src: torch.Tensor) -> torch.Tensor:
    x = _attention(layer.self_attn, _norm(layer.norm1, src) if layer.norm_first else src)
    x.add_(src)
    if not layer.norm_first:
        x = _norm(layer.norm1, x)
    out = _feed_forward(layer, _norm(layer.norm2, x) if layer.norm_first else x)
    out.add_(x)
    return out if layer.norm_first else _norm(layer.norm2, out)


def _norm(norm: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _attention(attention: Any, x: torch.Tensor) -> torch.Tensor:
    together = F.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    q, k, v = (part.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for part in together.chunk(3, -1))
    attended = F.scaled_dot_product_attention(q, k, v)
    out = F.linear(attended.transpose(1, 2).reshape(x.shape), attention.out_proj.weight, attention.out_proj.bias)
    del attended  # before the three that came from one product
    return out


def _feed_forward(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """The activation is a part of the first product."""
    use_gelu = layer.activation_relu_or_gelu == 2
    hidden = torch.ops.aten._addmm_activation(
        layer.linear1.bias, x.reshape(-1, x.size(-1)), layer.linear1.weight.t(), use_gelu=use_gelu
    )
    return torch.addmm(layer.linear2.bias, hidden, layer.linear2.weight.t()).view(x.shape)


FORWARDS: dict[Any, Callable[[Forward, Callable[[], bool]], Forward]] = {
    nn.TransformerEncoderLayer: forward_of,
    nn.TransformerEncoder: encoder_forward_of,
}
