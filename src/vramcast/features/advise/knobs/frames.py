"""Shorter clips."""

from __future__ import annotations

from vramcast.features.advise.option import Option
from vramcast.features.advise.smaller import smaller
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "frames"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    """Keep 4 n + 1 frames, which video autoencoders need; even stays even."""
    rest = {1: 1, 0: 0, 2: 0, 3: 0}[job.sizes.get("frames", 0) % 4]
    step = 4 if rest else 2
    cost = "shorter clips: less motion to learn from"
    return smaller(job, NAME, ["frames"], lambda size: int((size - rest) // step * step) + rest, cost)
