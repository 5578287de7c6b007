"""The largest batch, sequence, resolution or clip of a job that fits a card, from a few traces.

Two batches or three other sizes are traced, every other one is worked out from them (memory/scaling.py), and the answer
is traced for real. Where that trace is not what was worked out, it takes the place of one of them, and the search goes
on; where sizes run differently from each other, real traces are bisected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.errors import UsageError
from vramcast.gpus import GpuSpec
from vramcast.jobs.axes import Axis, batch_axis
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory.longer import SETTLED_STEPS, lengthened
from vramcast.memory.prediction import context_on
from vramcast.memory.replay import Replay, convolves, highest_without_workspaces, replay
from vramcast.memory.scaling import DifferentRuns, ScaledTrace, last_true, same_sizes
from vramcast.trace import StepTrace

Progress = Callable[[str], None]

NO_LIMIT = 2**60
_TRIES = 4
"""Guesses that may be wrong by a little before real traces are bisected: workspaces do not lie on a line."""
_SMALL = 4
"""Up to here it is quicker to trace the next one than to work it out."""
_NEAREST = 5
"""Traces near the answer that a fit is made of."""
_BEYOND = 8
"""Percent: how far above a batch that fits one is looked for that fits though the next does not."""
_PROBES = 8
"""At most so many are tried there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    number: int
    """Of the axis; 0: not even the first fits."""
    device_bytes: int
    """What it takes on the card, context included; for 0, what the first would need."""
    limit_bytes: int
    traces: int
    """How many runs were traced for it."""
    worked_out: bool
    """The trace of this number is as others said, so that the next was worked out and not traced."""

    @property
    def batch(self) -> int:
        """The number, where the axis is the batch."""
        return self.number


