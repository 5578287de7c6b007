"""Smaller crops."""

from __future__ import annotations

from vramcast.features.advise.option import Option
from vramcast.features.advise.smaller import smaller
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "resolution"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    cost = "smaller crops: less context in each, and another scale of what is seen"
    return smaller(job, NAME, ["height", "width"], lambda size: int(size // 32 * 32), cost, power=2)
