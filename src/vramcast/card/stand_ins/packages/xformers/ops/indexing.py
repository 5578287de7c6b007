"""As in xformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import op


@op("xformers::scaled_index_add(Tensor(a!) x, Tensor index, Tensor source, Tensor? scaling, float alpha) -> ()")
def _add(x: Tensor, index: Tensor, source: Tensor, scaling: Tensor | None, alpha: float) -> None:
    return None


@op(
    "xformers::scaled_index_add_bwd(Tensor grad, Tensor(a!) dsource, Tensor(b!)? dscaling, Tensor source, "
    "Tensor? scaling, Tensor index, float alpha) -> ()"
)
def _add_backward(
    grad: Tensor, dsource: Tensor, dscaling: Tensor | None, source: Tensor, scaling: Tensor | None, index: Tensor,
    alpha: float,
) -> None:  # fmt: skip
    return None


@op("xformers::index_select_cat(Tensor[] sources, Tensor[] indices) -> Tensor")
def _select(sources: list[Tensor], indices: list[Tensor]) -> Tensor:
    size = sum(index.shape[0] * source.shape[1] for source, index in zip(sources, indices, strict=True))
    return sources[0].new_empty(size)


class _ScaledIndexAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, source: Tensor, scaling: Tensor | None, alpha: float) -> Tensor:
        torch.ops.xformers.scaled_index_add(x, index, source, scaling, alpha)
        ctx.mark_dirty(x)
        ctx.save_for_backward(index, scaling, source)
        ctx.alpha = alpha
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        index, scaling, source = ctx.saved_tensors
        dsource = torch.empty_like(source)
        dscaling = None if scaling is None else torch.empty(source.shape, dtype=scaling.dtype, device=scaling.device)
        torch.ops.xformers.scaled_index_add_bwd(grad, dsource, dscaling, source, scaling, index, ctx.alpha)
        return grad, None, dsource, dscaling, None


class _IndexSelectCat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Tensor) -> Any:
        half = len(args) // 2
        ctx.save_for_backward(*args[half:])
        ctx.shapes = [source.shape for source in args[:half]]
        return torch.ops.xformers.index_select_cat(list(args[:half]), list(args[half:]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        gradients, place = [], 0
        for shape, index in zip(ctx.shapes, ctx.saved_tensors, strict=True):
            size = index.shape[0] * shape[1]
            part = grad[place : place + size].reshape(index.shape[0], shape[1])
            place += size
            whole = torch.zeros(tuple(shape), dtype=grad.dtype, device=grad.device)
            torch.ops.xformers.scaled_index_add(whole, index, part, None, 1.0)
            gradients.append(whole)
        return *gradients, *(None,) * len(gradients)


def scaled_index_add(
    input: Tensor, index: Tensor, source: Tensor, scaling: Tensor | None = None, alpha: float = 1.0
) -> Tensor:
    out: Tensor = _ScaledIndexAdd.apply(input, index, source, scaling, alpha)
    return out


def index_select_cat(sources: Sequence[Tensor], indices: Sequence[Tensor]) -> Tensor:
    out: Tensor = _IndexSelectCat.apply(*sources, *indices)
    return out
