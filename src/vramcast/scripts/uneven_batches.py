"""Steps whose batches differ in size: those that were run are a few of many, and others may take more memory."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

from vramcast.base.units import format_size
from vramcast.trace import KINDS, StepTrace

_INPUTS = KINDS.index("inputs")
_LIKE = 0.02
"""Batches that differ by less take practically the same memory."""
_SHARES = 64
"""A round that gets so many times less shares the batch of another: what comes in is a label, or noise."""


def summary(trace: StepTrace, rounds: Sequence[int]) -> str:
    """A note about them; empty where all steps get batches of the same size.

    `rounds`: the steps made by the end of each round, in which every optimizer has made another step. Networks that are
    trained in turn, as those of a GAN, share a batch, which comes in before one of them steps.
    """
    several_optimizers = any(after - before > 1 for before, after in itertools.pairwise(rounds))
    first = int(several_optimizers)  # a round ends with the first step of all, when the other optimizers are not known
    largest: dict[int, int] = {}
    for block in range(trace.n_blocks):
        if trace.kind[block] == _INPUTS and trace.step[block] < trace.steps:
            number = bisect_right(rounds, trace.step[block])
            stays = trace.died_event[block] < 0 and number < len(rounds) - 1  # a buffer of the model, data kept there
            if first <= number < len(rounds) and not stays:
                largest[number] = max(largest.get(number, 0), trace.requested_bytes[block])
    most = max(largest.values(), default=0)
    largest = {number: size for number, size in largest.items() if size * _SHARES >= most}
    if len(largest) < 2 or max(largest.values()) <= min(largest.values()) * (1 + _LIKE):
        return ""
    sizes = f"{format_size(min(largest.values()))} to {format_size(max(largest.values()))}"
    return (
        f"batches differ in size from step to step: the largest input of a step takes {sizes}. A larger one than those "
        "seen takes more memory: --longest runs the longest of the loader, --steps or --epoch more of them"
    )
