"""A smaller or larger batch at a time, with the accumulation that keeps batch × GPUs × accumulation the same."""

from __future__ import annotations

from math import isqrt
from typing import Any

from vramcast.features.advise.option import Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "batch"

_FIXED_SHARE = 0.25
"""A pass takes as long as its samples and this much of one more: small batches leave the card idle in between."""
MOST_STEPS = 100_000
"""As many as a job may say."""


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if job.task != "training" or not job.components:
        return []
    now, together = job.effective_sizes["batch"], job.effective_sizes["batch"] * job.accumulation
    choices = []
    for steps in divisors(together):
        batch = together // steps
        if batch == now or steps > MOST_STEPS:
            continue
        choices.append(
            Option(
                knob=NAME,
                text=f"batch {batch:,}, accumulation {steps:,}",
                changes=_changes(job, batch, steps),
                cost="more passes a step" if batch < now else "fewer passes a step",
                time=_sample_time(batch) / _sample_time(now),
            )
        )
    return choices


def _changes(job: Job, batch: int, steps: int) -> dict[str, Any]:
    if job.gpus.global_batch is not None:
        return {"gpus.global_batch": batch * job.gpus.count, "accumulation": steps}
    return {"sizes.batch": batch, "accumulation": steps}


def _sample_time(batch: int) -> float:
    return (batch + _FIXED_SHARE) / batch


def divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]
