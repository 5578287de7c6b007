"""What a combination would take, roughly, from the trace of another batch: only to say what to trace next.

Runs that differ in batch, allocator setting or optimizer share one trace. Blocks of the batch grow with it; those of
the weights do not; optimizer state is what an option says is left of it; expandable segments reserve what is
allocated. Whatever is printed has been traced as it is.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable
from dataclasses import dataclass

from vramcast.advice.combination import Combination
from vramcast.errors import VramcastError
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory.prediction import Prediction, context_on
from vramcast.memory.replay import replay
from vramcast.trace import StepTrace
from vramcast.trace.schema import KINDS

NO_LIMIT = 2**60
_GROWS = tuple(KINDS.index(kind) for kind in ("saved activations", "temporaries", "inputs", "outputs/other"))
_STATE, _GRADIENTS = KINDS.index("optimizer state"), KINDS.index("gradients")


@dataclass(frozen=True, slots=True)
class _Line:
    at_one: float
    for_each: float

    def at(self, batch: float) -> float:
        return self.at_one + self.for_each * (batch - 1)


@dataclass(frozen=True, slots=True)
class _Run:
    """One trace, and lines through what it takes at two batches."""

    reserved: _Line
    allocated: _Line
    state_bytes: int
    gradients_bytes: int
    """Free during the forward pass where nothing is accumulated."""
    context_bytes: int


class Estimates:
    def __init__(self, job: Job, gpu: GpuSpec, steps: int, progress: Callable[[str], None]) -> None:
        self._job, self._gpu, self._steps, self._progress = job, gpu, steps, progress
        self._runs: dict[tuple[str, ...], _Run | None] = {}
        self._learnt: dict[tuple[object, ...], int] = {}
        self.refused: dict[str, str] = {}
        self.n_traced = 0

    def device_bytes(self, one: Combination) -> int | None:
        """None: the model cannot do that."""
        run = self._run(one)
        if run is None:
            return None
        line = run.allocated if one.expandable else run.reserved
        size = line.at(one.batch(self._job) * one.activations_ratio) - run.state_bytes * (1 - one.state_ratio)
        if one.accumulation(self._job) == 1 < self._accumulation():
            size -= run.gradients_bytes
        return round(size) + run.context_bytes + self._learnt.get(self._alike(one), 0)

    def learn(self, one: Combination, found: Prediction) -> None:
        """A real trace is there: combinations like it are as far off as it was."""
        before = self.device_bytes(one)
        if before is not None:
            key = self._alike(one)
            self._learnt[key] = self._learnt.get(key, 0) + found.device_bytes - before

    def _alike(self, one: Combination) -> tuple[object, ...]:
        return one.traced_knobs, one.accumulation(self._job) == 1, one.expandable, one.state_ratio

    def _accumulation(self) -> int:
        """Two passes show what accumulating takes."""
        together = self._job.effective_sizes["batch"] * self._job.accumulation
        return 2 if self._job.task == "training" and together > 1 else self._job.accumulation

    def _run(self, one: Combination) -> _Run | None:
        key = one.traced_knobs
        if key not in self._runs:
            if any(text in self.refused for text in key):
                self._runs[key] = None
            else:
                self._runs[key] = self._trace(one)
        return self._runs[key]

    def _trace(self, one: Combination) -> _Run | None:
        from vramcast.jobs.tracing import trace_job

        self._progress(f"tracing {' + '.join(one.traced_knobs) or 'the job with accumulation'}")
        changes = Combination(one.traced).changes | {"accumulation": self._accumulation()}
        try:
            job = with_overrides(self._job, changes)
            self.n_traced += 1
            trace = trace_job(job, self._gpu, steps=self._steps, limit_bytes=NO_LIMIT).trace
        except VramcastError as error:
            self.refused[one.traced_knobs[-1] if one.traced_knobs else "accumulation"] = str(error)
            return None
        return self._lines(trace, job.effective_sizes["batch"])

    def _lines(self, trace: StepTrace, batch: int) -> _Run:
        other = max(1, batch // 2) if batch > 1 else 2
        here, there = replay(trace, None, None), replay(_scaled(trace, other / batch), None, None)

        def line(a: int, b: int) -> _Line:
            slope = (a - b) / (batch - other)
            return _Line(a - slope * (batch - 1), slope)

        alive = here.live_blocks(here.peak_reserved.event)
        return _Run(
            reserved=line(here.peak_reserved.reserved_bytes, there.peak_reserved.reserved_bytes),
            allocated=line(here.peak_allocated.allocated_bytes, there.peak_allocated.allocated_bytes),
            state_bytes=sum(trace.requested_bytes[block] for block in alive if trace.kind[block] == _STATE),
            gradients_bytes=_held_at_end(trace, _GRADIENTS),
            context_bytes=context_on(trace, self._gpu),
        )


def _held_at_end(trace: StepTrace, kind: int) -> int:
    rows = zip(trace.requested_bytes, trace.kind, trace.died_event, strict=True)
    return sum(size for size, one, died in rows if one == kind and died < 0)


def _scaled(trace: StepTrace, factor: float) -> StepTrace:
    """The blocks that grow with the batch, at another one."""
    sizes = array("q", trace.requested_bytes)
    for block, kind in enumerate(trace.kind):
        if kind in _GROWS and trace.phases[trace.phase[block]] != "optimizer":
            sizes[block] = max(1, round(sizes[block] * factor))
    unknown = array("i", bytes(array("i").itemsize * trace.n_blocks))
    return dataclasses.replace(trace, requested_bytes=sizes, shapes=("",), shape=unknown)
