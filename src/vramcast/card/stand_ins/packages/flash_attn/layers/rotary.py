"""As in flash-attn."""

from vramcast.card.stand_ins.kernels.rotary import (
    RotaryEmbedding,
    apply_rotary_emb,
    apply_rotary_emb_kv_,
    apply_rotary_emb_qkv_,
)

apply_rotary_emb_func = apply_rotary_emb

__all__ = [
    "RotaryEmbedding", "apply_rotary_emb", "apply_rotary_emb_func", "apply_rotary_emb_kv_", "apply_rotary_emb_qkv_",
]  # fmt: skip
