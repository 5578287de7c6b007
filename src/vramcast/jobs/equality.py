"""Whether two jobs are the same run, however they are written."""

from __future__ import annotations

from typing import Any

from vramcast.jobs.optimizer_names import meaning_of_optimizer
from vramcast.jobs.schema import Job, Lora, Precision

_OF_DDP = ("bucket_cap_mb", "gradient_as_bucket_view", "find_unused_parameters", "static_graph")


def same_run(first: Job, second: Job) -> bool:
    """Whether nothing that is traced differs; names and short forms may, and how far the loader reads ahead."""
    return _meaning(first) == _meaning(second)


def same_precision(first: Precision, second: Precision) -> bool:
    return _arithmetic(first) == _arithmetic(second)


def _meaning(job: Job) -> dict[str, Any]:
    data = job.model_dump(exclude={"name", "scenarios", "pinned_batches"})
    data["sizes"] = job.effective_sizes
    gpus = data["gpus"]
    gpus["global_batch"], gpus["strategy"] = None, job.gpus.effective_strategy
    if gpus["strategy"] == "none":
        for name in _OF_DDP:
            gpus.pop(name, None)
    data["precision"] = _arithmetic(job.precision)
    data["optimizer"] = [meaning_of_optimizer(optimizer) for optimizer in job.optimizer]
    if job.checkpointing.scope == "none":
        data["checkpointing"]["reentrant"] = None
    for name, part in job.components.items():
        if part.mode == "lora":
            data["components"][name]["lora"] = (part.lora or Lora()).model_dump()
    return data


def _arithmetic(precision: Precision) -> tuple[Any, ...]:
    return (precision.weights_dtype, precision.autocast_dtype, precision.uses_grad_scaler, precision.uses_tf32)
