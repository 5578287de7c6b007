"""One iteration of the training loop out of everything that was issued, and its phases.

A step is cut wherever a backward pass or an optimizer step begins or ends. Each stretch between two cuts takes its name
from what ends it, as a measurement's does (features/measure/phases.py): what comes before a backward pass is forward
work; what comes before an optimizer step once there are gradients belongs to the optimizer, and so does the rest of the
iteration.
"""

from __future__ import annotations

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


def _between_optimizers(calls: OpCalls) -> range:
    """From one end to the next of the optimizer that steps least often: others may step several times meanwhile."""
    by_optimizer: dict[int, list[int]] = {}
    for row in _rows(calls, OPTIMIZER_END):
        by_optimizer.setdefault(calls.call[row], []).append(row)
    if not by_optimizer:
        return range(0)
    ends = min(by_optimizer.values(), key=lambda rows: (len(rows), -rows[-1]))
    if len(ends) > 1:
        return range(ends[-2] + 1, ends[-1] + 1)
    # All that was noted is one step, perhaps with the building of the model before it.
    modules = _rows(calls, MODULE)
    first = 0 if not modules or calls.event[0] else modules[0]
    return range(first, max(rows[-1] for rows in by_optimizer.values()) + 1)


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
