"""What becomes of a run whose memory grows in every step: when it runs out."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.base.units import format_size
from vramcast.memory.lengthening import lengthened
from vramcast.memory.replay import replay
from vramcast.trace import Growth, Note, StepTrace
from vramcast.trace.schema import ALLOC, FREE, STEP

MANY_STEPS = 100_000
"""A run whose memory lasts for this many steps counts as one that fits; the note is there all the same."""
_MOST_EVENTS = 400_000
"""This many steps are replayed to find the exact one; beyond, it is worked out by division."""


@dataclass(frozen=True, slots=True)
class Outlook:
    growth: Growth
    out_of_memory_step: int | None
    """Counted from 1; None where the run is refused memory in the steps that were looked at."""
    exact: bool
    """Found by replaying that many steps; otherwise about."""

    @property
    def fits(self) -> bool:
        return self.out_of_memory_step is not None and self.out_of_memory_step > MANY_STEPS

    @property
    def ending(self) -> str:
        """When memory runs out."""
        if self.out_of_memory_step is None:
            return "out of memory within the steps looked at"
        return f"out of memory at {'' if self.exact else 'about '}step {self.out_of_memory_step:,}"

    def note(self) -> Note:
        grown = self.growth
        made = f"{grown.op} in {grown.module}" if grown.module else grown.op
        held = f"held by {grown.held_by}" if grown.held_by else "still alive"
        text = (
            f"memory grows by {format_size(grown.bytes_per_step)} a step ({grown.steps} steps looked at): made here"
            f"{f' ({made})' if made else ''}, {held}; {self.ending}. --whole runs on, and sees if it is freed later"
        )
        return Note("memory grows", text, grown.where)


def outlook(trace: StepTrace, conf: str | None, capacity_bytes: int, peak_reserved_bytes: int) -> Outlook | None:
    """None for a run that does not grow. `peak_reserved_bytes`: in the steps that were looked at."""
    growth = trace.growth
    if growth is None or growth.bytes_per_step <= 0:
        return None
    if capacity_bytes < peak_reserved_bytes:
        return Outlook(growth, None, False)
    about = trace.steps + _steps_left(trace, growth.bytes_per_step, capacity_bytes) + 1
    if trace.n_events // max(1, trace.steps) * about <= _MOST_EVENTS:
        longer = lengthened(trace, about + about // 8 + 4)
        if longer is not trace:
            refusals = replay(longer, conf, capacity_bytes).refusals
            fatal = next((refusal for refusal in refusals if not refusal.survived), None)
            if fatal is not None:
                return Outlook(growth, fatal.at.step + 1, True)
    return Outlook(growth, about, False)


def _steps_left(trace: StepTrace, bytes_per_step: int, capacity_bytes: int) -> int:
    """How many more steps there is room for: what the allocator only caches is given back when it must. A buffer that
    is replaced by a larger one is there twice for a moment, so each moment of a step is continued by itself."""
    steps = _levels(trace)
    highest = max((max(levels, default=0) for levels in steps), default=0)
    left = (capacity_bytes - highest) // bytes_per_step
    if len(steps) > 1 and len(steps[-2]) == len(steps[-1]):
        for then, now in zip(steps[-2], steps[-1], strict=True):
            if now - then > bytes_per_step:
                left = min(left, (capacity_bytes - now) // (now - then))
    return max(left, 0)


def _levels(trace: StepTrace) -> list[list[int]]:
    """What is alive after each allocation, by step."""
    steps: list[list[int]] = [[]]
    level = 0
    for code, arg in zip(trace.event_kind, trace.event_arg, strict=True):
        if code == ALLOC:
            level += trace.requested_bytes[arg]
            steps[-1].append(level)
        elif code == FREE:
            level -= trace.requested_bytes[arg]
        elif code == STEP:
            steps.append([])
    return steps[:-1]
