"""The largest batch of a job that fits a card, from a few traces.

Two small batches are traced, every other batch is worked out from them (memory/scaling.py), and the answer is traced
for real. Where that trace is not what was worked out, it takes the place of one of the two, and the search goes on;
where batches run differently from each other, real traces are bisected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramcast.errors import UsageError
from vramcast.gpus import GpuSpec
from vramcast.jobs.fields import LARGEST_SIZE
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory.longer import lengthened
from vramcast.memory.prediction import context_on
from vramcast.memory.replay import highest_without_workspaces, replay
from vramcast.memory.scaling import DifferentRuns, ScaledTrace, same_sizes
from vramcast.trace import StepTrace

Progress = Callable[[str], None]

NO_LIMIT = 2**60
_TRIES = 4
"""Guesses that may be wrong by a little before real traces are bisected: workspaces do not lie on a line."""
_FIRST = (2, 3)
"""A batch of one is often a case of its own: dimensions of size one are dropped, contiguous by chance, broadcast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    batch: int
    """0: not even one sample fits."""
    device_bytes: int
    """What it takes on the card, context included; for 0, what one sample would need."""
    limit_bytes: int
    traces: int
    """How many runs were traced for it."""
    worked_out: bool
    """The trace of this batch is as two others said, so that one more sample was worked out and not traced."""


class Batches:
    """Traces of one job at different batches, kept, and what follows for all the others."""

    def __init__(
        self,
        job: Job,
        *,
        steps: int = 3,
        allocator_conf: str | None = None,
        progress: Progress = lambda text: None,
        where: str = "the options",
    ) -> None:
        if "batch" not in job.effective_sizes:
            raise UsageError(f"{job.name}: it has no batch to change")
        self.job = job
        self._steps = steps
        self._conf = allocator_conf if allocator_conf is not None else job.allocator_conf
        self._progress = progress
        self._where = where
        self._traces: dict[tuple[object, ...], dict[int, StepTrace]] = {}
        self._known: dict[tuple[int, str, int], tuple[bool, int]] = {}
        self.n_traced = 0

    def at(self, batch: int) -> Job:
        return with_overrides(self.job, {"sizes.batch": batch}, self._where)

    def trace(self, batch: int, gpu: GpuSpec) -> StepTrace:
        """Of this batch, without a limit, and as long as the verdict needs it."""
        known = self._traces.setdefault(_kernels_of(gpu), {})
        if batch not in known:
            known[batch] = self._run(batch, gpu, NO_LIMIT)
        return known[batch]

    def _run(self, batch: int, gpu: GpuSpec, limit_bytes: int) -> StepTrace:
        from vramcast.jobs.tracing import trace_job

        self._progress(f"batch {batch:,} on {gpu.short_name}")
        self.n_traced += 1
        traced = trace_job(self.at(batch), gpu, steps=self._steps, allocator_conf=self._conf, limit_bytes=limit_bytes)
        return lengthened(traced.trace)

    def needs(self, batch: int, gpu: GpuSpec) -> tuple[bool, int]:
        """Whether it fits, and the bytes it takes on the card, or would take."""
        key = (batch, gpu.id, gpu.total_memory_bytes)
        if key not in self._known:
            self._known[key] = self._work_out(batch, gpu)
        return self._known[key]

    def _work_out(self, batch: int, gpu: GpuSpec) -> tuple[bool, int]:
        trace = self.trace(batch, gpu)
        context_bytes = context_on(trace, gpu)
        capacity_bytes = gpu.total_memory_bytes - context_bytes
        run = replay(trace, self._conf, capacity_bytes)
        if not run.completed and _convolves(trace) and highest_without_workspaces(trace) <= capacity_bytes:
            # Convolutions do with smaller workspaces when they must.
            limited = replay(self._run(batch, gpu, capacity_bytes), self._conf, capacity_bytes)
            run = limited if limited.completed else run
        fits = run.completed
        shown = run if fits else replay(trace, self._conf, None)
        return fits, shown.peak_reserved.reserved_bytes + context_bytes

    def largest(self, gpu: GpuSpec, most: int = LARGEST_SIZE) -> LargestBatch:
        """The largest batch up to `most` that fits `gpu`."""
        before = self.n_traced
        fitting, below = 0, most + 1  # traced: this one fits, that one does not
        worked_out = False
        tries = 0
        while below - fitting > 1:
            scaled = self._line(gpu, fitting, below) if tries < _TRIES else None
            if scaled is not None:
                guess = self._guess(scaled, gpu, fitting, below)
            else:
                guess = (fitting + below) // 2 if below <= most else min(most, 2 * fitting or 1)
            tries += 1
            fits, _ = self.needs(guess, gpu)
            if not fits:
                below = guess
                continue
            fitting = guess
            if scaled is not None and guess + 1 < below and self._holds(scaled, guess, gpu):
                # The line is right here, so it says what one more sample would do.
                worked_out = not self._fits(scaled.at(guess + 1), gpu)
                below = guess + 1 if worked_out else below
        _, device_bytes = self.needs(max(1, fitting), gpu)
        return LargestBatch(
            batch=fitting,
            device_bytes=device_bytes,
            limit_bytes=gpu.total_memory_bytes,
            traces=self.n_traced - before,
            worked_out=worked_out,
        )

    def _line(self, gpu: GpuSpec, fitting: int, below: int) -> ScaledTrace | None:
        """Through the two traced batches that are nearest to the answer: of this card, or, before there is one, of
        another."""
        known = self._traces.get(_kernels_of(gpu), {})
        if len(known) < 2:
            others = [traces for traces in self._traces.values() if len(traces) > 1]
            if others:
                known = others[0]
            else:
                for batch in _FIRST:
                    self.trace(batch, gpu)
                known = self._traces[_kernels_of(gpu)]
        batches = sorted((batch for batch in known if batch > 1), key=lambda batch: abs(batch - fitting))
        for high in batches:
            for low in batches:
                if low < high:
                    try:
                        return ScaledTrace(known[low], known[high], low, high)
                    except DifferentRuns:
                        continue
        return None

    def _guess(self, scaled: ScaledTrace, gpu: GpuSpec, fitting: int, below: int) -> int:
        """The next batch to trace: strictly between the one that fits and the one that does not."""
        capacity_bytes = gpu.total_memory_bytes - context_on(scaled.low, gpu)
        guess = scaled.largest(lambda trace: self._fits(trace, gpu), capacity_bytes, below)
        return min(max(guess, fitting + 1), below - 1)

    def _holds(self, scaled: ScaledTrace, batch: int, gpu: GpuSpec) -> bool:
        """The trace is what the line says, or at least reserves the same."""
        expected, traced = scaled.at(batch), self.trace(batch, gpu)
        return same_sizes(expected, traced) or _peak(expected, self._conf) == _peak(traced, self._conf)

    def _fits(self, trace: StepTrace, gpu: GpuSpec) -> bool:
        return replay(trace, self._conf, gpu.total_memory_bytes - context_on(trace, gpu)).completed


def _convolves(trace: StepTrace) -> bool:
    return any("convolution" in op for op in trace.ops)


def _peak(trace: StepTrace, conf: str | None) -> int:
    return replay(trace, conf, None).peak_reserved.reserved_bytes


def _kernels_of(gpu: GpuSpec) -> tuple[object, ...]:
    """What the choice of kernels and workspaces depends on: cards that agree in it share their traces."""
    return gpu.compute_capability, gpu.sm_count, gpu.l2_bytes
