"""Replay of a recorded history, compared with the recording after every event."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NoReturn

from vramcast.allocator.addresses import AddressSpace
from vramcast.allocator.caching import CachingAllocator
from vramcast.allocator.conf import AllocatorConf
from vramcast.allocator.device import SegmentEvent
from vramcast.allocator.errors import OutOfMemory
from vramcast.allocator.history import GIVES_BACK, TAKES, Event, History

COMPARED_STATS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "allocated_bytes.all.allocated",
    "active_bytes.all.current",
    "inactive_split_bytes.all.current",
    "requested_bytes.all.current",
    "requested_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "reserved_bytes.small_pool.current",
    "reserved_bytes.all.allocated",
    "segment.all.current",
    "allocation.all.current",
    "allocation.all.peak",
    "allocation.all.allocated",
    "num_alloc_retries",
    "num_ooms",
    "num_device_alloc",
    "num_device_free",
)
"""Statistics of the recording process that the replay has to end with as well."""

_FALLBACK_ADDRESS = 0x700000000000
"""Where a segment is put that the recording does not have; the mismatch is reported right after."""


@dataclass(frozen=True)
class Mismatch:
    """The first event at which the replay parts from the recording."""

    index: int
    what: str
    recorded: str
    replayed: str
    reserved_bytes: int
    """What the recording had reserved after this event."""
    context: tuple[str, ...]
    """The events around it."""

    def __str__(self) -> str:
        lines = [
            f"event {self.index}: {self.what}",
            f"  recorded: {self.recorded}",
            f"  replayed: {self.replayed}",
            f"  reserved after it: {self.reserved_bytes:,} bytes",
            *(f"    {line}" for line in self.context),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class ReplayReport:
    events: int
    """Events compared: all of them, or those before the mismatch."""
    allocs: int
    segment_events: int
    ooms: int
    empty_caches: int
    """Times the program must have called torch.cuda.empty_cache."""
    num_alloc_retries: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    mismatch: Mismatch | None
    stat_differences: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Final statistics that differ: (recorded, replayed)."""

    @property
    def exact(self) -> bool:
        return self.mismatch is None and not self.stat_differences


def replay_history(history: History, *, torch_version: str | None = None) -> ReplayReport:
    """Replay a history with the allocator of the torch it was recorded with (or another one)."""
    emptied_before: set[int] = set()
    while True:
        replay = _Replay(history, emptied_before, torch_version or history.header.torch)
        try:
            replay.run()
        except _CacheWasEmptied as assumption:
            emptied_before.add(assumption.index)
        except _Parted as parted:
            return replay.report(parted.mismatch)
        else:
            return replay.report(None)


class _Parted(Exception):
    def __init__(self, mismatch: Mismatch) -> None:
        self.mismatch = mismatch


class _CacheWasEmptied(Exception):
    """Memory given back before an allocation fits better with a call of empty_cache just before it."""

    def __init__(self, index: int) -> None:
        self.index = index


