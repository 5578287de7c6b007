"""The largest batch, sequence, resolution or clip of a job that fits a card, from a few traces.

Two batches or three other sizes are traced, every other one is worked out from them (memory/scaling.py), and the answer
is traced for real. Where that trace is not what was worked out, it takes the place of one of them, and the search goes
on; where sizes run differently from each other, real traces are bisected.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job
from vramcast.memory.replay import highest_without_workspaces, replay
from vramcast.memory.scaling import DifferentRuns, ScaledTrace, last_true, same_sizes
from vramcast.prediction.axes import batch_axis
from vramcast.prediction.traced_sizes import TracedSizes, capacity_of, kernels_of
from vramcast.trace import StepTrace

_TRIES = 4
"""Guesses that may be wrong by a little before real traces are bisected: workspaces do not lie on a line."""
_SMALL = 4
"""Up to here it is quicker to trace the next one than to work it out."""
_NEAREST = 5
"""Traces near the answer that a fit is made of."""
_BEYOND = 8
"""Percent: how far above a batch that fits one is looked for that fits though the next does not."""
_PROBES = 8
"""At most this many are tried there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    number: int
    """Size along the axis; 0 where not even the smallest fits."""
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


class Sizes(TracedSizes):
    """Traces of one job at different sizes, and what follows for all the others."""

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
        refused = 0  # the model does not take this one, nor any smaller
        worked_out = False
        tries = 0
        for guess in self._close_to(near) if near is not None else ():
            if fitting < guess < below:
                fits, _ = self.needs(guess, gpu, limit_bytes)
                fitting, below = (guess, below) if fits else (fitting, guess)
        while below - max(fitting, refused) > 1:
            scaled = self._fit(gpu, fitting) if tries < _TRIES else None
            if worked_out:
                guess, worked_out = fitting + 1, False
            elif scaled is not None:
                guess = self._guess(scaled, gpu, limit_bytes, fitting, below)
            else:
                guess = self._halfway(max(fitting, refused), below, most)
            tries += 1
            if guess <= refused:
                guess = refused + 1
            if guess < self.axis.asked and self.refuses(guess, gpu):
                refused = guess
                continue
            fits, _ = self.needs(guess, gpu, limit_bytes)
            if not fits:
                below = guess
                continue
            fitting = guess
            if scaled is not None and guess + 1 < below and self._holds(scaled, guess, gpu):
                # The fit is right here, so it says what one more would do.
                if self._fits(scaled.at(self.axis.measure(guess + 1)), gpu, limit_bytes):
                    continue
                if self._may_use_less_workspace(self.trace(guess, gpu)):
                    # Smaller workspaces may make room for more; real traces tell, up to where nothing else fits.
                    below = min(below, self._without_workspaces(scaled, gpu, limit_bytes, guess, below) + 1)
                    tries = _TRIES
                else:
                    worked_out = True
                    below = below if traced_beyond else guess + 1
        if fitting and self._smaller_workspaces:
            beyond = self._beyond(fitting, gpu, limit_bytes, most)
            fitting, worked_out = beyond, worked_out and beyond == fitting
        if not fitting and refused + 1 > most and self.refusal is not None:
            raise self.refusal
        _, device_bytes = self.needs(fitting or refused + 1, gpu, limit_bytes)
        return Largest(
            number=fitting,
            device_bytes=device_bytes,
            limit_bytes=gpu.total_memory_bytes,
            traces=self.n_traced - before,
            worked_out=worked_out,
        )

    def _halfway(self, low: int, below: int, most: int) -> int:
        """Between what fits and what does not; before anything does not, what was asked for, and then twice as much."""
        if below <= most:
            return (low + below) // 2
        first = 1 if self.axis.name == "batch" else min(self.axis.asked, most)
        return min(most, 2 * low) if low >= first else first

    def _beyond(self, fitting: int, gpu: GpuSpec, limit_bytes: int | None, most: int) -> int:
        """How blocks come to lie is another matter in each batch, so one may fit though a smaller one does not."""
        reach = fitting * _BEYOND // 100
        stride = -(-reach // _PROBES)
        scaled = self._fit(gpu, fitting) if reach > 1 else None
        number = fitting + stride
        while scaled is not None and number <= min(fitting + reach, most):
            if self._fits_if_traced(scaled.at(self.axis.measure(number)), number, gpu, limit_bytes):
                fitting = number
            number += stride
        return fitting

    def _fits_if_traced(self, trace: StepTrace, number: int, gpu: GpuSpec, limit_bytes: int | None) -> bool:
        """`trace`: what is worked out for it."""
        if not self._may_use_less_workspace(trace):
            return self._fits(trace, gpu, limit_bytes) and self.needs(number, gpu, limit_bytes)[0]
        return self.fits_with_less_workspace(number, gpu, limit_bytes, trace)

    def _close_to(self, near: int) -> tuple[int, ...]:
        """Two numbers to begin with: neighbours, or as far apart as a good guess is off."""
        near = min(max(1, near), self.axis.most)
        return (near, near + 1, near - 1) if near <= _SMALL else (near, near - near // 8)

    def _fit(self, gpu: GpuSpec, fitting: int) -> ScaledTrace | None:
        """Through the traced numbers that are nearest to the answer: of this card, or, before there are enough, of
        another."""
        enough = self.axis.degree + 1
        known = self._traces.get(kernels_of(gpu), {})
        if len(_usable(known)) < enough:
            others = [traces for traces in self._traces.values() if len(_usable(traces)) >= enough]
            if others:
                known = others[0]
            else:
                known = self._traces.setdefault(kernels_of(gpu), known)
                for number in self.axis.first:
                    number = min(number, self.axis.most)
                    if len(_usable(known)) < enough and not self.refuses(number, gpu):
                        self.trace(number, gpu)
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
        capacity_bytes = capacity_of(scaled.traces[scaled.lowest], gpu, limit_bytes)
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
            return highest_without_workspaces(trace) <= capacity_of(trace, gpu, limit_bytes)

        return last_true(fits, fitting, below)

    def _holds(self, scaled: ScaledTrace, number: int, gpu: GpuSpec) -> bool:
        """The trace is what the fit says, or at least reserves the same."""
        expected, traced = scaled.at(self.axis.measure(number)), self.trace(number, gpu)
        return same_sizes(expected, traced) or _peak(expected, self._conf) == _peak(traced, self._conf)

    def _fits(self, trace: StepTrace, gpu: GpuSpec, limit_bytes: int | None) -> bool:
        return replay(trace, self._conf, capacity_of(trace, gpu, limit_bytes)).completed


def _usable(known: Mapping[int, StepTrace]) -> list[int]:
    return [number for number in known if number > 1]


def _peak(trace: StepTrace, conf: str | None) -> int:
    return replay(trace, conf, None).peak_reserved.reserved_bytes


class Batches(Sizes):
    """The sizes of the batch."""

    def __init__(self, job: Job, **options: Any) -> None:
        if "batch" not in job.effective_sizes:
            raise UsageError(f"{job.name}: it has no batch to change")
        super().__init__(job, batch_axis(job), **options)
