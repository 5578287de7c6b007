"""One iteration of the training loop out of everything that was issued, and its phases.

A step is cut wherever a backward pass or an optimizer step begins or ends. Each stretch between two cuts takes its name
from what ends it, as a measurement's does (features/measure/phases.py): what comes before a backward pass is forward
work; what comes before an optimizer step once there are gradients belongs to the optimizer, and so does the rest of the
iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.trace.calls import (
    BACKWARD,
    BACKWARD_END,
    ITERATION,
    ITERATION_END,
    MODULE,
    OPTIMIZER,
    OPTIMIZER_END,
    OpCalls,
)

PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of one phase in a row."""

    phase: str
    first: int
    end: int


def last_iteration(calls: OpCalls) -> range:
    """The rows of the last whole iteration; empty where none is there."""
    begun = _rows(calls, ITERATION)
    ended = _rows(calls, ITERATION_END)
    if begun:
        return range(begun[-1], next((row + 1 for row in ended if row > begun[-1]), len(calls)))
    return _between_optimizers(calls)


def steps_in(calls: OpCalls, rows: range) -> int:
    """How many steps these rows are: as many as the optimizer makes that steps least often."""
    if not rows or calls.ops[calls.call[rows.start]] == ITERATION:
        return 1
    counts = Counter(calls.call[row] for row in rows if calls.ops[calls.call[row]] == OPTIMIZER_END)
    return min(counts.values(), default=1)


def _between_optimizers(calls: OpCalls) -> range:
    """The last round in which the optimizers step, as far as they take turns; else from one end to the next of the one
    that steps least often."""
    ends = _rows(calls, OPTIMIZER_END)
    if not ends:
        return range(0)
    turns = [calls.call[row] for row in ends]
    length = round_length(turns)
    if length:
        return range(ends[-1 - length] + 1, ends[-1] + 1)
    by_optimizer: dict[int, list[int]] = {}
    for row, optimizer in zip(ends, turns, strict=True):
        by_optimizer.setdefault(optimizer, []).append(row)
    rarest = min(by_optimizer.values(), key=lambda rows: (len(rows), -rows[-1]))
    if len(rarest) > 1:
        return range(rarest[-2] + 1, rarest[-1] + 1)
    # All that was noted is one step, perhaps with the building of the model before it.
    modules = _rows(calls, MODULE)
    first = 0 if not modules or calls.event[0] else modules[0]
    return range(first, ends[-1] + 1)


def round_length(turns: Sequence[int]) -> int:
    """After how many steps the optimizers begin again, in the order of all that was seen; 0 where they did not."""
    return next((n for n in range(1, len(turns)) if turns[-1 - n] == turns[-1] and turns[n:] == turns[:-n]), 0)


def stretches(calls: OpCalls, rows: range) -> list[Stretch]:
    """The iteration cut into phases."""
    parts: list[Stretch] = []
    start, gradients, in_backward = rows.start, False, False

    def close(end: int, phase: str) -> None:
        nonlocal start
        if end > start:
            parts.append(Stretch(phase, start, end))
        start = end

    for row in rows:
        op = calls.ops[calls.call[row]]
        if op == BACKWARD:
            close(row, "forward")
            in_backward = True
        elif op == BACKWARD_END:
            close(row + 1, "backward")
            gradients, in_backward = True, False
        elif op == OPTIMIZER:
            # Inside a backward pass, a hook updates a parameter as soon as its gradient is there.
            close(row, "backward" if in_backward else "optimizer" if gradients else "forward")
        elif op == OPTIMIZER_END:
            close(row + 1, "optimizer")
            gradients = False
    close(rows.stop, "optimizer" if parts else "forward")
    return parts


def _rows(calls: OpCalls, name: str) -> list[int]:
    numbers = {number for number, op in enumerate(calls.ops) if op == name}
    return [row for row, call in enumerate(calls.call) if call in numbers] if numbers else []
