"""More cards under DDP, each with its share of the batch; and DDP's buckets as the gradients themselves."""

from __future__ import annotations

from typing import Any

from vramcast.features.advise.option import MORE_CARDS, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "gpus"

_COUNTS = (2, 4, 8)
_SYNCHRONISED = 1.1
"""Summing gradients takes a tenth of a step that is not hidden behind the backward pass; by rule of thumb."""


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    """FSDP and ZeRO are not modelled, so they are not advised."""
    gpus = job.gpus
    if job.task != "training" or not job.components or gpus.effective_strategy not in ("none", "ddp"):
        return []
    choices = []
    if gpus.effective_strategy == "ddp" and not gpus.gradient_as_bucket_view:
        cost = "costs nothing: gradients lie in DDP's buckets instead of beside them"
        changes = {"gpus.gradient_as_bucket_view": True}
        choices.append(Option(knob=NAME, text="gradients in the buckets", changes=changes, cost=cost))
    together = job.effective_sizes["batch"] * gpus.count
    for count in _COUNTS:
        if count > gpus.count and together % count == 0:
            choices.append(_more(job, count, together))
    return choices


def _more(job: Job, count: int, together: int) -> Option:
    changes: dict[str, Any] = {"gpus.count": count, "gpus.gradient_as_bucket_view": True}
    if job.gpus.global_batch is None:
        changes["sizes.batch"] = together // count
    norms = "batch norm sees fewer samples at a time" if together > count else "one sample on each"
    return Option(
        knob=NAME,
        text=f"{count} GPUs",
        changes=changes,
        cost=f"{count} such cards under DDP, a batch of {together // count:,} on each: {norms}",
        risk=MORE_CARDS,
        time=_SYNCHRONISED * job.gpus.count / count,
        activations_ratio=1.0 if "sizes.batch" in changes else job.gpus.count / count,
        excludes=("batch",),
    )
