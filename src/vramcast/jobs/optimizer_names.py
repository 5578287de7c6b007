"""Optimizers by the names that configs and Python have for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramcast.jobs.schema import Optimizer

_CLASSES = {
    "adam": "torch.optim.Adam",
    "adamw": "torch.optim.AdamW",
    "adafactor": "torch.optim.Adafactor",
    "sgd": "torch.optim.SGD",
    "adam8bit": "bitsandbytes.optim.Adam8bit",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit",
    "pagedadam": "bitsandbytes.optim.PagedAdam",
    "pagedadam8bit": "bitsandbytes.optim.PagedAdam8bit",
    "pagedadamw": "bitsandbytes.optim.PagedAdamW",
    "pagedadamw8bit": "bitsandbytes.optim.PagedAdamW8bit",
}
"""Optimizers that are advised, as Python names them."""


def plain(name: str) -> str:
    """One spelling for AdamW8bit, adamw-8bit and adamw8bit."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def class_path(name: str) -> str | None:
    """torch.optim.AdamW for adamw; None for one that is not in the table."""
    return _CLASSES.get(plain(name))


def optimizer_named(table: Mapping[str, Mapping[str, Any]], wish: Optimizer) -> str | None:
    """The first name in a reader's table (name → fields of an optimizer) that stands for `wish`."""
    more = wish.model_dump(exclude_unset=True, exclude={"name", "arguments"})
    wanted = meaning_of_optimizer(wish)
    return next(
        (name for name, data in table.items() if meaning_of_optimizer(Optimizer(**{**data, **more})) == wanted), None
    )


def meaning_of_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """The same value for two spellings of one optimizer."""
    return {**optimizer.model_dump(), "name": plain(optimizer.name)}
