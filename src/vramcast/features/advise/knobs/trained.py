"""Train adapters instead of all weights: the last thing to try."""

from __future__ import annotations

import importlib.util

from vramcast.features.advise.option import LAST_RESORT, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "trained"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if job.task != "training" or importlib.util.find_spec("peft") is None:
        return []
    trained = {name: part for name, part in job.components.items() if part.mode == "trained" and part.same_as is None}
    return [
        Option(
            knob=NAME,
            text="LoRA of rank 16" if len(trained) == 1 else f"LoRA of rank 16 for {name}",
            changes={f"components.{name}.mode": "lora"},
            cost="only adapters are trained: enough for fine-tuning, not for training from scratch",
            risk=LAST_RESORT,
            traced=True,
        )
        for name, part in trained.items()
        if part.transformers is not None and not part.train_only and not part.freeze
    ]
