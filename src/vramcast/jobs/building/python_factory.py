"""A module that a Python function returns."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.factories import check_arguments, load_factory
from vramcast.card.dispatch.failures import job_failed
from vramcast.jobs.building.built import Built
from vramcast.jobs.schema import Checkpointing, Component

_KAIR_ARGUMENTS = {
    "use_checkpoint_attn": "attention",
    "use_checkpoint_ffn": "feed_forward",
    "no_checkpoint_attn_blocks": "skip_attention_blocks",
    "no_checkpoint_ffn_blocks": "skip_feed_forward_blocks",
}


def build(component: Component, dtype: torch.dtype | None, checkpointing: Checkpointing) -> Built:
    name = component.factory or ""
    factory = load_factory(name)
    arguments = {**_kair_arguments(factory, checkpointing), **component.arguments}
    check_arguments(factory, arguments)
    try:
        module = factory(**arguments)
    except (VramcastError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise job_failed(error, "factory", name) from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"factory: {name} returns {type(module).__name__}; a torch.nn.Module is needed")
    return Built(module=module if dtype is None else module.to(dtype), family="factory")


def _kair_arguments(factory: Any, checkpointing: Checkpointing) -> dict[str, Any]:
    """KAIR's networks take their checkpointing as arguments; only what was said is handed over."""
    try:
        taken = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return {}
    settings = {argument: getattr(checkpointing, field) for argument, field in _KAIR_ARGUMENTS.items()}
    return {argument: value for argument, value in settings.items() if argument in taken and value not in (None, [])}
