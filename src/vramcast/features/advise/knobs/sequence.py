"""Shorter sequences."""

from __future__ import annotations

from vramcast.features.advise.option import Option
from vramcast.features.advise.smaller import smaller
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "sequence"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    return smaller(job, NAME, ["sequence"], lambda size: int(size // 64 * 64), "the model sees less context")
