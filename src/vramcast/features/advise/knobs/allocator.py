"""Settings of PyTorch's allocator: less fragmentation, nothing else."""

from __future__ import annotations

from vramcast.features.advise.option import Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "allocator"

_SETTINGS = {
    "expandable segments": ("expandable_segments:True", "costs nothing"),
    "no splitting above 128 MiB": ("max_split_size_mb:128", "large blocks wait for requests of their own size"),
    "early collection of cached memory": (
        "garbage_collection_threshold:0.8",
        "memory is taken from the driver again more often, which costs a little time",
    ),
}


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    now = job.allocator_conf or ""
    if "expandable_segments" in now or "backend" in now:
        return []
    choices = []
    for text, (setting, cost) in _SETTINGS.items():
        if setting.partition(":")[0] not in now:
            conf = f"{now},{setting}" if now else setting
            cost = f"{cost}: set PYTORCH_CUDA_ALLOC_CONF={conf}"
            choices.append(Option(knob=NAME, text=text, changes={"allocator_conf": conf}, cost=cost))
    return choices
