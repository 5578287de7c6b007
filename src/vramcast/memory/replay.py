"""Feed a trace through the allocator, and note what it holds after every event."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from vramcast.allocator import AllocatorConf, CachingAllocator, OutOfMemory
from vramcast.allocator.device import SegmentEvent
from vramcast.allocator.driver_events import DRIVER_EVENTS
from vramcast.allocator.private_pools import read_mark
from vramcast.allocator.snapshot import Segment
from vramcast.allocator.stream_uses import USED_ELSEWHERE
from vramcast.allocator.trials import trials_in, try_out
from vramcast.memory.awaited_frees import awaited_frees
from vramcast.trace.kept import Return
from vramcast.trace.schema import ALLOC, EMPTY_CACHE, FREE, KINDS, MARK, OOM, REUSABLE, StepTrace

_WORKSPACES = KINDS.index("workspaces")


@dataclass(frozen=True, slots=True)
class Moment:
    """What was held just after one event, and what the run was doing."""

    event: int
    step: int
    phase: str
    op: str
    module: str
    requested_bytes: int
    """What the run asked for and has not freed."""
    allocated_bytes: int
    """The same in whole blocks."""
    reserved_bytes: int
    """What the allocator holds from the driver."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An allocation that the card could not serve."""

    at: Moment
    """`at.op` and the rest name the allocation; its levels are those before it."""
    block: int
    tried_bytes: int
    survived: bool
    """The traced run was refused here too and went on; otherwise the replay ends here."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The levels after every event. After a refusal that the run did not survive, the columns end."""

    trace: StepTrace
    conf: str
    capacity_bytes: int | None
    requested_bytes: array[int]
    allocated_bytes: array[int]
    reserved_bytes: array[int]
    refusals: tuple[Refusal, ...]
    retries: int
    """How often cached memory was given back to the driver to make room."""
    peak_allocated: Moment
    peak_reserved: Moment
    """Where reserved memory is highest; of all such events the one with the most allocated."""
    refused_blocks: frozenset[int] = field(default_factory=frozenset)
    segments: tuple[Segment, ...] = ()
    """At the end, where that was asked for."""
    addresses: Sequence[int] = ()
    """Of every block; of those that were refused or not made yet 0. Where that was asked for."""
    segment_events: tuple[tuple[int, SegmentEvent], ...] = ()
    """What was taken from the driver and given back, each with its event. Where that was asked for."""

    @property
    def completed(self) -> bool:
        return all(refusal.survived for refusal in self.refusals)

    @property
    def n_events(self) -> int:
        return len(self.reserved_bytes)

    @property
    def fullest(self) -> Moment:
        """Where an account is taken: at the peak of reserved memory, unless most was free again by then. The run may
        end soon after a small allocation that has raised it, and the next step fills what is held then."""
        if 2 * self.peak_reserved.allocated_bytes < self.peak_allocated.allocated_bytes:
            return self.peak_allocated
        return self.peak_reserved

    def moment(self, event: int) -> Moment:
        """The levels after `event`, and the allocation at or before it."""
        return _moment(self.trace, event, self.requested_bytes, self.allocated_bytes, self.reserved_bytes)

    def live_blocks(self, event: int) -> list[int]:
        """The blocks that are alive just after `event`, in the order they were made."""
        trace, refused = self.trace, self.refused_blocks
        pairs = zip(trace.born_event, trace.died_event, strict=True)
        alive = [block for block, (born, died) in enumerate(pairs) if born <= event and not -1 < died <= event]
        return [block for block in alive if block not in refused] if refused else alive


