"""Kernels that a compiler made of several operators."""

from __future__ import annotations

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.part import Part
from vramcast.timing.costs.signature import Arguments


def fused(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Each tensor is read or written once, and that takes the time."""
    moved = float(sum(tensor.nbytes for tensor in args.tensors))
    return [Part("elementwise-fused", max(moved / card.bandwidth, 1e-10), 0.0, moved)]


FAMILY = {"fused": fused}
