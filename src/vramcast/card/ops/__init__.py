"""CUDA's behaviour op by op, where it differs from a meta tensor's."""

from vramcast.card.ops import (  # noqa: F401  (importing registers the rules)
    accumulate,
    attention,
    batch_norm,
    cells,
    collectives,
    complex_numbers,
    composed,
    convolution,
    copies,
    data_reads,
    deform_conv,
    dense_inputs,
    embedding,
    fft,
    filled,
    foreach,
    grouped_matmul,
    indexing,
    losses,
    masks,
    matmul,
    normalization,
    powers,
    quantization,
    random_and_dropout,
    recurrent,
    reductions,
    resampling,
    sparse,
    without_meta,
    zero_tensors,
)
from vramcast.card.ops.registry import KERNELS, Call, OutCall, kernel, kernel_for

__all__ = ["KERNELS", "Call", "OutCall", "kernel", "kernel_for"]
