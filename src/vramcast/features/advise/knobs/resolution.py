"""Smaller crops, in the steps that the job's own size suggests: networks halve images, and cut them into patches."""

from __future__ import annotations

from vramcast.features.advise.option import Option
from vramcast.features.advise.smaller import smaller
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job
from vramcast.prediction.axes import resolution_step

NAME = "resolution"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    step = resolution_step(job)
    cost = "smaller crops: less context in each, and another scale of what is seen"
    return smaller(job, NAME, ["height", "width"], lambda size: int(size // step * step), cost, power=2)
