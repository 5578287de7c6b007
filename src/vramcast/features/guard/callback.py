"""What the callbacks of all libraries share: a check when training begins, a watch until it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict
from vramcast.features.guard.entry import Guard, OnOverflow, check_subject, start_watch, tell
from vramcast.features.guard.process_state import random_numbers_kept
from vramcast.features.guard.subject import Subject
from vramcast.gpus import GpuSpec

MOST_ACCUMULATED = 2
"""Passes of one step that are run; those after the second repeat it."""


class GuardedTraining:
    """The arguments are those of `vramcast.guard`; `guard` is there once training has begun."""

    def __init__(
        self,
        *,
        gpu: str | GpuSpec | None = None,
        memory: str | int | None = None,
        on_overflow: OnOverflow = "raise",
        margin: float = 0.0,
        steps: int = 3,
        warn_above: float = 0.9,
        report_dir: str | Path = ".",
    ) -> None:
        self._gpu = gpu
        self._memory = memory
        self._on_overflow = on_overflow
        self._margin = margin
        self._steps = steps
        self._warn_above = warn_above
        self._report_dir = report_dir
        self.guard: Guard | None = None

    def begin(self, subject: Subject | None, device: str) -> None:
        """Training on the CPU is not predicted, unless a card is named for it."""
        self.end()  # of an earlier training that an error ended
        if device != "cuda" and self._gpu is None and self._memory is None:
            subject = None
        result = check_subject(subject, gpu=self._gpu, memory=self._memory, margin=self._margin, steps=self._steps)
        tell(result, self._on_overflow)
        watch = start_watch(result, device=None, warn_above=self._warn_above, report_dir=self._report_dir)
        self.guard = Guard(result, watch)

    def end(self) -> None:
        if self.guard is not None:
            self.guard.close()


def first_samples(dataset: Any, count: int) -> list[Any]:
    """Read as they are, again and again where there are fewer; a streamed dataset cannot be read twice."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise CannotPredict("its data can only be read once: guard a training step with a batch instead")
    if not len(dataset):
        raise CannotPredict("its dataset is empty")
    with random_numbers_kept():
        there = [dataset[i] for i in range(min(count, len(dataset)))]
    return list(_repeated(there, count))


def _repeated(values: list[Any], count: int) -> Iterator[Any]:
    for i in range(count):
        yield values[i % len(values)]
