"""A trace continued: its last step again and again, for what only shows after a few more.

Reserved memory can go on growing for several steps after the allocations have become the same from step to step,
because freed blocks come to lie differently each time. Running those steps would find nothing new; replaying them
costs next to nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from itertools import compress
from weakref import WeakKeyDictionary

from vramcast.trace.kept import Return, settled
from vramcast.trace.schema import ALLOC, BLOCK_EVENTS, EMPTY_CACHE, FREE, OOM, REUSABLE, STEP, StepTrace

SETTLED_STEPS = 6
"""As many steps as a measurement makes."""
_LONGEST_PERIOD = 4
"""Optimizer steps in one round of a training loop, e.g. two in a GAN's."""

_MOVES_MEMORY = (ALLOC, FREE, REUSABLE, EMPTY_CACHE)
_BLOCK_COLUMNS = ("requested_bytes", "op", "module", "phase", "kind", "stream", "shape")


@dataclass(frozen=True, slots=True)
class _Round:
    """The events of one round of the loop, from the end of an optimizer step to that of a later one."""

    first_event: int
    end_event: int
    first_block: int
    end_block: int


_known: WeakKeyDictionary[StepTrace, dict[tuple[int, Return], StepTrace]] = WeakKeyDictionary()


def lengthened(trace: StepTrace, steps: int = SETTLED_STEPS, when: Return = Return.LIKELY) -> StepTrace:
    """The trace as it would be after `steps` rounds of its loop, each of one optimizer step or a few; no longer where
    its last rounds differ. What NCCL keeps comes back at that time. Worked out once."""
    known = _known.setdefault(trace, {})
    key = steps, when
    if key not in known:
        longer = _lengthened(settled(trace, when), steps)
        if longer is trace:
            return trace
        known[key] = longer
    return known[key]


def _lengthened(trace: StepTrace, steps: int) -> StepTrace:
    if not trace.steps or OOM in trace.event_kind:
        return trace
    ends = [event + 1 for event in compress(range(trace.n_events), map(STEP.__eq__, trace.event_kind))]
    for period in range(1, _LONGEST_PERIOD + 1):
        if len(ends) <= 2 * period:
            break
        before, last = (_round(trace, ends[-1 - (back + 1) * period], ends[-1 - back * period]) for back in (1, 0))
        if _same(trace, before, last):
            further = steps - trace.steps // period
            return _repeated(trace, last, further) if further > 0 else trace
    return trace


def _round(trace: StepTrace, first_event: int, end_event: int) -> _Round:
    first_block = bisect_left(trace.born_event, first_event)
    return _Round(first_event, end_event, first_block, bisect_left(trace.born_event, end_event))


def _same(trace: StepTrace, before: _Round, last: _Round) -> bool:
    """Whether both rounds allocate and free the same: blocks of their own, or of the round before."""
    blocks = last.end_block - last.first_block
    if blocks != before.end_block - before.first_block:
        return False
    args, sizes, streams = trace.event_arg, trace.requested_bytes, trace.stream
    events, events_before = _events(trace, last), _events(trace, before)
    if [code for code, _ in events] != [code for code, _ in events_before]:
        return False
    for column in (sizes, streams):
        if column[last.first_block : last.end_block] != column[before.first_block : before.end_block]:
            return False
    for (code, event), (_, event_before) in zip(events, events_before, strict=True):
        if code == FREE:
            now, then = args[event], args[event_before]
            if now >= last.first_block:
                if now - then != blocks:
                    return False
            elif not then < before.first_block <= now:
                return False
    return True


def _events(trace: StepTrace, round_: _Round) -> list[tuple[int, int]]:
    """(kind, event) of those that move memory: a loss that is printed now and then only synchronizes."""
    first, end = round_.first_event, round_.end_event
    moves = list(map(_MOVES_MEMORY.__contains__, trace.event_kind[first:end]))
    return list(zip(compress(trace.event_kind[first:end], moves), compress(range(first, end), moves), strict=True))


def _repeated(trace: StepTrace, last: _Round, times: int) -> StepTrace:
    """`last` is repeated right after itself; what followed it in the trace follows the last repetition."""
    blocks = last.end_block - last.first_block
    kinds, args = trace.event_kind[: last.end_event], trace.event_arg[: last.end_event]
    for number in range(1, times + 1):
        kinds += trace.event_kind[last.first_event : last.end_event]
        args += _shifted(trace, last.first_event, last.end_event, last.first_block - blocks, number * blocks)
    kinds += trace.event_kind[last.end_event :]
    args += _shifted(trace, last.end_event, trace.n_events, last.first_block, times * blocks)
    columns = {}
    for name in _BLOCK_COLUMNS:
        column: array[int] = getattr(trace, name)
        again = column[last.first_block : last.end_block]
        columns[name] = column[: last.end_block] + again * times + column[last.end_block :]
    return trace.changed(event_kind=kinds, event_arg=args, **columns)


def _shifted(trace: StepTrace, first: int, end: int, from_block: int, by: int) -> array[int]:
    """The arguments of some events, blocks from `from_block` on renumbered."""
    rows = zip(trace.event_kind[first:end], trace.event_arg[first:end], strict=True)
    return array("q", [arg + by if arg >= from_block and code in BLOCK_EVENTS else arg for code, arg in rows])
