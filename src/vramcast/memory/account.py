"""Every byte on the card at one moment, by kind and by module, and the course of the whole run.

The parts add up to the byte: live blocks by kind as they were requested, then what rounding adds, what the
allocator holds without using it, and what lies outside the allocator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramcast.memory.modules import ModuleNode, module_tree
from vramcast.memory.replay import Moment, Replay
from vramcast.trace.schema import ALLOC, FREE, KINDS

ROUNDING = "rounding"
FRAGMENTATION = "fragmentation"
CONTEXT = "context and kernels"


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the account."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """A step, or a phase of one: the peaks inside it."""

    step: int
    phase: str
    """Empty for a whole step."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The highest moment of a stretch of events, by kind."""

    event: int
    step: int
    phase: str
    by_kind_bytes: tuple[int, ...]
    """Requested bytes in the order of KINDS."""
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Account:
    """The card at `moment`. `parts` sum to `device_bytes`; the tree's total is the sum of the kinds."""

    moment: Moment
    parts: tuple[Part, ...]
    device_bytes: int
    modules: ModuleNode
    steps: tuple[Stretch, ...]
    phases: tuple[Stretch, ...]
    timeline: tuple[TimelinePoint, ...]

    def part(self, name: str) -> int:
        return next((part.size_bytes for part in self.parts if part.name == name), 0)


def account(
    replay: Replay, *, event: int | None = None, context_bytes: int | None = None, timeline_points: int = 200
) -> Account:
    """The account at the peak of reserved memory, or at any other `event`."""
    trace = replay.trace
    outside_bytes = trace.context_bytes if context_bytes is None else context_bytes
    moment = replay.peak_reserved if event is None else replay.moment(event)
    live = replay.live_blocks(moment.event)
    by_kind = [0] * len(KINDS)
    for block in live:
        by_kind[trace.kind[block]] += trace.requested_bytes[block]
    parts = [Part(name, size) for name, size in zip(KINDS, by_kind, strict=True)]
    parts.append(Part(ROUNDING, moment.allocated_bytes - moment.requested_bytes))
    parts.append(Part(FRAGMENTATION, moment.reserved_bytes - moment.allocated_bytes))
    parts.append(Part(CONTEXT, outside_bytes))
    return Account(
        moment=moment,
        parts=tuple(parts),
        device_bytes=moment.reserved_bytes + outside_bytes,
        modules=module_tree(trace, live),
        steps=_stretches(replay, by_phase=False),
        phases=_stretches(replay, by_phase=True),
        timeline=tuple(_timeline(replay, timeline_points)),
    )


def _stretches(replay: Replay, *, by_phase: bool) -> tuple[Stretch, ...]:
    """Peaks by step, or by step and phase; an event belongs to the allocation at or before it."""
    trace = replay.trace
    peaks: dict[tuple[int, int], list[int]] = {}
    key = (0, -1)
    columns = zip(trace.event_kind, trace.event_arg, replay.allocated_bytes, replay.reserved_bytes, strict=False)
    for code, arg, allocated, reserved in columns:
        if code == ALLOC:
            key = (trace.step[arg], trace.phase[arg] if by_phase else -1)
            highest = peaks.setdefault(key, [0, 0])
            if allocated > highest[0]:
                highest[0] = allocated
            if reserved > highest[1]:
                highest[1] = reserved
    return tuple(
        Stretch(step, trace.phases[phase] if phase >= 0 else "", allocated, reserved)
        for (step, phase), (allocated, reserved) in peaks.items()
    )


def _timeline(replay: Replay, points: int) -> Iterator[TimelinePoint]:
    """Cut the run into `points` stretches and keep the highest moment of each, so that no peak is lost."""
    n_events = replay.n_events
    bounds = sorted({round(n_events * i / points) for i in range(1, points + 1)} - {0}) if points else []
    by_kind = [0] * len(KINDS)
    start = 0
    for end in bounds:
        highest, highest_event, highest_kinds = -1, start, tuple(by_kind)
        for event in range(start, end):
            _apply(replay, event, by_kind)
            if replay.allocated_bytes[event] > highest:
                highest, highest_event, highest_kinds = replay.allocated_bytes[event], event, tuple(by_kind)
        moment = replay.moment(highest_event)
        yield TimelinePoint(
            event=highest_event,
            step=moment.step,
            phase=moment.phase,
            by_kind_bytes=highest_kinds,
            allocated_bytes=moment.allocated_bytes,
            reserved_bytes=max(replay.reserved_bytes[start:end]),
        )
        start = end


def _apply(replay: Replay, event: int, by_kind: list[int]) -> None:
    trace = replay.trace
    code = trace.event_kind[event]
    if code in (ALLOC, FREE):
        block = trace.event_arg[event]
        if block not in replay.refused_blocks:
            size = trace.requested_bytes[block]
            by_kind[trace.kind[block]] += size if code == ALLOC else -size


def largest(parts: Sequence[Part]) -> list[Part]:
    """The parts that hold anything, largest first."""
    return sorted((part for part in parts if part.size_bytes), key=lambda part: -part.size_bytes)
