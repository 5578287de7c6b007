"""A queue for each stream, where collectives run beside kernels: what waits for what is as the program had it.

The host issues rows one after the other as in `queues.py`. Each stream runs its own rows in order; events join them.
The step is told along the default stream: what runs beside it takes time only where the default stream waits for it.
Kernels of two streams are taken not to slow each other down.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.gpus import GpuSpec
from vramcast.timing.collectives import Collective
from vramcast.timing.queues import Latencies, Timeline, Work
from vramcast.trace.calls import BACKWARD_END, COMMUNICATION, RECORD, STREAM, WAIT, OpCalls

MAIN = 0
OWN_QUEUE = "own"
"""A collective that the program goes on beside: NCCL's own stream runs it."""
WAIT_TENSOR = "_c10d_functional.wait_tensor"


@dataclass(frozen=True, slots=True)
class Switch(Work):
    """What follows is issued to this stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Record(Work):
    event: tuple[int, int]
    """Stream and number."""


@dataclass(frozen=True, slots=True)
class Wait(Work):
    stream: int
    events: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Communicate(Work):
    own_queue: bool


@dataclass(frozen=True, slots=True)
class Join(Work):
    """The stream waits for all collectives that run beside it."""


def has_collectives(calls: OpCalls) -> bool:
    return COMMUNICATION in calls.ops


def stream_work(op: str, arguments: str, work: Work, gpu: GpuSpec) -> Work:
    """A row as work for these queues; most are what they are for one queue."""
    words = arguments.split()
    host, nothing = work.host_seconds, (0.0, 0, False)
    if op == STREAM:
        return Switch(host, *nothing, int(words[0]))
    if op == RECORD:
        return Record(host, *nothing, (int(words[0]), int(words[1])))
    if op == WAIT:
        events = tuple((int(stream), int(number)) for stream, number in (word.split(":") for word in words[1:]))
        return Wait(host, *nothing, int(words[0]), events)
    if op == COMMUNICATION:
        kind, size, ranks, nodes, queue = words
        seconds = Collective(kind, int(size), int(ranks), int(nodes)).seconds(gpu)
        return Communicate(host, seconds, 0, False, queue == OWN_QUEUE)
    if op == BACKWARD_END or op.startswith(WAIT_TENSOR):
        return Join(host, work.device_seconds, work.kernels, work.waits)
    return work


class StreamQueues:
    """The state of all queues between two steps."""

    def __init__(self, latencies: Latencies) -> None:
        self._latencies = latencies
        self.host = 0.0
        self._ends: dict[int, float] = {MAIN: 0.0}
        self._own = 0.0
        self._events: dict[tuple[int, int], float] = {}
        self._stream = MAIN

    @property
    def device(self) -> float:
        return max(*self._ends.values(), self._own)

    def run(self, works: Sequence[Work]) -> Timeline:
        """One step; times count from where the host is now."""
        origin = self.host
        issue_start, issue_end, starts, done = (array("d") for _ in range(4))
        for work in works:
            issue_start.append(self.host - origin)
            start = self._issue(work)
            starts.append(start - origin)
            issue_end.append(self.host - origin)
            done.append(self._ends[MAIN] - origin)
        return Timeline(issue_start, issue_end, starts, done, self.host - origin, self.device - origin)

    def _issue(self, work: Work) -> float:
        """Run one row; when the default stream begins with it, or with nothing."""
        ends, before = self._ends, self._ends[MAIN]
        begun = self.host
        self.host += work.host_seconds
        match work:
            case Switch():
                self._stream = work.stream
                ends.setdefault(work.stream, 0.0)
            case Record():
                self._events[work.event] = max(ends.get(work.event[0], 0.0), self.host)
            case Wait():
                latest = max((self._events.get(event, 0.0) for event in work.events), default=0.0)
                ends[work.stream] = max(ends.get(work.stream, 0.0), latest)
            case Communicate():
                self._communicate(work)
            case _:
                if isinstance(work, Join):
                    ends[self._stream] = max(ends[self._stream], self._own)
                before = self._launch(work, begun) if work.kernels else before
        if work.waits:
            self.host = max(self.host, self.device) + self._latencies.wait_seconds
        return min(before, ends[MAIN]) if self._stream == MAIN or isinstance(work, Wait) else ends[MAIN]

    def _communicate(self, work: Communicate) -> None:
        ready = max(self._ends[self._stream], self.host + self._latencies.launch_seconds)
        if work.own_queue:
            self._own = max(self._own, ready) + work.device_seconds
        else:
            self._ends[self._stream] = ready + work.device_seconds

    def _launch(self, work: Work, begun: float) -> float:
        """Kernels on the current stream, as `TwoQueues` runs them; when the default stream begins with them."""
        launch, gap = self._latencies.launch_seconds, self._latencies.gap_seconds
        start = max(begun + (self.host - begun) / work.kernels + launch, self._ends[self._stream] + gap)
        end = start + work.device_seconds + (work.kernels - 1) * gap
        self._ends[self._stream] = max(end, self.host + launch + work.device_seconds / work.kernels)
        return start if self._stream == MAIN else self._ends[MAIN]


def steady_streams(works: Sequence[Work], latencies: Latencies, rounds: int = 3) -> tuple[Timeline, float]:
    """The last of a few steps in a row, and the time from one step to the next."""
    queues = StreamQueues(latencies)
    timeline, before = queues.run(works), 0.0
    for _ in range(rounds - 1):
        before = max(queues.host, queues.device)
        timeline = queues.run(works)
    return timeline, max(queues.host, queues.device) - before