class Sizes:
    """Traces of one job at different sizes, kept, and what follows for all the others."""

    def __init__(
        self,
        job: Job,
        axis: Axis,
        *,
        steps: int = 3,
        allocator_conf: str | None = None,
        progress: Progress = lambda text: None,
        where: str = "the options",
        settled_steps: int = SETTLED_STEPS,
    ) -> None:
        """`settled_steps`: how many steps must fit, the last traced one repeated."""
        self.job = job
        self.axis = axis
        self._steps = steps
        self._conf = allocator_conf if allocator_conf is not None else job.allocator_conf
        self._progress = progress
        self._where = where
        self._settled_steps = settled_steps
        self._traces: dict[tuple[object, ...], dict[int, StepTrace]] = {}
        self._known: dict[tuple[int, str, int, int | None], tuple[bool, int]] = {}
        self._squeezed: set[tuple[int, str, int, int | None]] = set()
        """Those that fit only with smaller workspaces."""
        self.n_traced = 0

    def at(self, number: int) -> Job:
        return with_overrides(self.job, self.axis.changes(self.job, number), self._where)

    def trace(self, number: int, gpu: GpuSpec) -> StepTrace:
        """Of this number, without a limit, and as long as the verdict needs it."""
        known = self._traces.setdefault(_kernels_of(gpu), {})
        if number not in known:
            known[number] = self._run(number, gpu)
        return known[number]

    def add(self, number: int, gpu: GpuSpec, trace: StepTrace) -> None:
        """A trace that is there already."""
        self._traces.setdefault(_kernels_of(gpu), {})[number] = self._lengthened(trace)

    def _run(self, number: int, gpu: GpuSpec) -> StepTrace:
        from vramcast.jobs.tracing import trace_job

        self._count(number, gpu)
        traced = trace_job(self.at(number), gpu, steps=self._steps, allocator_conf=self._conf, limit_bytes=NO_LIMIT)
        return self._lengthened(traced.trace)

    def _lengthened(self, trace: StepTrace) -> StepTrace:
        """A step may make several of optimizers, a GAN's two."""
        return lengthened(trace, self._settled_steps * max(1, trace.steps // self._steps))

    def _limited(self, number: int, gpu: GpuSpec, capacity_bytes: int) -> Replay | None:
        """The run that may take no more, every step of it; None where it runs out of memory. Each step finds other room
        and convolutions choose anew."""
        from vramcast.jobs.tracing import trace_under_limit

        self._count(number, gpu)
        steps = max(self._steps, self._settled_steps)
        trace = trace_under_limit(
            self.at(number), gpu, steps=steps, allocator_conf=self._conf, limit_bytes=capacity_bytes
        )
        found = None if trace is None else replay(trace, self._conf, capacity_bytes)
        return found if found is not None and found.completed else None

    def _count(self, number: int, gpu: GpuSpec) -> None:
        sizes = ", ".join(f"{name} {size:,}" for name, size in self.axis.sizes(number).items())
        self._progress(f"{sizes} on {gpu.short_name}")
        self.n_traced += 1

    def needs(self, batch: int, gpu: GpuSpec, limit_bytes: int | None = None) -> tuple[bool, int]:
        """Whether it fits, and the bytes it takes on the card, or would take.

        `limit_bytes` is what PyTorch may reserve at most, instead of what the card has beside the context.
        """
        key = (batch, gpu.id, gpu.total_memory_bytes, limit_bytes)
        if key not in self._known:
            self._known[key] = self._work_out(batch, gpu, limit_bytes)
        return self._known[key]

    def _work_out(self, batch: int, gpu: GpuSpec, limit_bytes: int | None) -> tuple[bool, int]:
        trace = self.trace(batch, gpu)
        capacity_bytes = _capacity(trace, gpu, limit_bytes)
        run = replay(trace, self._conf, capacity_bytes)
        if not run.completed and convolves(trace) and highest_without_workspaces(trace) <= capacity_bytes:
            # Convolutions do with smaller workspaces when they must.
            limited = self._limited(batch, gpu, capacity_bytes)
            if limited is not None:
                run = limited
                self._squeezed.add((batch, gpu.id, gpu.total_memory_bytes, limit_bytes))
        fits = run.completed
        shown = run if fits else replay(trace, self._conf, None)
        return fits, shown.peak_reserved.reserved_bytes + context_on(trace, gpu)

    def is_squeezed(self, number: int, gpu: GpuSpec, limit_bytes: int | None = None) -> bool:
        """It fits, but only with smaller workspaces than it would like."""
        return self.needs(number, gpu, limit_bytes)[0] and (
            (number, gpu.id, gpu.total_memory_bytes, limit_bytes) in self._squeezed
        )

    def capacity(self, number: int, gpu: GpuSpec) -> int:
        """What PyTorch may reserve on the card."""
        return _capacity(self.trace(number, gpu), gpu, None)

    def largest(
        self,
        gpu: GpuSpec,
        most: int | None = None,
        limit_bytes: int | None = None,
        *,
        near: int | None = None,
        traced_beyond: bool = False,
    ) -> Largest:
        """The largest number up to `most` that fits `gpu`, or what PyTorch may reserve of it.

        `near`: what is thought to be the answer, which is traced first. `traced_beyond`: that the next one does not fit
        is seen in a trace of it, not worked out.
        """
        before = self.n_traced
        most = min(self.axis.most, most or self.axis.most)
        fitting, below = 0, most + 1  # traced: this one fits, that one does not
        worked_out = False
        tries = 0
        for guess in self._close_to(near) if near is not None else ():
            if fitting < guess < below:
                fits, _ = self.needs(guess, gpu, limit_bytes)
                fitting, below = (guess, below) if fits else (fitting, guess)
        while below - fitting > 1:
            scaled = self._fit(gpu, fitting) if tries < _TRIES else None
            if worked_out:
                guess, worked_out = fitting + 1, False
            elif scaled is not None:
                guess = self._guess(scaled, gpu, limit_bytes, fitting, below)
            else:
                guess = (fitting + below) // 2 if below <= most else min(most, 2 * fitting or 1)
            tries += 1
            fits, _ = self.needs(guess, gpu, limit_bytes)
            if not fits:
                below = guess
                continue
            fitting = guess
            if scaled is not None and guess + 1 < below and self._holds(scaled, guess, gpu):
                # The fit is right here, so it says what one more would do.
                if self._fits(scaled.at(self.axis.measure(guess + 1)), gpu, limit_bytes):
                    continue
                if convolves(self.trace(guess, gpu)):
                    # Smaller workspaces may make room for more; real traces tell, up to where nothing else fits.
                    below = min(below, self._without_workspaces(scaled, gpu, limit_bytes, guess, below) + 1)
                    tries = _TRIES
                else:
                    worked_out = True
                    below = below if traced_beyond else guess + 1
        if fitting:
            beyond = self._beyond(fitting, gpu, limit_bytes, most)
            fitting, worked_out = beyond, worked_out and beyond == fitting
        _, device_bytes = self.needs(max(1, fitting), gpu, limit_bytes)
        return Largest(
            number=fitting,
            device_bytes=device_bytes,
            limit_bytes=gpu.total_memory_bytes,
            traces=self.n_traced - before,
            worked_out=worked_out,
        )

    def _beyond(self, fitting: int, gpu: GpuSpec, limit_bytes: int | None, most: int) -> int:
        """How blocks come to lie is another matter in each batch, so one may fit though a smaller one does not."""
        reach = fitting * _BEYOND // 100
        stride = -(-reach // _PROBES)
        scaled = self._fit(gpu, fitting) if reach > 1 else None
        number = fitting + stride
        while scaled is not None and number <= min(fitting + reach, most):
            if self._may_fit(scaled, number, gpu, limit_bytes) and self.needs(number, gpu, limit_bytes)[0]:
                fitting = number
            number += stride
        return fitting

    def _may_fit(self, scaled: ScaledTrace, number: int, gpu: GpuSpec, limit_bytes: int | None) -> bool:
        trace = scaled.at(self.axis.measure(number))
        if convolves(trace):
            return highest_without_workspaces(trace) <= _capacity(trace, gpu, limit_bytes)
        return self._fits(trace, gpu, limit_bytes)

    def _close_to(self, near: int) -> tuple[int, ...]:
        """Two numbers to begin with: neighbours, or as far apart as a good guess is off."""
        near = min(max(1, near), self.axis.most)
        return (near, near + 1, near - 1) if near <= _SMALL else (near, near - near // 8)

    def _fit(self, gpu: GpuSpec, fitting: int) -> ScaledTrace | None:
        """Through the traced numbers that are nearest to the answer: of this card, or, before there are enough, of
        another."""
        enough = self.axis.degree + 1
        known = self._traces.get(_kernels_of(gpu), {})
        if len(_usable(known)) < enough:
            others = [traces for traces in self._traces.values() if len(_usable(traces)) >= enough]
            if others:
                known = others[0]
            else:
                known = self._traces.setdefault(_kernels_of(gpu), known)
                for number in self.axis.first:
                    if len(_usable(known)) < enough:
                        self.trace(min(number, self.axis.most), gpu)
        numbers = sorted(_usable(known), key=lambda number: abs(number - fitting))
        for count in range(enough, 1, -1):
            for chosen in itertools.combinations(numbers[:_NEAREST], count):
                measures = {self.axis.measure(number): known[number] for number in chosen}
                if len(measures) == count:
                    try:
                        return ScaledTrace(measures)
                    except DifferentRuns:
                        continue
        return None

    def _guess(self, scaled: ScaledTrace, gpu: GpuSpec, limit_bytes: int | None, fitting: int, below: int) -> int:
        """The next number to trace: strictly between the one that fits and the one that does not."""
        capacity_bytes = _capacity(scaled.traces[scaled.lowest], gpu, limit_bytes)
        guess = scaled.largest(
            lambda trace: self._fits(trace, gpu, limit_bytes), capacity_bytes, below, self.axis.measure
        )
        return min(max(guess, fitting + 1), below - 1)

    def _without_workspaces(
        self, scaled: ScaledTrace, gpu: GpuSpec, limit_bytes: int | None, fitting: int, below: int
    ) -> int:
        """The largest number that could fit if workspaces took nothing."""

        def fits(number: int) -> bool:
            trace = scaled.at(self.axis.measure(number))
            return highest_without_workspaces(trace) <= _capacity(trace, gpu, limit_bytes)

        return last_true(fits, fitting, below)

    def _holds(self, scaled: ScaledTrace, number: int, gpu: GpuSpec) -> bool:
        """The trace is what the fit says, or at least reserves the same."""
        expected, traced = scaled.at(self.axis.measure(number)), self.trace(number, gpu)
        return same_sizes(expected, traced) or _peak(expected, self._conf) == _peak(traced, self._conf)

    def _fits(self, trace: StepTrace, gpu: GpuSpec, limit_bytes: int | None) -> bool:
        return replay(trace, self._conf, _capacity(trace, gpu, limit_bytes)).completed


def _capacity(trace: StepTrace, gpu: GpuSpec, limit_bytes: int | None) -> int:
    return gpu.total_memory_bytes - context_on(trace, gpu) if limit_bytes is None else limit_bytes


def _usable(known: Mapping[int, StepTrace]) -> list[int]:
    return [number for number in known if number > 1]


def _peak(trace: StepTrace, conf: str | None) -> int:
    return replay(trace, conf, None).peak_reserved.reserved_bytes


def _kernels_of(gpu: GpuSpec) -> tuple[object, ...]:
    """What the choice of kernels and workspaces depends on: cards that agree in it share their traces."""
    return gpu.compute_capability, gpu.sm_count, gpu.l2_bytes


class Batches(Sizes):
    """The sizes of the batch."""

    def __init__(self, job: Job, **options: Any) -> None:
        if "batch" not in job.effective_sizes:
            raise UsageError(f"{job.name}: it has no batch to change")
        super().__init__(job, batch_axis(job), **options)
