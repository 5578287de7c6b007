"""How autograd adds up gradients that meet: in place, where it holds the only reference.

The engine adds in place only while no dispatch mode is active (InputBuffer::accumulate asks isTensorSubclassLike), so
under ours it always makes a new tensor. What it would have done is told from reference counts: those of a gradient
that nobody else holds are learnt once from a tiny graph, since they depend on how torch calls a mode.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

Counts = tuple[int, int]


def counts(tensor: torch.Tensor) -> Counts:
    """References to the tensor and to its storage, as seen inside a dispatch handler."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Counts] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor:
            self.seen.append(counts(args[0]))
        return func(*args, **(kwargs or {}))


@functools.cache
def sole_counts() -> Counts:
    """The counts of a gradient that only the engine holds."""
    with _disable_current_modes(), torch.enable_grad(), _Watch() as watch:
        x = torch.empty(2, device="meta", requires_grad=True) * 1.0
        y = (x * 2.0) * (x * 3.0)
        torch.autograd.grad(y, x, torch.empty(2, device="meta"))
    return watch.seen[-1]


def reusable(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor | None:
    """The gradient that would hold the sum, if one of the two is free to."""
    for candidate in (old, new):
        if counts(candidate) == sole_counts() and _dense(candidate):
            return candidate
    return None


def _dense(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
