"""As in xformers."""

from xformers.ops.fmha import attn_bias  # type: ignore[import-not-found]

from vramcast.card.stand_ins.kernels.xformers_attention import memory_efficient_attention
from vramcast.card.stand_ins.kernels.xformers_biases import (
    AttentionBias,
    BlockDiagonalCausalMask,
    BlockDiagonalMask,
    LowerTriangularMask,
)

memory_efficient_attention_forward = memory_efficient_attention

__all__ = [
    "AttentionBias", "BlockDiagonalCausalMask", "BlockDiagonalMask", "LowerTriangularMask", "attn_bias",
    "memory_efficient_attention", "memory_efficient_attention_forward",
]  # fmt: skip