class _Replay:
    """One pass over the events.

    Segment events are not replayed: they collect until the event of the call that caused them, and are then compared
    with what the allocator did during that call.
    """

    def __init__(self, history: History, emptied_before: set[int], torch_version: str) -> None:
        header = history.header
        self.header = header
        self.events = history.events
        self.emptied_before = emptied_before
        self.allocator = CachingAllocator(
            header.capacity_bytes,
            AllocatorConf.parse(header.conf),
            allowed_bytes=header.allowed_bytes,
            device_total_bytes=header.total_bytes,
            torch_version=torch_version,
            address_of_segment=self.address_of_segment,
        )
        self.allocator.observe_segments(self.saw_segment)
        self.fallback = AddressSpace(_FALLBACK_ADDRESS)
        self.expected: tuple[Event, ...] = ()
        self.first_expected = 0
        self.done: list[SegmentEvent] = []
        self.reserved = 0
        self.compared = 0
        self.empty_caches = 0

    def run(self) -> None:
        start = 0
        for index, event in enumerate(self.events):
            if event.action in TAKES or event.action in GIVES_BACK:
                continue
            if event.action in ("alloc", "oom"):
                self.allocate(start, index, event)
            else:
                if start < index:
                    self.empty_cache(start, index)
                if event.action == "free_completed":
                    self.free(index, event)
            self.compared = start = index + 1
        if start < len(self.events):
            self.empty_cache(start, len(self.events))
            self.compared = len(self.events)

    # --- the calls ----------------------------------------------------------------------------------------------

    def allocate(self, start: int, index: int, event: Event) -> None:
        taken = next((i for i in range(start, index) if self.events[i].action in TAKES), index)
        emptied = start in self.emptied_before
        if emptied:
            self.empty_cache(start, taken)
            start = taken
        self.begin(start, index)
        try:
            address = self.allocator.malloc(event.size, event.stream)
        except OutOfMemory:
            address = 0
        if start < taken and not emptied and self.first_difference() is not None:
            raise _CacheWasEmptied(start)
        self.check_segments()
        if (address == 0) != (event.action == "oom"):
            self.part(index, "the outcome differs", event.action, "alloc" if address else "oom")
        if address != event.address:
            self.part(index, "the block lies elsewhere", f"{event.address:#x}", f"{address:#x}")

    def empty_cache(self, start: int, end: int) -> None:
        self.begin(start, end)
        self.allocator.empty_cache()
        self.empty_caches += 1
        self.check_segments()

    def free(self, index: int, event: Event) -> None:
        try:
            self.allocator.free(event.address)
        except ValueError as error:
            self.part(index, "nothing to free", f"{event.address:#x}", str(error))

    # --- comparing ----------------------------------------------------------------------------------------------

    def begin(self, start: int, end: int) -> None:
        self.first_expected = start
        self.expected = self.events[start:end]
        self.done.clear()

    def address_of_segment(self, size: int) -> int:
        """The address of the next segment that the recording takes.

        An expandable one may be found too large for the card at first: it then shows only when a page of it is mapped,
        possibly much later.
        """
        ranges = self.allocator.address_ranges()
        expandable = self.allocator.conf.expandable_segments
        first = self.first_expected + len(self.done)
        for event in self.events[first:] if expandable else self.expected[len(self.done) :]:
            known = any(start <= event.address < start + length for start, length in ranges)
            if event.action in TAKES and not known:
                return event.address
        return self.fallback.reserve(size)

    def saw_segment(self, event: SegmentEvent) -> None:
        self.done.append(event)

    def first_difference(self) -> int | None:
        for i, (recorded, replayed) in enumerate(zip_longest(self.expected, self.done)):
            if recorded is None or replayed is None or tuple(recorded) != tuple(replayed):
                return i
        return None

    def check_segments(self) -> None:
        """Compare reserved memory after each segment event of the call, and at its end."""
        different = self.first_difference()
        for event in self.expected[:different]:
            self.reserved += event.size if event.action in TAKES else -event.size
        if different is not None:
            recorded = [_describe(event) for event in self.expected[different : different + 1]] or ["nothing more"]
            replayed = [_describe(event) for event in self.done[different : different + 1]] or ["nothing more"]
            self.part(self.first_expected + different, "reserved memory differs", recorded[0], replayed[0])
        if self.allocator.reserved_bytes != self.reserved:
            raise AssertionError("reserved bytes do not follow from the segment events")

    def part(self, index: int, what: str, recorded: str, replayed: str) -> NoReturn:
        around = range(max(0, index - 8), min(len(self.events), index + 4))
        context = tuple(f"{'>' if i == index else ' '} {i:6d} {_describe(self.events[i])}" for i in around)
        raise _Parted(Mismatch(index, what, recorded, replayed, self.reserved, context))

    def report(self, mismatch: Mismatch | None) -> ReplayReport:
        stats = self.allocator.memory_stats()
        recorded = self.header.final_stats
        differences = {
            name: (recorded[name], stats[name])
            for name in COMPARED_STATS
            if mismatch is None and name in recorded and recorded[name] != stats[name]
        }
        events = self.events[: self.compared]
        return ReplayReport(
            events=self.compared,
            allocs=sum(event.action == "alloc" for event in events),
            segment_events=sum(event.action in TAKES or event.action in GIVES_BACK for event in events),
            ooms=sum(event.action == "oom" for event in events),
            empty_caches=self.empty_caches,
            num_alloc_retries=self.allocator.num_alloc_retries,
            peak_reserved_bytes=self.allocator.peak_reserved_bytes,
            peak_allocated_bytes=self.allocator.peak_allocated_bytes,
            mismatch=mismatch,
            stat_differences=differences,
        )


def _describe(event: Event | SegmentEvent) -> str:
    return f"{event.action} {event.size:,} bytes at {event.address:#x}, stream {event.stream:#x}"
