"""torch.nn.DataParallel on one card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.virtual_gpu.patches import Patches


def install(put: Patches) -> None:
    import torch.nn.parallel.comm

    put.set(torch.nn.parallel.comm, "scatter", _scatter)


def _scatter(tensor: torch.Tensor, devices: Any = None, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """What DataParallel does with a batch: on one card it goes there whole."""
    return (tensor.view_as(tensor) if tensor.is_cuda else tensor.to("cuda", non_blocking=True),)
