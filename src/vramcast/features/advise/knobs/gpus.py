"""Other ways to use the cards: the model sharded over them, more cards under DDP, DDP's buckets as the gradients."""

from __future__ import annotations

from typing import Any

from vramcast.features.advise.knobs.trained import QLORA
from vramcast.features.advise.layout import Layout, can_be_divided, layouts
from vramcast.features.advise.option import MORE_CARDS, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job

NAME = "gpus"

_COUNTS = (2, 4, 8)
_SYNCHRONISED = 1.1
"""Summing gradients takes a tenth of a step that is not hidden behind the backward pass; by rule of thumb."""
_SHARDED, _LEFT = 1.1, 0.3
"""Of a sharded model: time of a sample beside DDP, and share of the memory that is left; by rule of thumb."""
_NOT_SHARDED = ("optimizer", "offload", "gradients", f"trained: {QLORA}, 4-bit base")
"""Optimizers of bitsandbytes and 4-bit weights do not take sharded tensors, and FSDP has an offload of its own."""


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    """Tensor parallel needs other batches and is compared by a search of its own (`layouts.py`)."""
    if not can_be_divided(job):
        return []
    gpus = job.gpus
    choices = []
    if gpus.count > 1:
        ways = (way for way in layouts(job) if not way.splits and not way.checkpoints)
        choices += [option for way in ways if (option := layout_option(job, way)) is not None]
    if gpus.effective_strategy not in ("none", "ddp"):
        return choices
    if gpus.effective_strategy == "ddp" and not gpus.gradient_as_bucket_view:
        cost = "costs nothing: gradients lie in DDP's buckets instead of beside them"
        changes = {"gpus.gradient_as_bucket_view": True}
        choices.append(Option(knob=NAME, text="gradients in the buckets", changes=changes, cost=cost))
    together = job.effective_sizes["batch"] * gpus.count
    for count in _COUNTS:
        if count > gpus.count and together % count == 0:
            choices.append(_more(job, count, together))
    return choices


def layout_option(job: Job, layout: Layout) -> Option | None:
    """Divide the job so, checkpointed or not as it is; None where it is divided so already."""
    changes = {key: value for key, value in layout.changes.items() if key != "checkpointing"}
    changed = with_overrides(job, changes)
    if _division(changed) == _division(job):
        return None
    new = {key: value for key, value in changes.items() if key not in ("gpus.count", "gpus.per_node")}
    other_batch = ("batch",) if layout.splits else ()
    return Option(
        knob=NAME,
        text=layout.text.removesuffix(", checkpointed"),
        changes=new,
        cost=_cost(layout),
        time=_SHARDED,
        traced=True,
        guess=_LEFT if layout.shards > 1 or layout.splits else 1 / _LEFT,
        shards=layout.shards,
        excludes=(*_NOT_SHARDED, *other_batch) if layout.shards > 1 or layout.splits else other_batch,
    )


def _division(job: Job) -> tuple[Any, ...]:
    gpus = job.gpus
    kept = gpus.reshard_after_forward or gpus.effective_strategy not in ("fsdp", "hsdp")
    return gpus.effective_strategy, gpus.copies, gpus.tensor, gpus.pipeline, kept


def _cost(layout: Layout) -> str:
    if layout.splits:
        return "each layer is computed by several cards of a machine, which send activations to each other"
    if layout.keeps_gathered:
        return "gradients and optimizer state are spread over the cards; weights are gathered once a step (ZeRO-2)"
    if layout.shards == 1:
        return "every card holds the whole model"
    return "weights, gradients and optimizer state are spread over the cards, which gather weights when they need them"


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
