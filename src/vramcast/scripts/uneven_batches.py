"""Steps whose batches differ in size: those that were run are a few of many, and others may take more memory."""

from __future__ import annotations

from vramcast.base.units import format_size
from vramcast.trace import KINDS, StepTrace

_INPUTS = KINDS.index("inputs")
_LIKE = 0.02
"""Batches that differ by less take practically the same memory."""


def summary(trace: StepTrace) -> str:
    """A note about them; empty where all steps get batches of the same size."""
    largest: dict[int, int] = {}
    for block in range(trace.n_blocks):
        if trace.kind[block] == _INPUTS and trace.step[block] < trace.steps:
            step = trace.step[block]
            largest[step] = max(largest.get(step, 0), trace.requested_bytes[block])
    if len(largest) < 2 or max(largest.values()) <= min(largest.values()) * (1 + _LIKE):
        return ""
    sizes = f"{format_size(min(largest.values()))} to {format_size(max(largest.values()))}"
    return (
        f"batches differ in size from step to step: the largest input of a step takes {sizes}. A larger one than those "
        "seen takes more memory: --longest runs the longest of the loader, --steps or --epoch more of them"
    )
