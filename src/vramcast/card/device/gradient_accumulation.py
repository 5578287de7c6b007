"""Where autograd works in place, because it holds the only reference to a tensor.

The engine adds up gradients that meet in place, and some backward formulas scatter into a tensor of zeros, but only
while no dispatch mode is active (both ask isTensorSubclassLike), so under ours they always make a new tensor. What
they would have done is told from reference counts: those of a tensor that nobody else holds are learnt once from a
tiny graph, since they depend on how torch calls a mode.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from vramcast.card.dispatch.storages import block_of

Counts = tuple[int, int]


def counts(tensor: torch.Tensor) -> Counts:
    """References to the tensor and to its storage, as seen inside a dispatch handler."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]


class _Watch(TorchDispatchMode):
    def __init__(self, watched: Any) -> None:
        super().__init__()
        self._watched = watched
        self.seen: list[Counts] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._watched:
            self.seen.append(counts(args[0]))
        return func(*args, **(kwargs or {}))


@functools.cache
def sole_counts(through_indices: bool = False) -> Counts:
    """The counts of a gradient that only the engine holds, or of the zeros that only index's backward holds."""
    aten = torch.ops.aten
    watch = _Watch(aten.index_put.default if through_indices else aten.add.Tensor)
    with _disable_current_modes(), torch.enable_grad(), watch:
        x = torch.empty(2, device="meta", requires_grad=True) * 1.0
        y = x[torch.empty(2, dtype=torch.int64, device="meta")] if through_indices else (x * 2.0) * (x * 3.0)
        torch.autograd.grad(y, x, torch.empty(2, device="meta"))
    return watch.seen[-1]


def learn_sole_counts() -> None:
    """Before the program runs, and in a thread of its own: PyTorch numbers the nodes of graphs thread by thread, and
    the program's are to begin where they begin on a card."""

    def learn() -> None:
        for through_indices in (False, True):
            sole_counts(through_indices)

    thread = threading.Thread(target=learn)
    thread.start()
    thread.join()


def reusable(tensor: torch.Tensor, through_indices: bool = False) -> bool:
    """Whether nobody else holds the tensor, so that a result may be written over it. A storage object that Python has
    of a tensor is a further reference; here every tensor has one."""
    block = block_of(tensor)
    if block is not None and block.asked_for:
        return False
    return counts(tensor) == sole_counts(through_indices) and _dense(tensor)


def _dense(tensor: torch.Tensor) -> bool:
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))
