"""Gradients that are given back instead of filled with zeros."""

from __future__ import annotations

from vramcast.features.advise.option import Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "gradients"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if job.set_to_none or job.task != "training" or not job.components:
        return []
    cost = "costs nothing: zero_grad(set_to_none=True); a parameter without a gradient is not updated"
    return [Option(knob=NAME, text="gradients set to none", changes={"set_to_none": True}, cost=cost)]
