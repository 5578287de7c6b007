"""expandable_segments: less fragmentation, nothing else."""

from __future__ import annotations

from vramcast.advice.option import Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "allocator"

_SETTING = "expandable_segments:True"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    now = job.allocator_conf or ""
    if "expandable_segments" in now or "backend" in now:
        return []
    conf = f"{now},{_SETTING}" if now else _SETTING
    return [
        Option(
            knob=NAME,
            text="expandable segments",
            changes={"allocator_conf": conf},
            cost=f"costs nothing: set PYTORCH_CUDA_ALLOC_CONF={conf}",
        )
    ]
