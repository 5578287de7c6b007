"""As in xformers."""

from vramcast.card.stand_ins.kernels.xformers_biases import (
    AttentionBias,
    BlockDiagonalCausalFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionMask,
    BlockDiagonalCausalMask,
    BlockDiagonalMask,
    LocalAttentionFromBottomRightMask,
    LowerTriangularFromBottomRightLocalAttentionMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
    LowerTriangularMaskWithTensorBias,
)

__all__ = [
    "AttentionBias", "BlockDiagonalCausalFromBottomRightMask", "BlockDiagonalCausalLocalAttentionMask",
    "BlockDiagonalCausalMask", "BlockDiagonalMask", "LocalAttentionFromBottomRightMask",
    "LowerTriangularFromBottomRightLocalAttentionMask", "LowerTriangularFromBottomRightMask", "LowerTriangularMask",
    "LowerTriangularMaskWithTensorBias",
]  # fmt: skip
