"""An optimizer whose state and step are on the CPU: torchao's CPUOffloadOptimizer, and what to ask of it."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.base.errors import UsageError
from vramcast.jobs.building.libraries import library
from vramcast.jobs.schema import Offload


def on_host(
    key: str, kind: Any, parameters: list[Any], arguments: dict[str, Any], wish: Offload
) -> torch.optim.Optimizer:
    """`kind`: the optimizer's class."""
    if not isinstance(kind, type) or not kind.__module__.startswith("torch.optim"):
        raise UsageError(f"{key}: offload.optimizer needs an optimizer of torch.optim, e.g. adamw")
    library("torchao", "offload.optimizer")
    optim = library("torchao.optim", "offload.optimizer")
    made: torch.optim.Optimizer = optim.CPUOffloadOptimizer(
        parameters, kind, offload_gradients=wish.gradients, **arguments
    )
    return made


def parts_of(optimizer: Any) -> list[torch.optim.Optimizer]:
    """The optimizers that it is made of; itself, where it is an ordinary one."""
    inner = getattr(optimizer, "optim_dict", None)
    if inner is None:
        return [optimizer]
    return [*inner.values(), *([optimizer.d_opt] if optimizer.d_opt is not None else [])]


def updated_by(optimizer: Any) -> list[torch.nn.Parameter]:
    """The parameters on the card that it updates."""
    on_host = getattr(optimizer, "param_d2h_map", {})
    groups = optimizer.d_param_groups if hasattr(optimizer, "d_param_groups") else optimizer.param_groups
    return [*on_host, *(parameter for group in groups for parameter in group["params"])]
