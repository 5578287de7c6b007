"""As in xformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def _views_of_one(tensors: Sequence[Tensor], dim: int) -> Tensor | None:
    """The tensor that these are slices of, where they are neighbours in one storage."""
    first = tensors[0]
    if any(t.untyped_storage()._cdata != first.untyped_storage()._cdata for t in tensors):
        return None
    step = int(tensors[1].storage_offset() - first.storage_offset()) if len(tensors) > 1 else 0
    for place, tensor in enumerate(tensors):
        if tensor.shape != first.shape or tensor.stride() != first.stride():
            return None
        if tensor.storage_offset() != first.storage_offset() + place * step:
            return None
    shape, strides = list(first.shape), list(first.stride())
    shape.insert(dim, len(tensors))
    strides.insert(dim, step)
    return first.as_strided(shape, strides)


class _Unbind(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Any:
        ctx.dim = dim % x.ndim
        return x.unbind(dim)

    @staticmethod
    def backward(ctx: Any, *tensors: Tensor) -> Any:
        whole = _views_of_one(tensors, ctx.dim)
        return torch.stack(tensors, dim=ctx.dim) if whole is None else whole, None


def unbind(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """torch.unbind, but gradients that are slices of one tensor already are not stacked."""
    return _Unbind.apply(x, dim)  # type: ignore[no-any-return]


def stack_or_none(tensors: Sequence[Tensor], dim: int) -> Tensor | None:
    return _views_of_one(tensors, dim)
