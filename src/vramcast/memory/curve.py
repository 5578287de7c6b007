"""What is held after each step: how memory develops over a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from vramcast.memory.replay import Replay
from vramcast.trace.schema import STEP


@dataclass(frozen=True, slots=True)
class StepLevels:
    """The levels when an optimizer's step has ended, as torch.cuda.memory_allocated() and the like would show them."""

    step: int
    """Counted from 1."""
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    """The highest within the step."""


def curve(run: Replay, steps: int) -> tuple[StepLevels, ...]:
    """Memory over the first `steps` steps, or over those before memory was refused."""
    kinds = run.trace.event_kind[: run.n_events]
    levels: list[StepLevels] = []
    first = 0
    for event in compress(range(len(kinds)), map(STEP.__eq__, kinds)):
        if len(levels) == steps:
            break
        highest = max(run.allocated_bytes[first : event + 1])
        levels.append(StepLevels(len(levels) + 1, run.allocated_bytes[event], run.reserved_bytes[event], highest))
        first = event + 1
    return tuple(levels)


def last_rise(levels: Sequence[int]) -> int:
    """The place of the last level that is above all before it."""
    highest, last = -1, 0
    for place, level in enumerate(levels):
        if level > highest:
            highest, last = level, place
    return last
