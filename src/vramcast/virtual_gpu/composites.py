"""Functions that PyTorch takes apart differently on CUDA than on a meta tensor.

Registered in the dispatcher for meta tensors while the virtual GPU is active: each makes the choice CUDA would make
for the target card and calls the op that CUDA would call, so that autograd saves what it would save.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.virtual_gpu import attention_choice, batch_norm_choice, recurrent

_KEYS = ("AutogradMeta", "Meta")


class Composites:
    """Installs the functions; one instance per virtual GPU."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._libraries: list[Any] = []

    def install(self) -> None:
        functions: dict[str, Callable[..., Any]] = {
            "dropout": dropout,
            "scaled_dot_product_attention": attention_choice.attention_for(self._machine.gpu),
            "batch_norm": batch_norm_choice.batch_norm_for(self._machine.gpu),
            **recurrent.functions(self._machine),
        }
        for key in _KEYS:
            library: Any = torch._C._dispatch_library("IMPL", "aten", key, "vramcast/composites.py", 0)
            for name, function in functions.items():
                library.impl(name, key, function, False)
            self._libraries.append(library)

    def remove(self) -> None:
        for library in self._libraries:
            library.reset()
        self._libraries = []


def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """CUDA fuses dropout when it trains with 0 < p < 1 (is_fused_kernel_acceptable in Dropout.cpp)."""
    if not train or p == 0 or input.numel() == 0:
        return input
    if p == 1:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    return torch.ops.aten.native_dropout(input, p, train)[0]  # type: ignore[no-any-return]
