"""What predicted changes do to the measured step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.findings import Step, text
from vramcast.features.diagnose.logs.result import MEASURED, PREDICTED, PredictedChange, WhatIf

_WORTH = 1.01
_DOUBTFUL = 3
"""A log that differs this much from the prediction may be of another run."""
_WAITS = 0.01
"""With workers, a loop that waits longer than this share of the step runs as fast as they load."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The step as it is, measured, and what it is made of."""

    seconds: float
    waiting: float
    """The part of it that the loop waits for data."""
    asked: PredictedChange

    def changed(self, change: PredictedChange) -> float:
        """Computation is as much faster as predicted; loading is another process's, or the loop's own."""
        computing = (self.seconds - self.waiting) * change.seconds / self.asked.seconds
        if not self.asked.loading_seconds or change.loading_seconds is None:
            return computing + self.waiting * change.samples / self.asked.samples
        loading = self._loading * change.loading_seconds / self.asked.loading_seconds
        return max(computing, loading) if change.workers else computing + loading

    @property
    def _loading(self) -> float:
        """What it takes to load one step's samples, as far as the log shows it."""
        if not self.asked.workers:
            return self.waiting
        if self.waiting > _WAITS * self.seconds:
            return self.seconds
        return min(self.asked.loading_seconds or 0.0, self.seconds)


def basis(step: Step, asked: PredictedChange) -> Basis:
    """Where a log has not recorded the wait for data, the predicted share counts."""
    measured = [p.seconds for p in step.split.parts if p.phase == q.DATA and p.source == MEASURED and p.seconds]
    if measured:
        return Basis(step.seconds, min(sum(measured), step.seconds), asked)
    loading = asked.loading_seconds or 0.0
    waiting = max(0.0, loading - asked.seconds) if asked.workers else loading
    return Basis(step.seconds, step.seconds * waiting / (asked.seconds + waiting), asked)


def gains_and_losses(
    step: Step, asked: PredictedChange, changes: Sequence[PredictedChange]
) -> tuple[list[WhatIf], list[WhatIf]]:
    """The changes that fit and are faster, best first; and the others, with the reason."""
    now = basis(step, asked)
    helps, useless = [], []
    for change in changes:
        seconds = now.changed(change)
        faster = (change.samples / seconds) / (asked.samples / step.seconds)
        samples = step.setup.samples_per_step
        rate = None if samples is None else samples / step.seconds * faster
        row = WhatIf(
            change=change.change,
            source=PREDICTED,
            step_seconds=seconds,
            samples_per_second=rate,
            epoch_seconds=None if change.steps_per_epoch is None else change.steps_per_epoch * seconds,
            # As many samples in all.
            total_seconds=None if step.total_steps is None else step.total_steps * step.mean_seconds / faster,
            device_bytes=change.device_bytes,
            fits=change.fits,
            why=change.cost,
        )
        if change.fits and faster > _WORTH:
            helps.append((faster, row))
        else:
            useless.append((faster, row))
    helps.sort(key=lambda item: -item[0])
    useless.sort(key=lambda item: -item[0])
    return [row for _, row in helps], [_useless(row, faster) for faster, row in useless]


def _useless(row: WhatIf, faster: float) -> WhatIf:
    needs = f"{(row.device_bytes or 0) / 2**30:.1f} GiB"
    gain = f"{faster - 1:+.0%}".replace("-0%", "+0%")
    outcome = f"{gain} samples/s, a step of {text(row.step_seconds or 0.0)}, {needs}"
    return WhatIf(
        change=row.change, source=PREDICTED, step_seconds=row.step_seconds, samples_per_second=row.samples_per_second,
        epoch_seconds=row.epoch_seconds, total_seconds=row.total_seconds, device_bytes=row.device_bytes, fits=row.fits,
        why=outcome if row.fits else f"does not fit: {outcome}",
    )  # fmt: skip


def scale_note(step: Step, asked: PredictedChange) -> str:
    now = basis(step, asked)
    computing = now.seconds - now.waiting
    ratio = computing / asked.seconds
    doubt = "" if 1 / _DOUBTFUL < ratio < _DOUBTFUL else "; was it this job, on this card?"
    return (
        f"predicted for this card: a step of {text(asked.seconds)} without loading; measured {text(computing)}, "
        f"{ratio:.2f} times as long; what changes would give is scaled by that{doubt}"
    )
