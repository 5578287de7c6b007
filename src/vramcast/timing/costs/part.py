"""A kernel, or a few that go together, that an operator runs on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.signature import Arguments


@dataclass(frozen=True, slots=True)
class Part:
    """`base` is the time an ideal kernel of this kind would take on the card; what real ones take beyond it is a matter
    of the kind, its size, the features and the tags (see curves.py)."""

    kind: str
    base: float
    flops: float = 0.0
    bytes: float = 0.0
    """The least it must move: each distinct input once, each output once."""
    unit: str = "f32"
    features: tuple[tuple[str, float], ...] = ()
    """Name and log2 of a quantity."""
    tags: tuple[str, ...] = ()
    kernels: int = 1


Family = Callable[[Arguments, Card, bool, bool], list[Part]]
"""The parts of one call, from its arguments, the card, and whether matrix products and cuDNN may use TF32."""


def feature(name: str, quantity: float) -> tuple[str, float]:
    return name, log2(max(quantity, 1.0))
