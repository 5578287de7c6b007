"""The sizes of a job that can grow: which numbers are admissible, and what each changes in the job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod
from pathlib import Path
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.jobs.fields import LARGEST_SIZE
from vramcast.jobs.folders import CONFIG, read_json
from vramcast.jobs.schema import Job

AXES = ("batch", "sequence", "resolution", "frames")
_LENGTH_LIMITS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")
"""What configs of transformers call the longest sequence."""
_SMALLEST_STEP, _LARGEST_STEP = 8, 64
_FEW = 4
"""Multiples of a step that a size has at least, so that there are smaller ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One size of a job. Its values are numbered from 1 in the order of their size."""

    name: str
    asked: int
    """The number of the job as it is."""
    sizes: Callable[[int], dict[str, int]]
    """Number → the sizes of the job that it stands for."""
    measure: Callable[[int], int] = int
    """Number → what memory grows with: a line in it, or a parabola."""
    degree: int = 2
    most: int = LARGEST_SIZE

    def changes(self, job: Job, number: int) -> dict[str, Any]:
        if self.name == "batch" and job.gpus.global_batch is not None:
            return {"gpus.global_batch": number * job.gpus.count}
        return {f"sizes.{name}": size for name, size in self.sizes(number).items()}

    @property
    def first(self) -> tuple[int, ...]:
        """What to trace before anything is known. A size of one is often a case of its own: dimensions are dropped,
        contiguous by chance, broadcast."""
        if self.degree == 1:
            return (2, 3)
        return (self.asked // 2, self.asked * 3 // 4, self.asked) if self.asked > 5 else (2, 3, 4)


def batch_axis(job: Job) -> Axis:
    return Axis(name="batch", asked=job.effective_sizes["batch"], sizes=lambda number: {"batch": number}, degree=1)


def axes(job: Job) -> dict[str, Axis]:
    """The axes along which the job gives a size."""
    possible = [batch_axis(job), _sequence(job), _resolution(job), _frames(job)]
    return {axis.name: axis for axis in possible if axis is not None}


def _sequence(job: Job) -> Axis | None:
    """Sequence lengths, in the usual steps, up to what the model takes."""
    length = job.sizes.get("sequence")
    if length is None:
        return None
    step = next((step for step in (64, 8) if length % step == 0), 1)
    most = min((limit for part in job.components.values() if (limit := _longest(part))), default=LARGEST_SIZE)
    return Axis(
        name="sequence",
        asked=length // step,
        sizes=lambda number: {"sequence": number * step},
        most=max(most, length) // step,
    )


def resolution_step(job: Job) -> int:
    """The largest of 64, 32, 16 and 8 that height and width are a few multiples of, or else the smallest other: 14 of
    518."""
    sides = [job.sizes[name] for name in ("height", "width") if name in job.sizes] or [1]
    common = gcd(*sides)
    steps = [step for step in (64, 32, 16, 8) if min(sides) >= _FEW * step or step == _SMALLEST_STEP]
    steps += range(_SMALLEST_STEP, _LARGEST_STEP + 1)
    return next((step for step in steps if common % step == 0), 1)


def _resolution(job: Job) -> Axis | None:
    """Height and width together, in the largest step of 8 to 64 that both are multiples of: networks halve them, and
    cut them into patches. Memory grows with the area."""
    sides = {name: job.sizes[name] for name in ("height", "width") if name in job.sizes}
    if not sides:
        return None
    step = resolution_step(job)
    shortest = min(sides.values())

    def sizes(number: int) -> dict[str, int]:
        return {name: round(number * side / shortest) * step for name, side in sides.items()}

    def area(number: int) -> int:
        at = sizes(number)
        return prod(size // step for size in at.values())

    return Axis(
        name="resolution",
        asked=shortest // step,
        sizes=sizes,
        measure=area if len(sides) > 1 else int,
        most=LARGEST_SIZE // max(sides.values()),
    )


def _frames(job: Job) -> Axis | None:
    """4 n + 1 stays 4 n + 1, which autoencoders of videos need; even stays even."""
    frames = job.sizes.get("frames")
    if frames is None:
        return None
    step, rest = (4, 1) if frames % 4 == 1 and frames > 1 else (2, 0) if frames % 2 == 0 else (1, 0)
    return Axis(
        name="frames",
        asked=(frames - rest) // step,
        sizes=lambda number: {"frames": number * step + rest},
        most=LARGEST_SIZE // step - 1,
    )


def _longest(part: Any) -> int | None:
    """What the config of a transformers folder says."""
    if part.transformers is None:
        return None
    config: Any = {}
    with contextlib.suppress(VramcastError):  # the model's own reader says what is wrong with it
        config = read_json(Path(part.transformers) / CONFIG)
    settings = {**config, **part.config}
    limits = [settings[name] for name in _LENGTH_LIMITS if isinstance(settings.get(name), int)]
    return min(limits, default=None)
