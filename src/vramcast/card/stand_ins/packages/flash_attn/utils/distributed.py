"""Collectives whose gradients go back to the rank they came from."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, process_group: Any) -> Tensor:
        ctx.process_group = process_group
        out = values.new_empty(dist.get_world_size(process_group) * values.shape[0], *values.shape[1:])
        dist.all_gather_into_tensor(out, values.contiguous(), group=process_group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        out = grad.new_empty(grad.shape[0] // dist.get_world_size(ctx.process_group), *grad.shape[1:])
        dist.reduce_scatter_tensor(out, grad.contiguous(), group=ctx.process_group)
        return out, None


def all_gather(values: Tensor, process_group: Any) -> Tensor:
    """The rows of all ranks, one rank after the other."""
    return _AllGather.apply(values, process_group)  # type: ignore[no-any-return]
