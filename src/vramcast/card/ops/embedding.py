"""Embedding gradients: long index lists are sorted, and equal indices summed in segments."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.base.torch_versions import ATOMIC_EMBEDDING_BACKWARD, Version
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.ops.registry import Call, kernel
from vramcast.gpus import GpuSpec

SMALL = 3072
"""Up to here a kernel without sorting is used (embedding_dense_backward_cuda in Embedding.cu)."""
# NROWS_PER_THREAD, MAX_ATOMIC_ACCUM_BLOCKS_PER_SM and MAX_BLOCK_SIZE in EmbeddingBackwardKernel.cu
ROWS_PER_THREAD = 10
ATOMIC_BLOCKS_PER_SM = 4
MAX_BLOCK_SIZE = 1024


def radix_sort_bytes(n: int) -> int:
    """CUB's temporary storage for sorting n pairs; fitted on torch 2.11 (8,192 and 16,800 int64 pairs)."""
    return int(16.24 * n) + 17_000


def scan_bytes(n: int) -> int:
    """CUB's temporary storage for a running sum of n 64-bit numbers: a word for each tile and 32 more, aligned."""
    tiles = -(-n // 896)
    return 511 + -(-16 * (tiles + 32) // 256) * 256


@kernel("aten::embedding_dense_backward")
def embedding_dense_backward(call: Call) -> Any:
    grad, indices, rows = call.args[0], call.args[1], call.args[2]
    small = indices.numel() <= SMALL and not call.argument("scale_grad_by_freq")
    return weight_gradient(call, grad, indices, rows, small)


def weight_gradient(
    call: Call, grad: torch.Tensor, indices: torch.Tensor, rows: int, small: bool, in_bags: bool = False
) -> torch.Tensor:
    n, width = indices.numel(), grad.size(-1)
    held = [] if grad.is_contiguous() else [call.empty(grad.size(), grad.dtype)]
    if small:
        return call.empty((rows, width), grad.dtype)
    index_bytes = n * indices.element_size()
    held += [call.empty((index_bytes,), torch.uint8) for _ in range(2)]
    call.scratch(index_bytes, radix_sort_bytes(n))
    out = call.empty((rows, width), grad.dtype)
    distinct = min(n, rows)
    segments = n // ROWS_PER_THREAD + distinct
    accumulate = 4 if grad.dtype in (torch.float16, torch.bfloat16) else grad.element_size()
    held += [call.empty((index_bytes,), torch.uint8), call.empty((8,), torch.uint8)]
    call.scratch(index_bytes, 1279)
    held += [call.empty((8 * distinct,), torch.uint8) for _ in range(2)]
    if not in_bags and adds_in_place(call.gpu, n, rows, width):
        wide = 0 if accumulate == grad.element_size() else rows * width * accumulate
        call.scratch(8, 8 * segments, 8 * segments, wide)
    else:
        call.scratch(8, 8 * segments, segments * width * accumulate)
    del held
    return out


def adds_in_place(gpu: GpuSpec, n: int, rows: int, width: int, version: Version = INSTALLED) -> bool:
    """Whether few long segments are added straight into the gradient instead of into a row each
    (use_fused_kernel in EmbeddingBackwardKernel.cu)."""
    if version < ATOMIC_EMBEDDING_BACKWARD or torch.are_deterministic_algorithms_enabled():
        return False
    distinct = min(n, rows)
    padded = -(-width // 32) * 32
    blocks = -(-distinct * padded // min(padded, MAX_BLOCK_SIZE))
    return blocks < (gpu.sm_count or 0) * ATOMIC_BLOCKS_PER_SM and n // ROWS_PER_THREAD + distinct > 4 * blocks


MAX_MODE = 2


@kernel("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(call: Call) -> Any:
    """Allocates in the order of _embedding_bag_cuda in EmbeddingBag.cu."""
    weight, indices, offsets = call.args[:3]
    bags = offsets.size(0) - int(bool(call.argument("include_last_offset")))
    bag_size = call.empty(offsets.size(), indices.dtype)
    offset2bag = call.empty((indices.size(0),), indices.dtype)
    largest = (bags, weight.size(1)) if call.argument("mode") == MAX_MODE else (0,)
    max_indices = call.empty(largest, indices.dtype)
    output = call.empty((bags, weight.size(1)), weight.dtype)
    return output, offset2bag, bag_size, max_indices
