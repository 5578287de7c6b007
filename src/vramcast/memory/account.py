"""Every byte on the card at one moment, by kind and by module, and the course of the whole run.

The parts add up to the byte: live blocks by kind as they were requested, then what rounding adds, what the
allocator holds without using it, and what lies outside the allocator.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from operator import ne

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
    """The card at `moment`, with all that is reserved in the run at the most. `parts` sum to `device_bytes`; the tree's
    total is the sum of the kinds."""

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
    """The account of what the run takes, where it is fullest, or at any other `event`."""
    trace = replay.trace
    outside_bytes = trace.context_bytes if context_bytes is None else context_bytes
    moment = replay.fullest if event is None else replay.moment(event)
    reserved_bytes = replay.peak_reserved.reserved_bytes if event is None else moment.reserved_bytes
    live = replay.live_blocks(moment.event)
    by_kind = [0] * len(KINDS)
    for block in live:
        by_kind[trace.kind[block]] += trace.requested_bytes[block]
    parts = [Part(name, size) for name, size in zip(KINDS, by_kind, strict=True)]
    parts.append(Part(ROUNDING, moment.allocated_bytes - moment.requested_bytes))
    parts.append(Part(FRAGMENTATION, reserved_bytes - moment.allocated_bytes))
    parts.append(Part(CONTEXT, outside_bytes))
    phases = _phases(replay)
    return Account(
        moment=moment,
        parts=tuple(parts),
        device_bytes=reserved_bytes + outside_bytes,
        modules=module_tree(trace, live),
        steps=_steps(phases),
        phases=phases,
        timeline=tuple(_timeline(replay, timeline_points)),
    )


def _phases(replay: Replay) -> tuple[Stretch, ...]:
    """Peaks by step and phase, of the moments after each allocation."""
    trace = replay.trace
    made = bisect_left(trace.born_event, replay.n_events)  # blocks are numbered as they are made
    made_at, phase = trace.born_event[:made], trace.phase[:made]
    allocated, reserved = (
        list(map(column.__getitem__, made_at)) for column in (replay.allocated_bytes, replay.reserved_bytes)
    )
    changes = [*compress(range(1, made), map(ne, phase, phase[1:])), *_first_of_steps(trace.step[:made])]
    peaks: dict[tuple[int, int], tuple[int, int]] = {}
    for start, end in pairwise(sorted({0, *changes, made})):
        key = trace.step[start], phase[start]
        before = peaks.get(key, (0, 0))
        peaks[key] = max(before[0], *allocated[start:end]), max(before[1], *reserved[start:end])
    return tuple(Stretch(step, trace.phases[phase], *highest) for (step, phase), highest in peaks.items())


def _first_of_steps(step: Sequence[int]) -> list[int]:
    """Where a column that only grows does so."""
    return [bisect_left(step, number) for number in range(1, step[-1] + 1)] if step else []


def _steps(phases: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """The peaks of whole steps."""
    steps = []
    for number in dict.fromkeys(stretch.step for stretch in phases):
        inside = [stretch for stretch in phases if stretch.step == number]
        allocated = max(stretch.peak_allocated_bytes for stretch in inside)
        steps.append(Stretch(number, "", allocated, max(stretch.peak_reserved_bytes for stretch in inside)))
    return tuple(steps)


def _timeline(replay: Replay, points: int) -> Iterator[TimelinePoint]:
    """Cut the run into `points` stretches and keep the highest moment of each, so that no peak is lost."""
    n_events = replay.n_events
    bounds = sorted({round(n_events * i / points) for i in range(1, points + 1)} - {0}) if points else []
    by_kind = [0] * len(KINDS)
    start = counted = 0
    for end in bounds:
        levels = replay.allocated_bytes[start:end]
        highest_event = start + levels.index(max(levels))
        _count(replay, counted, highest_event + 1, by_kind)
        counted = highest_event + 1
        moment = replay.moment(highest_event)
        yield TimelinePoint(
            event=highest_event,
            step=moment.step,
            phase=moment.phase,
            by_kind_bytes=tuple(by_kind),
            allocated_bytes=moment.allocated_bytes,
            reserved_bytes=max(replay.reserved_bytes[start:end]),
        )
        start = end


def _count(replay: Replay, first: int, end: int, by_kind: list[int]) -> None:
    """Add what some events make and free to the bytes of each kind."""
    trace, refused = replay.trace, replay.refused_blocks
    kinds, sizes = trace.kind, trace.requested_bytes
    for code, block in zip(trace.event_kind[first:end], trace.event_arg[first:end], strict=True):
        if code == ALLOC:
            if block not in refused:
                by_kind[kinds[block]] += sizes[block]
        elif code == FREE and block not in refused:
            by_kind[kinds[block]] -= sizes[block]


def largest(parts: Sequence[Part]) -> list[Part]:
    """The parts that hold anything, largest first."""
    return sorted((part for part in parts if part.size_bytes), key=lambda part: -part.size_bytes)
