"""Two queues: the host issues ops one after the other, the card runs their kernels in that order.

The host runs ahead until the launch queue is full or it has to wait for a result; the card stands still while it has
nothing to run. Which of the two a step waits for comes out of this, op by op.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

LAUNCH_QUEUE = 1024
"""Launches that can wait for the card before the host blocks, as seen with CUDA's driver."""


@dataclass(frozen=True, slots=True)
class Work:
    """One row of a step."""

    host_seconds: float
    device_seconds: float
    kernels: int
    waits: bool
    """The host waits until the card has done everything, this row too."""


@dataclass(frozen=True, slots=True)
class Latencies:
    launch_seconds: float
    """From the end of a launch on the host until the kernel can start."""
    gap_seconds: float
    """Between two kernels that wait in the queue."""
    wait_seconds: float
    """What it takes the host to notice that the card is done."""


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """When each row was issued and run, in seconds from the beginning of the step."""

    issue_start: array[float]
    issue_end: array[float]
    start: array[float]
    end: array[float]
    """Rows without a kernel have the end of the one before."""
    host_end: float
    device_end: float

    @property
    def seconds(self) -> float:
        return max(self.host_end, self.device_end)


class TwoQueues:
    """The state of both between two steps."""

    def __init__(self, latencies: Latencies, depth: int = LAUNCH_QUEUE) -> None:
        self._latencies = latencies
        self._depth = depth
        self.host = 0.0
        self.device = 0.0
        self._ends: list[float] = []

    def run(self, works: Sequence[Work]) -> Timeline:
        """One step; times count from where the host is now."""
        launch, gap, wait = (
            self._latencies.launch_seconds,
            self._latencies.gap_seconds,
            self._latencies.wait_seconds,
        )
        origin, host, device, ends, depth = self.host, self.host, self.device, self._ends, self._depth
        issue_start, issue_end, starts, done = (array("d") for _ in range(4))
        note_issue, note_issued = issue_start.append, issue_end.append
        note_start, note_done = starts.append, done.append
        # On the hot path: comparisons instead of min() and max(), which cost several times as much.
        for work in works:
            note_issue(host - origin)
            kernels = work.kernels
            begun = host
            host += work.host_seconds
            if kernels:
                device_seconds = work.device_seconds
                full = len(ends) + kernels - depth if kernels < depth else len(ends)
                if full > 0 and ends[full - 1] > host:
                    host = ends[full - 1]
                # The first kernel can start before the last one is launched.
                start = begun + (host - begun) / kernels + launch
                if device + gap > start:
                    start = device + gap
                end = start + device_seconds + (kernels - 1) * gap
                last = host + launch + device_seconds / kernels
                if last > end:
                    end = last
                for number in range(kernels - 1, 0, -1):
                    ends.append(end - device_seconds * number / kernels)
                ends.append(end)
                device = end
                note_start(start - origin)
            else:
                note_start(device - origin)
            if work.waits:
                host = (device if device > host else host) + wait
            note_issued(host - origin)
            note_done(device - origin)
        if len(ends) > depth:
            del ends[: len(ends) - depth]
        self.host, self.device = host, device
        return Timeline(issue_start, issue_end, starts, done, host - origin, device - origin)

    def join(self) -> None:
        """The host waits for the card, as a measurement does between steps."""
        self.host = self.device = max(self.host, self.device)


def steady(works: Sequence[Work], latencies: Latencies, rounds: int = 3) -> tuple[Timeline, float]:
    """The last of a few steps in a row, and the time from one step to the next."""
    queues = TwoQueues(latencies)
    timeline, before = queues.run(works), 0.0
    for _ in range(rounds - 1):
        before = max(queues.host, queues.device)
        timeline = queues.run(works)
    return timeline, max(queues.host, queues.device) - before


def alone(works: Sequence[Work], latencies: Latencies) -> Timeline:
    """One step between two synchronisations."""
    return TwoQueues(latencies).run(works)


def longest_seconds(works: Sequence[Work], latencies: Latencies) -> float:
    """What a step takes if nothing overlaps: host, card, and every launch, gap and wait one after the other. However
    its parts overlap, no step takes longer."""
    launch, gap, wait = latencies.launch_seconds, latencies.gap_seconds, latencies.wait_seconds
    return sum(
        work.host_seconds
        + (launch + work.device_seconds + work.kernels * gap if work.kernels else 0.0)
        + (wait if work.waits else 0.0)
        for work in works
    )
