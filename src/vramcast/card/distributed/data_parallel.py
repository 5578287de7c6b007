"""torch.nn.DataParallel on one card."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches


def install(put: Patches) -> None:
    import torch.nn.parallel.comm

    put.set(torch.nn.parallel.comm, "scatter", _scatter)


def _scatter(
    tensor: torch.Tensor, devices: Any = None, chunk_sizes: Any = None, dim: int = 0, streams: Any = None, **_: Any
) -> tuple[torch.Tensor, ...]:
    """What DataParallel does with a batch: on one card it goes there whole, from the host on a stream of its own."""
    if tensor.is_cuda:
        return (tensor.view_as(tensor),)
    with streams[0] if streams and streams[0] is not None else nullcontext():
        return (tensor.to("cuda", non_blocking=True),)
