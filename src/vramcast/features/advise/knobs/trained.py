"""Train adapters instead of all weights: the last thing to try."""

from __future__ import annotations

import importlib.util

from vramcast.features.advise.option import LAST_RESORT, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "trained"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    trained = [name for name, part in job.components.items() if part.mode == "trained"]
    if job.task != "training" or len(trained) != 1 or importlib.util.find_spec("peft") is None:
        return []
    part = job.components[trained[0]]
    if part.transformers is None or part.train_only or part.freeze:
        return []
    return [
        Option(
            knob=NAME,
            text="LoRA of rank 16",
            changes={f"components.{trained[0]}.mode": "lora"},
            cost="only adapters are trained: enough for fine-tuning, not for training from scratch",
            risk=LAST_RESORT,
            traced=True,
        )
    ]
