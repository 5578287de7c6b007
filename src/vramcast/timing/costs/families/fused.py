"""Kernels that Inductor made of several operators."""

from __future__ import annotations

from functools import partial

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.part import Part
from vramcast.timing.costs.signature import Arguments
from vramcast.trace.fused_kernels import FUSED


def _streaming(kind: str, args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """What it reads and writes takes the time, or its instructions (card/compiled/traffic.py)."""
    read, written, _, _, instructions = (float(value) for value in args.args if isinstance(value, int))
    moved = read + written
    streaming, computing = moved / card.bandwidth, instructions / card.issue
    if computing > streaming:
        return [Part("triton-compute", computing, 0.0, moved)]
    return [Part(kind, max(streaming, 1e-10), 0.0, moved)]


def _template(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    moved = float(sum(tensor.nbytes for tensor in args.tensors))
    return [Part("elementwise-template", max(moved / card.bandwidth, 1e-10), 0.0, moved)]


FAMILY = {
    **{
        f"{FUSED}{name}": partial(_streaming, f"triton-{kind}")
        for name, kind in {
            "pointwise": "pointwise", "foreach": "pointwise", "reduction": "reduction",
            "cooperative_reduction": "reduction", "split_scan": "reduction", "persistent_reduction": "persistent",
        }.items()
    },
    f"{FUSED}template": _template,
}  # fmt: skip
