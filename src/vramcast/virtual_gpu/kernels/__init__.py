"""CUDA's behaviour op by op, where it differs from a meta tensor's."""

from vramcast.virtual_gpu.kernels import (  # noqa: F401  (importing registers the rules)
    attention,
    convolution,
    copies,
    data_reads,
    embedding,
    matmul,
    normalization,
    random_and_dropout,
    recurrent,
    reductions,
)
from vramcast.virtual_gpu.kernels.registry import KERNELS, Call, kernel

__all__ = ["KERNELS", "Call", "kernel"]
