"""The same steps in another order: how much the allocator reserves depends on which batch came before which.

Steps that do the same with tensors of other sizes can change places in a trace. Many orders are replayed, which takes a
moment each, where running them would take minutes.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise

from vramcast.memory.replay import replay
from vramcast.trace.schema import ALLOC, FREE, STEP, StepTrace

SHUFFLES = 40
_MOST_EVENTS = 2_000_000
"""Replayed in all."""
_BLOCK_COLUMNS = ("requested_bytes", "op", "module", "phase", "kind", "stream", "shape")


@dataclass(frozen=True, slots=True)
class WorstOrder:
    trace: StepTrace
    """The steps in the order that reserves most; as they were where none reserves more."""
    tried: int
    reserved_bytes: int
    as_run_bytes: int


@dataclass(frozen=True, slots=True)
class _Step:
    first_event: int
    end_event: int
    first_block: int
    end_block: int
    survivors: tuple[int, ...]
    """Blocks that are alive when it ends, counted from its first."""


def worst_order(trace: StepTrace, first: int, end: int) -> WorstOrder | None:
    """Steps `first` to `end` (from 0, the last not included) in many orders; None where one cannot take another's
    place."""
    steps = _steps(trace)
    if first < 1 or end - first < 2 or end >= len(steps) or not _can_change_places(trace, steps, first, end):
        return None
    as_run = replay(trace).peak_reserved.reserved_bytes
    worst, highest, tried = trace, as_run, 1
    sizes = [sum(trace.requested_bytes[step.first_block : step.end_block]) for step in steps[first:end]]
    for order in _orders(sizes):
        if tried * trace.n_events > _MOST_EVENTS:
            break
        other = _reordered(trace, steps, first, [first + place for place in order])
        reserved = replay(other).peak_reserved.reserved_bytes
        tried += 1
        if reserved > highest:
            worst, highest = other, reserved
    return WorstOrder(worst, tried, highest, as_run)


def _orders(sizes: Sequence[int]) -> Iterator[list[int]]:
    rising = sorted(range(len(sizes)), key=sizes.__getitem__)
    yield rising[::-1]
    yield [place for pair in zip(rising, rising[::-1], strict=True) for place in pair][: len(rising)]
    numbers = random.Random(0)
    for _ in range(SHUFFLES):
        yield numbers.sample(range(len(sizes)), len(sizes))


def _steps(trace: StepTrace) -> list[_Step]:
    ends = [event + 1 for event in compress(range(trace.n_events), map(STEP.__eq__, trace.event_kind))]
    blocks = [bisect_left(trace.born_event, event) for event in (0, *ends)]
    steps = []
    for rows in zip((0, *ends), ends, blocks, blocks[1:], strict=False):
        first_event, end_event, first_block, end_block = rows
        died = trace.died_event[first_block:end_block]
        survivors = tuple(place for place, event in enumerate(died) if not -1 < event < end_event)
        steps.append(_Step(first_event, end_event, first_block, end_block, survivors))
    return steps


def _can_change_places(trace: StepTrace, steps: Sequence[_Step], first: int, end: int) -> bool:
    """Each leaves as many blocks to the next, which frees the same of them, and nothing older."""
    if len({len(step.survivors) for step in steps[first - 1 : end]}) != 1:
        return False
    taken: set[frozenset[int]] = set()
    for before, step in pairwise(steps[first - 1 : end + 1]):
        freed = set()
        for event in range(step.first_event, step.end_event):
            block = trace.event_arg[event]
            if trace.event_kind[event] == FREE and block < step.first_block:
                if block < before.first_block:
                    return False
                freed.add(before.survivors.index(block - before.first_block))
        taken.add(frozenset(freed))
    moved = range(steps[first].first_block, steps[end - 1].end_block)
    later = range(steps[end].end_event, trace.n_events)
    return len(taken) == 1 and not any(trace.event_kind[e] == FREE and trace.event_arg[e] in moved for e in later)


def _reordered(trace: StepTrace, steps: Sequence[_Step], first: int, order: Sequence[int]) -> StepTrace:
    """`order`: which step comes first, second and so on from step `first` on. Blocks are numbered as they are made."""
    end = first + len(order)
    start, last = steps[first], steps[end]
    kinds, args = trace.event_kind[: start.first_event], trace.event_arg[: start.first_event]
    columns = {name: getattr(trace, name)[: start.first_block] for name in _BLOCK_COLUMNS}
    before, before_at = steps[first - 1], steps[first - 1].first_block
    for number, step in ((number, steps[number]) for number in (*order, end)):
        here, came_before = len(columns["op"]), steps[number - 1]
        kinds += trace.event_kind[step.first_event : step.end_event]
        for event in range(step.first_event, step.end_event):
            arg = trace.event_arg[event]
            if trace.event_kind[event] not in (ALLOC, FREE):
                args.append(arg)
            elif arg >= step.first_block:
                args.append(here + arg - step.first_block)
            else:
                role = came_before.survivors.index(arg - came_before.first_block)
                args.append(before_at + before.survivors[role])
        for name, column in columns.items():
            column += getattr(trace, name)[step.first_block : step.end_block]
        before, before_at = step, here
    kinds += trace.event_kind[last.end_event :]
    args += trace.event_arg[last.end_event :]
    for name, column in columns.items():
        column += getattr(trace, name)[last.end_block :]
    return trace.changed(event_kind=kinds, event_arg=args, **columns)
