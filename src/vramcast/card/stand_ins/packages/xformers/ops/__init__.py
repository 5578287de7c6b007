"""As in xformers."""

from xformers.ops import fmha  # type: ignore[import-not-found]
from xformers.ops.indexing import index_select_cat, scaled_index_add  # type: ignore[import-not-found]
from xformers.ops.swiglu_op import SwiGLU, swiglu  # type: ignore[import-not-found]
from xformers.ops.unbind import stack_or_none, unbind  # type: ignore[import-not-found]

from vramcast.card.stand_ins.kernels.xformers_attention import CUTLASS_OP as MemoryEfficientAttentionCutlassOp
from vramcast.card.stand_ins.kernels.xformers_attention import FLASH_OP as MemoryEfficientAttentionFlashAttentionOp
from vramcast.card.stand_ins.kernels.xformers_attention import AttentionOpBase, memory_efficient_attention
from vramcast.card.stand_ins.kernels.xformers_biases import AttentionBias, LowerTriangularMask

AttentionMask = AttentionBias
AttentionOp = tuple[object, object]
memory_efficient_attention_forward = memory_efficient_attention

__all__ = [
    "AttentionBias", "AttentionMask", "AttentionOp", "AttentionOpBase", "LowerTriangularMask",
    "MemoryEfficientAttentionCutlassOp", "MemoryEfficientAttentionFlashAttentionOp", "SwiGLU", "fmha",
    "index_select_cat", "memory_efficient_attention", "memory_efficient_attention_forward", "scaled_index_add",
    "stack_or_none", "swiglu", "unbind",
]  # fmt: skip
