"""Tensors that a compiler traces with. What is done to them becomes part of its graph, so a function that stands for a
CUDA kernel must do what the compiler makes of that kernel, and not only allocate what the kernel allocates."""

from __future__ import annotations

from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

_TRACED = (FakeTensor, FunctionalTensor)


def is_traced(tensor: Any) -> bool:
    return isinstance(tensor, _TRACED)
