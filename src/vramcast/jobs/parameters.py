"""Count the parameters of built components, and what an optimizer holds for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from vramcast.jobs.components.quantization import count_of
from vramcast.memory.parameters import ModuleParameters


def count_parameters(
    modules: Mapping[str, nn.Module], optimizers: list[torch.optim.Optimizer]
) -> tuple[ModuleParameters, ...]:
    """Trained is what an optimizer updates."""
    updated = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    state = _state_bytes(optimizers)
    rows, seen = [], set()
    for component, module in modules.items():
        for path, child in module.named_modules():
            own = [p for p in child.parameters(recurse=False) if id(p) not in seen]
            seen |= {id(parameter) for parameter in own}
            if own:
                rows.append(_row(f"{component}.{path}" if path else component, own, updated, state))
    return tuple(rows)


def _row(name: str, parameters: list[nn.Parameter], updated: set[int], state: Mapping[int, int]) -> ModuleParameters:
    trained = [parameter for parameter in parameters if parameter.requires_grad and id(parameter) in updated]
    return ModuleParameters(
        module=name,
        count=sum(count_of(parameter) for parameter in parameters),
        trained_count=sum(count_of(parameter) for parameter in trained),
        weights_bytes=sum(_bytes(parameter) for parameter in parameters),
        gradients_bytes=sum(_bytes(parameter) for parameter in trained),
        optimizer_bytes=sum(state.get(id(parameter), 0) for parameter in trained),
    )


def _state_bytes(optimizers: list[torch.optim.Optimizer]) -> dict[int, int]:
    """By parameter; a table that several share (bitsandbytes' quantization map) goes to the first."""
    seen: set[int] = set()
    found: dict[int, int] = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            size = 0
            for tensor in _tensors(state):
                if tensor.is_cuda and id(tensor) not in seen:
                    seen.add(id(tensor))
                    size += _bytes(tensor)
            found[id(parameter)] = size
    return found


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
