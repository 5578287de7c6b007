"""When memory that another stream used can be had again.

At the free the allocator puts an event on that stream, and asks before each allocation which events have happened. The
host runs ahead of the card, so they often have not. When they do follows from the time of the ops before (two queues,
timing/queues.py); copies on a side stream are taken to run in the order in which they were issued. At the latest it is
when the host has waited for the stream (`reusable` in the trace).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import replace

from vramcast.allocator import CachingAllocator
from vramcast.allocator.stream_uses import USED_ELSEWHERE
from vramcast.gpus import GpuSpec
from vramcast.memory.clock import FIRST_CALL_SECONDS, FirstCalls
from vramcast.timing.costs import CostModel
from vramcast.timing.host import host_of
from vramcast.timing.queues import Timeline, TwoQueues
from vramcast.timing.step import costs_of, works_of
from vramcast.trace import StepTrace
from vramcast.trace.kept import Return


class AwaitedFrees:
    """The frees that wait, in the order they were made."""

    def __init__(self, trace: StepTrace, allocator: CachingAllocator, when: Return) -> None:
        self._allocator = allocator
        self._rows = trace.calls.event if trace.calls is not None else []
        self._timeline = _timeline(trace)
        self._when = when
        self._waiting: deque[tuple[float, int]] = deque()

    def add(self, event: int, address: int) -> None:
        """The block at `address` is freed at `event`."""
        done = self._done(event)
        if done is None:
            self._allocator.free(address)
        else:
            self._allocator.free_later(address)
            self._waiting.append((done, address))

    def before_allocation(self, event: int) -> None:
        """Take back what the card is done with when the host comes to `event`."""
        if not self._waiting:
            return
        row = self._row(event) + 1
        timeline = self._timeline
        now = timeline.issue_start[row] if timeline is not None and row < len(timeline.issue_start) else float("inf")
        while self._waiting and self._waiting[0][0] <= now:
            self._allocator.free_awaited(self._waiting.popleft()[1])

    def finish(self, address: int) -> None:
        """The host has waited for the streams that used the block at `address`."""
        for place, (_, waiting) in enumerate(self._waiting):
            if waiting == address:
                del self._waiting[place]
                self._allocator.free_awaited(address)
                return

    def wait_for_all(self) -> bool:
        """The host waits for the card; whether there was anything to take back."""
        had = bool(self._waiting)
        while self._waiting:
            self._allocator.free_awaited(self._waiting.popleft()[1])
        return had

    def _done(self, event: int) -> float | None:
        """When the card is done with what it had been given by the event; None where that is taken to be at once."""
        if self._timeline is None or self._when == Return.EARLIEST:
            return None
        if self._when == Return.LATEST:
            return math.inf
        row = self._row(event)
        return self._timeline.end[row] if 0 <= row < len(self._timeline.end) else None

    def _row(self, event: int) -> int:
        """The last op that was done before the event; -1 before the first one that is known."""
        return bisect_right(self._rows, event) - 1


def awaited_frees(trace: StepTrace, allocator: CachingAllocator, when: Return) -> AwaitedFrees | None:
    """None where no tensor was used on a second stream."""
    return AwaitedFrees(trace, allocator, when) if USED_ELSEWHERE in trace.labels else None


_COLLECTIVES = ("c10d.", "_c10d_functional.")


def _timeline(trace: StepTrace) -> Timeline | None:
    """None where times are not known. That is so in a distributed job: what its hooks and collectives take of the host
    is not measured, and on an H200 the host was hardly ahead of FSDP's kernels."""
    calls = trace.calls
    if calls is None or any(op.startswith(_COLLECTIVES) for op in calls.ops):
        return None
    model = CostModel.for_gpu(GpuSpec.from_dict(trace.gpu))
    host = host_of(model.calibration)
    works = works_of(calls, range(len(calls)), costs_of(calls, model), host)
    for row in FirstCalls().among(calls, range(len(calls))):
        works[row] = replace(works[row], host_seconds=works[row].host_seconds + FIRST_CALL_SECONDS)
    return TwoQueues(host.latencies).run(works)