def replay(
    trace: StepTrace,
    conf: str | None = None,
    capacity_bytes: int | None = None,
    *,
    with_trials: bool = False,
    with_layout: bool = False,
    when: Return = Return.LIKELY,
) -> Replay:
    """Replay under `conf` (the trace's own when None) on a card that gives at most `capacity_bytes` (None: no end).

    `with_trials`: also what libraries only try out and can do without. `with_layout`: also where everything lies at the
    end. `when`: memory that two streams use comes back.
    """
    conf = trace.allocator_conf if conf is None else conf
    allocator = CachingAllocator(
        capacity_bytes,
        AllocatorConf.parse(conf),
        device_total_bytes=trace.gpu.get("total_memory_bytes"),
        torch_version=trace.torch_version,
    )
    malloc, free = allocator.malloc, allocator.free
    sizes, streams = trace.requested_bytes, trace.stream
    addresses = [0] * trace.n_blocks
    requested: list[int] = []
    allocated: list[int] = []
    note_requested, note_allocated = requested.append, allocated.append
    reserved = _Level()
    segment_events: list[tuple[int, SegmentEvent]] = []

    def segment_changed(change: SegmentEvent) -> None:
        reserved.set(len(allocated), allocator.reserved_bytes)
        if with_layout:
            segment_events.append((len(allocated), change))

    allocator.observe_segments(segment_changed)
    refusals: list[Refusal] = []
    refused: set[int] = set()
    trials = trials_in(trace.labels) if with_trials else {}
    awaited = awaited_frees(trace, allocator, when)
    next_free_waits = False

    for code, arg in zip(trace.event_kind, trace.event_arg, strict=True):
        if code == ALLOC:
            if awaited is not None:
                awaited.before_allocation(len(allocated))
            try:
                try:
                    addresses[arg] = malloc(sizes[arg], streams[arg])
                except OutOfMemory:
                    if awaited is None or not awaited.wait_for_all():
                        raise
                    addresses[arg] = malloc(sizes[arg], streams[arg])
            except OutOfMemory as error:
                refused.add(arg)
                refusals.append(_refusal(trace, len(allocated), error))
                if not refusals[-1].survived:
                    break
        elif code == FREE:
            if arg not in refused:
                if next_free_waits and awaited is not None:
                    awaited.add(len(allocated), addresses[arg])
                else:
                    free(addresses[arg])
            next_free_waits = False
        elif code == REUSABLE:
            if awaited is not None:
                awaited.finish(addresses[arg])
        elif code == EMPTY_CACHE:
            if awaited is not None:
                awaited.wait_for_all()
            allocator.empty_cache()
        elif code == MARK:
            label = trace.labels[arg]
            if label in DRIVER_EVENTS:
                allocator.driver_event(label)
            elif label == USED_ELSEWHERE:
                next_free_waits = True
            elif (pool := read_mark(label)) is not None:
                allocator.give_up_pool(pool[0], at_once=pool[1])
            elif arg in trials:
                try_out(allocator, trials[arg])
        note_requested(allocator.requested_bytes)
        note_allocated(allocator.allocated_bytes)

    held = reserved.stretches(len(allocated))
    columns = array("q", requested), array("q", allocated), array("q")
    for level, first, end in held:
        columns[2].extend(array("q", [level]) * (end - first))
    return Replay(
        trace=trace,
        conf=conf,
        capacity_bytes=capacity_bytes,
        requested_bytes=columns[0],
        allocated_bytes=columns[1],
        reserved_bytes=columns[2],
        refusals=tuple(refusals),
        retries=allocator.num_alloc_retries,
        peak_allocated=_moment(trace, _first_highest(columns[1]), *columns),
        peak_reserved=_moment(trace, _highest_reserved(columns[1], held), *columns),
        refused_blocks=frozenset(refused),
        segments=tuple(allocator.segments()) if with_layout else (),
        addresses=addresses if with_layout else (),
        segment_events=tuple(segment_events),
    )


class _Level:
    """A level that changes now and then, kept as stretches of events."""

    def __init__(self) -> None:
        self._events, self._values = [0], [0]

    def set(self, event: int, value: int) -> None:
        """Set the level from this event on; the last of several at one event counts."""
        self._events.append(event)
        self._values.append(value)

    def stretches(self, n_events: int) -> list[tuple[int, int, int]]:
        """(value, first event, end) of each stretch of one value."""
        bounds = pairwise((*self._events, n_events))
        rows = zip(self._values, bounds, strict=True)
        return [(value, first, end) for value, (first, end) in rows if first < end]


def convolves(trace: StepTrace) -> bool:
    """Whether it has kernels that can use smaller workspaces when they must."""
    return any("convolution" in op for op in trace.ops)


def highest_without_workspaces(trace: StepTrace) -> int:
    """What the run asks for at once beside workspaces, which can be smaller on a fuller card."""
    highest = level = 0
    for code, block in zip(trace.event_kind, trace.event_arg, strict=True):
        if code in (ALLOC, FREE) and trace.kind[block] != _WORKSPACES:
            level += trace.requested_bytes[block] if code == ALLOC else -trace.requested_bytes[block]
            highest = max(highest, level)
    return highest


def _refusal(trace: StepTrace, event: int, error: OutOfMemory) -> Refusal:
    # The recorder marks a refusal right after the allocation that was refused.
    refused_before = event + 1 < trace.n_events and trace.event_kind[event + 1] == OOM
    return Refusal(
        at=_moment_of(trace, event, error.allocated_bytes, error.allocated_bytes, error.reserved_bytes),
        block=trace.event_arg[event],
        tried_bytes=error.segment_bytes,
        survived=refused_before and ALLOC in trace.event_kind[event + 1 :],
    )


def _first_highest(column: array[int]) -> int:
    return column.index(max(column)) if column else -1


def _highest_reserved(allocated: array[int], held: Sequence[tuple[int, int, int]]) -> int:
    """`held`: reserved memory by stretches of one level."""
    highest = max((level for level, _, _ in held), default=0)
    event, most = -1, -1
    for level, first, end in held:
        if level == highest and (top := max(allocated[first:end])) > most:
            event, most = allocated.index(top, first), top
    return event


def _moment(trace: StepTrace, event: int, requested: array[int], allocated: array[int], reserved: array[int]) -> Moment:
    if event < 0:
        return Moment(-1, 0, "", "", "", 0, 0, 0)
    return _moment_of(trace, event, requested[event], allocated[event], reserved[event])


def _moment_of(trace: StepTrace, event: int, requested: int, allocated: int, reserved: int) -> Moment:
    """`event` with the names of the allocation at or before it."""
    kinds = trace.event_kind
    last = event
    while last >= 0 and kinds[last] != ALLOC:
        last -= 1
    if last < 0:
        return Moment(event, 0, "", "", "", requested, allocated, reserved)
    block = trace.event_arg[last]
    return Moment(
        event,
        trace.step[block],
        trace.phases[trace.phase[block]],
        trace.ops[trace.op[block]],
        trace.modules[trace.module[block]],
        requested,
        allocated,
        reserved,
    )
