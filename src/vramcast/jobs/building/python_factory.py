"""A module that a Python function returns."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.factories import check_arguments, load_factory
from vramcast.card.dispatch.failures import job_failed
from vramcast.card.dispatch.functions import weights_without_numbers
from vramcast.jobs.building.built import Built
from vramcast.jobs.own_checkpointing import switch_arguments
from vramcast.jobs.schema import Checkpointing, Component


def build(component: Component, dtype: torch.dtype | None, checkpointing: Checkpointing | None) -> Built:
    """`checkpointing`: as the job says it, for networks that take it as arguments; None: it says nothing."""
    name = component.factory or ""
    factory = load_factory(name)
    wanted = {} if checkpointing is None else switch_arguments(checkpointing)
    switches = {argument: value for argument, value in wanted.items() if argument in _takes(factory)}
    arguments = {**component.arguments, **switches}
    check_arguments(factory, arguments)
    try:
        with weights_without_numbers():
            module = factory(**arguments)
    except (VramcastError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise job_failed(error, "factory", name) from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"factory: {name} returns {type(module).__name__}; a torch.nn.Module is needed")
    return Built(
        module=module if dtype is None else module.to(dtype), family="factory", checkpoints_itself=bool(switches)
    )


def _takes(factory: Any) -> Collection[str]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return ()
