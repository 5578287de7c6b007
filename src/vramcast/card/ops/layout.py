"""Which memory format a tensor's strides suggest (c10/core/MemoryFormat.h)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """channels-last if the strides rise in that order; a tensor need not be dense for it."""
    if tensor.dim() == 4 and _channels_last_strides(tensor.size(), tensor.stride(), (1, 3, 2, 0)):
        return torch.channels_last
    if tensor.dim() == 5 and _channels_last_strides(tensor.size(), tensor.stride(), (1, 4, 3, 2, 0)):
        return torch.channels_last_3d
    return torch.contiguous_format


def are_mergeable(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a view can have these dimensions as one."""
    steps = [(length, step) for length, step in zip(size, stride, strict=True) if length != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(steps))


def _channels_last_strides(size: Sequence[int], stride: Sequence[int], order: Sequence[int]) -> bool:
    if stride[1] == 0:
        return False
    least = 0
    for d in order:
        if size[d] == 0 or stride[d] < least:
            return False
        if d == 0 and least == stride[1]:  # all other dimensions are 1: ambiguous, and taken as contiguous
            return False
        least = stride[d] * max(size[d], 1)
    return True
