"""What a random case of an operator is, and what its makers share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64}


@dataclass
class Case:
    """A call to record, and the tensors whose gradients its backward is asked for."""

    op: str
    parameters: dict[str, Any]
    forward: Callable[[], Any]
    wrt: Sequence[Tensor] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    backward_context: Callable[[], Any] = nullcontext


Maker = Callable[[random.Random], Case]
Makers = dict[str, tuple[float, Maker]]


def case(makers: Makers, weight: float) -> Callable[[Maker], Maker]:
    """Add a maker; `weight` is its share of the draws."""

    def add(maker: Maker) -> Maker:
        makers[maker.__name__] = (weight, maker)
        return maker

    return add


def float_dtype(rng: random.Random, *names: str) -> str:
    return rng.choice(names or ("f32", "f32", "bf16", "bf16", "f16"))


def numel(rng: random.Random, low: float = 0, high: float = 26) -> int:
    exact = round(2 ** rng.uniform(low, high))
    return exact if rng.random() < 0.6 else 2 ** max(0, exact.bit_length() - 1)


def randn(shape: Sequence[int], dtype: str, grad: bool = True) -> Tensor:
    tensor = torch.zeros(tuple(shape), dtype=DTYPES[dtype], device="cuda")
    return tensor.requires_grad_(grad)
