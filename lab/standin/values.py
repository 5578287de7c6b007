"""Values of small tensors on the stand-in for CUDA: what its kernels leave out is computed on the host.

Device memory is host memory there, so the same op runs again on tensors that name the same bytes. Counters, masks and
indices then hold what they would hold on a card, and a program that asks `mask.all()` goes its usual way. Results whose
size depends on values (`nonzero`) stay as PyTorch's CUDA code made them.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MOST_NUMBERS = 1 << 17
MOST_WHOLE_NUMBERS = 1 << 23
"""Elements of the largest tensor of a call that is computed: of floats, and of integers and booleans."""


def compute_small_tensors() -> None:
    """From here on, to the end of the process."""
    _Values().__enter__()


class _Values(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)]
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if not func.is_view and results and any(t.is_cuda for t in tensors) and all(map(_is_small, tensors)):
            with contextlib.suppress(Exception):  # some ops are of CUDA alone
                _compute(func, args, kwargs, results)
        return out


def _is_small(tensor: torch.Tensor) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return False
    most = MOST_NUMBERS if tensor.dtype.is_floating_point or tensor.dtype.is_complex else MOST_WHOLE_NUMBERS
    return tensor.numel() <= most


def _compute(func: Any, args: Any, kwargs: Any, results: list[torch.Tensor]) -> None:
    with torch.no_grad(), torch.random.fork_rng(devices=()):  # the program's own random numbers stay as they are
        there = func(*tree_map(_on_host, args), **tree_map(_on_host, kwargs))
        for result, computed in zip(results, tree_leaves(there), strict=True):
            host = _on_host(result)
            if isinstance(computed, torch.Tensor) and computed.data_ptr() != host.data_ptr():
                host.copy_(computed)


def _on_host(value: Any) -> Any:
    """A tensor of the host that names the same bytes; other values as they are."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    storage = value.untyped_storage()
    if not storage.nbytes():
        return torch.empty(value.size(), dtype=value.dtype)
    bytes_ = torch.frombuffer((ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.uint8)
    alias = torch.empty(0, dtype=value.dtype)
    return alias.set_(bytes_.untyped_storage(), value.storage_offset(), value.size(), value.stride())
