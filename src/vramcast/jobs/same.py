"""Whether two jobs are the same run, however they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramcast.jobs.schema import Job, Lora, Optimizer, Precision

_CLASSES = {
    "adam": "torch.optim.Adam",
    "adamw": "torch.optim.AdamW",
    "adafactor": "torch.optim.Adafactor",
    "sgd": "torch.optim.SGD",
    "adam8bit": "bitsandbytes.optim.Adam8bit",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit",
    "pagedadamw": "bitsandbytes.optim.PagedAdamW",
    "pagedadamw8bit": "bitsandbytes.optim.PagedAdamW8bit",
}
"""Optimizers that are advised, as Python names them."""
_OF_DDP = ("bucket_cap_mb", "gradient_as_bucket_view", "find_unused_parameters", "static_graph")


def same_run(one: Job, other: Job) -> bool:
    """Nothing that is traced differs; names and short forms may."""
    return _meaning(one) == _meaning(other)


def same_precision(one: Precision, other: Precision) -> bool:
    return _arithmetic(one) == _arithmetic(other)


def same_optimizer(one: Optimizer, other: Optimizer) -> bool:
    return _update(one) == _update(other)


def optimizer_named(table: Mapping[str, Mapping[str, Any]], wish: Optimizer) -> str | None:
    """The first name in a reader's table (name → fields of an optimizer) that stands for `wish`."""
    more = wish.model_dump(exclude_unset=True, exclude={"name", "arguments"})
    return next((name for name, data in table.items() if same_optimizer(Optimizer(**{**data, **more}), wish)), None)


def plain(name: str) -> str:
    """AdamW8bit, adamw-8bit and adamw8bit are one optimizer."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def class_path(name: str) -> str | None:
    """torch.optim.AdamW for adamw; None for one that is not in the table."""
    return _CLASSES.get(plain(name))


def _meaning(job: Job) -> dict[str, Any]:
    data = job.model_dump(exclude={"name", "scenarios"})
    data["sizes"] = job.effective_sizes
    gpus = data["gpus"]
    gpus["global_batch"], gpus["strategy"] = None, job.gpus.effective_strategy
    if gpus["strategy"] == "none":
        for name in _OF_DDP:
            gpus.pop(name, None)
    data["precision"] = _arithmetic(job.precision)
    data["optimizer"] = [_update(one) for one in job.optimizer]
    if job.checkpointing.scope == "none":
        data["checkpointing"]["reentrant"] = None
    for name, part in job.components.items():
        if part.mode == "lora":
            data["components"][name]["lora"] = (part.lora or Lora()).model_dump()
    return data


def _arithmetic(precision: Precision) -> tuple[Any, ...]:
    return (precision.weights_dtype, precision.autocast_dtype, precision.uses_grad_scaler, precision.uses_tf32)


def _update(optimizer: Optimizer) -> dict[str, Any]:
    return {**optimizer.model_dump(), "name": plain(optimizer.name)}
