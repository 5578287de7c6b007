"""How far the host and the card have come while a program issues its ops: for what depends on the time in a run.

The first call of an op loads its kernels, so first steps take longer than the step that is predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vramcast.gpus import GpuSpec
from vramcast.timing.costs import CostModel
from vramcast.timing.host import host_of
from vramcast.timing.step import costs_of, works_of
from vramcast.timing.streams import StreamQueues
from vramcast.trace.calls import MARKS, OpCalls

FIRST_CALL_SECONDS = 0.01
"""What it takes to load the kernels of an op when it is called first: the first step of the workloads in
lab/data/records/times takes 0.4 to 1.5 s longer than the next ones, with 40 to 100 ops."""


class FirstCalls:
    """Which rows call an op for the first time."""

    def __init__(self, is_known: Callable[[str], bool] = lambda op: False) -> None:
        self._is_known = is_known
        self._seen: set[str] = set()

    def among(self, calls: OpCalls, rows: range) -> list[int]:
        first = []
        for row in rows:
            op = calls.ops[calls.call[row]]
            if op not in self._seen and op not in MARKS:
                self._seen.add(op)
                if not self._is_known(op):
                    first.append(row)
        return first


class Clock:
    """The state of host and card after the ops so far."""

    def __init__(self, gpu: GpuSpec, is_known: Callable[[str], bool]) -> None:
        self._gpu = gpu
        self._model = CostModel.for_gpu(gpu)
        self._host = host_of(self._model.calibration)
        self._queues = StreamQueues(self._host.latencies)
        self._first_calls = FirstCalls(is_known)

    @property
    def host_seconds(self) -> float:
        return self._queues.host

    @property
    def card_seconds(self) -> float:
        """When the card is done with all it was given."""
        return self._queues.device

    def run(self, calls: OpCalls, rows: range) -> None:
        """The program issues these."""
        works = works_of(calls, rows, costs_of(calls, self._model), self._host, self._gpu)
        for row in self._first_calls.among(calls, rows):
            work = works[row - rows.start]
            works[row - rows.start] = replace(work, host_seconds=work.host_seconds + FIRST_CALL_SECONDS)
        self._queues.run(works)
