"""As in xformers."""

from types import SimpleNamespace

from xformers.ops.fmha import attn_bias  # type: ignore[import-not-found]

from vramcast.card.stand_ins.kernels.xformers_attention import CUTLASS_OP as MemoryEfficientAttentionCutlassOp
from vramcast.card.stand_ins.kernels.xformers_attention import FLASH_3_OP, memory_efficient_attention
from vramcast.card.stand_ins.kernels.xformers_attention import FLASH_OP as MemoryEfficientAttentionFlashAttentionOp
from vramcast.card.stand_ins.kernels.xformers_biases import (
    AttentionBias,
    BlockDiagonalCausalMask,
    BlockDiagonalMask,
    LowerTriangularMask,
)

memory_efficient_attention_forward = memory_efficient_attention
cutlass, flash, flash3 = (
    SimpleNamespace(FwOp=op[0], BwOp=op[1])
    for op in (MemoryEfficientAttentionCutlassOp, MemoryEfficientAttentionFlashAttentionOp, FLASH_3_OP)
)

__all__ = [
    "AttentionBias",
    "BlockDiagonalCausalMask",
    "BlockDiagonalMask",
    "LowerTriangularMask",
    "MemoryEfficientAttentionCutlassOp",
    "MemoryEfficientAttentionFlashAttentionOp",
    "attn_bias",
    "cutlass",
    "flash",
    "flash3",
    "memory_efficient_attention",
    "memory_efficient_attention_forward",
]  # fmt: skip
