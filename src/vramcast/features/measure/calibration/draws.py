"""Sizes drawn for the operators that are timed: spread over what networks use, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log2
from random import Random
from typing import TypeVar

import torch

_T = TypeVar("_T")
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Case:
    """A few operators, forward and backward, on fresh tensors."""

    name: str
    run: Callable[[], object]
    tf32: bool = False
    """Matrix products may use TF32."""


class Draw:
    """Random sizes from a seed of its own, so that a change in one family leaves the others as they are."""

    def __init__(self, family: str, largest_bytes: int, turn: int = 1) -> None:
        """Every `turn` draws other sizes."""
        self._random = Random(f"vramcast calibration {family}" + (f" {turn}" if turn > 1 else ""))
        self.largest_bytes = largest_bytes

    def size(self, low: int, high: int, step: int = 8) -> int:
        """Evenly in the logarithm, a multiple of `step`."""
        value = 2 ** self._random.uniform(log2(low), log2(high))
        return max(round(value / step) * step, step)

    def batch(self, sample: int, low: int = 17, high: int = 27) -> int:
        """So many samples of this many elements that they come to 2^low to 2^high together."""
        return max(round(2 ** self._random.uniform(low, high) / sample), 1)

    def of(self, values: Sequence[_T]) -> _T:
        return self._random.choice(values)

    def chance(self, share: float) -> bool:
        return self._random.random() < share

    def half(self) -> torch.dtype:
        return self.of(HALF)

    def dtype(self) -> torch.dtype:
        return self.of((torch.float32, torch.bfloat16, torch.float16))

    def fits(self, elements: float, item: int = 4) -> bool:
        return elements * item <= self.largest_bytes


def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    """Small numbers on the card, cheap to make."""
    made = torch.empty(shape, dtype=dtype, device="cuda")
    made.uniform_(-1, 1)
    return made.requires_grad_(grad)


def through(result: torch.Tensor) -> None:
    """A backward pass with a dense gradient of random numbers, as a layer in the middle of a network gets it: products
    of constant matrices draw less power and run faster."""
    result.backward(torch.empty_like(result).uniform_(-1, 1))
