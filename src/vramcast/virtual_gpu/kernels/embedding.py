"""Embedding gradients: long index lists are sorted, and equal indices summed in segments."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual_gpu.kernels.registry import Call, kernel

SMALL = 3072
"""Up to here a kernel without sorting is used (embedding_dense_backward_cuda in Embedding.cu)."""
ROWS_PER_THREAD = 10  # NROWS_PER_THREAD in EmbeddingBackwardKernel.cu


def radix_sort_bytes(n: int) -> int:
    """CUB's temporary storage for sorting n pairs; fitted on torch 2.11 (8,192 and 16,800 int64 pairs)."""
    return int(16.24 * n) + 17_000


@kernel("aten::embedding_dense_backward")
def embedding_dense_backward(call: Call) -> Any:
    grad, indices, rows = call.args[0], call.args[1], call.args[2]
    small = indices.numel() <= SMALL and not call.argument("scale_grad_by_freq")
    return weight_gradient(call, grad, indices, rows, small)


def weight_gradient(call: Call, grad: torch.Tensor, indices: torch.Tensor, rows: int, small: bool) -> torch.Tensor:
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
    per_segment = width * accumulate if distinct > n // ROWS_PER_THREAD else 8
    held += [call.empty((index_bytes,), torch.uint8), call.empty((8,), torch.uint8)]
    call.scratch(index_bytes, 1279)
    held += [call.empty((8 * distinct,), torch.uint8) for _ in range(2)]
    call.scratch(8, 8 * segments, segments * per_segment)
    del held
    return out


MAX_MODE = 2


@kernel("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def embedding_bag(call: Call) -> Any:
    """In the order of _embedding_bag_cuda in EmbeddingBag.cu."""
    weight, indices, offsets = call.args[:3]
    bags = offsets.size(0) - int(bool(call.argument("include_last_offset")))
    bag_size = call.empty(offsets.size(), indices.dtype)
    offset2bag = call.empty((indices.size(0),), indices.dtype)
    largest = (bags, weight.size(1)) if call.argument("mode") == MAX_MODE else (0,)
    max_indices = call.empty(largest, indices.dtype)
    output = call.empty((bags, weight.size(1)), weight.dtype)
    return output, offset2bag, bag_size, max_indices
