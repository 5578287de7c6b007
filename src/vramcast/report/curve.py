"""Memory over the steps of a run as a line of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from vramcast.base.units import format_gib
from vramcast.memory import Prediction
from vramcast.memory.curve import last_rise

FEWEST_STEPS = 8
"""A run with fewer steps has no curve worth a line; its first and last step are in the table."""
_WIDTH = 20
_BLOCKS = "▁▂▃▄▅▆▇█"


def curve_lines(prediction: Prediction) -> list[str]:
    """Reserved memory after each step and what the steps allocate at most; the step at which memory runs out."""
    levels = prediction.curve
    if len(levels) < FEWEST_STEPS:
        return []
    reserved = [level.reserved_bytes for level in levels]
    peaks = [level.peak_allocated_bytes for level in levels]
    lines = [
        f"{blocks(reserved)}  reserved, {len(levels):,} steps: {_range(reserved)}{_rise(reserved)}",
        f"{blocks(peaks)}  most allocated: {_range(peaks)}",
    ]
    refusal = prediction.out_of_memory
    if refusal is not None:
        lines.append(f"the card runs out of memory in step {refusal.at.step + 1:,}")
    return lines


def blocks(levels: Sequence[int]) -> str:
    """Each block stands for the highest of its steps, on a scale from the lowest level to the highest."""
    width = min(_WIDTH, len(levels))
    low, high = min(levels), max(levels)
    columns = [max(levels[i * len(levels) // width : (i + 1) * len(levels) // width]) for i in range(width)]
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[top * (level - low) // (high - low) if high > low else top] for level in columns)


def _range(levels: Sequence[int]) -> str:
    low, high = format_gib(min(levels)), format_gib(max(levels))
    return low if low == high else f"{low.removesuffix(' GiB')} to {high}"


def _rise(levels: Sequence[int]) -> str:
    last = last_rise(levels)
    return f", highest from step {last + 1:,}" if last else ""
