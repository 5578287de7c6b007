"""Count the parameters of built components, and what an optimizer holds for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import nn

from vramcast.card.device.containers import all_of, stored
from vramcast.jobs.building.quantization import count_of
from vramcast.jobs.training.host_optimizer import parts_of, updated_by
from vramcast.memory.parameters import ModuleParameters, ParameterTensor


def count_parameters(
    modules: Mapping[str, nn.Module], optimizers: list[torch.optim.Optimizer], *, by_zero: bool = False
) -> tuple[ModuleParameters, ...]:
    """Trained is what an optimizer updates. `by_zero`: it updates this rank's part of all that learns, in one piece."""
    updated = {id(p) for optimizer in optimizers for p in updated_by(optimizer)}
    state = _state_bytes(optimizers)
    if by_zero:
        learning = [p for module in modules.values() for p in module.parameters() if p.requires_grad]
        updated |= {id(parameter) for parameter in learning}
        state = _state_of_pieces(learning, optimizers, state)
    rows, seen = [], set()
    for component, module in modules.items():
        for path, child in module.named_modules():
            own = {name: p for name, p in child.named_parameters(recurse=False) if id(p) not in seen}
            seen |= {id(parameter) for parameter in own.values()}
            if own:
                rows.append(_row(f"{component}.{path}" if path else component, own, updated, state))
    return tuple(rows)


class _State(NamedTuple):
    size_bytes: int = 0
    names: tuple[str, ...] = ()
    """Names of the entries that lie on the card."""


def _row(
    name: str, parameters: Mapping[str, nn.Parameter], updated: set[int], state: Mapping[int, _State]
) -> ModuleParameters:
    tensors = tuple(_tensor(own_name, parameter, updated, state) for own_name, parameter in parameters.items())
    return ModuleParameters(
        module=name,
        count=sum(tensor.count for tensor in tensors),
        trained_count=sum(tensor.count for tensor in tensors if tensor.trained),
        weights_bytes=sum(tensor.weights_bytes for tensor in tensors),
        gradients_bytes=sum(tensor.gradients_bytes for tensor in tensors),
        optimizer_bytes=sum(tensor.optimizer_bytes for tensor in tensors),
        tensors=tensors,
    )


def _tensor(name: str, parameter: nn.Parameter, updated: set[int], states: Mapping[int, _State]) -> ParameterTensor:
    trained = parameter.requires_grad and id(parameter) in updated
    state = states.get(id(parameter), _State()) if trained else _State()
    return ParameterTensor(
        name=name,
        count=getattr(parameter, "ds_numel", None) or count_of(parameter),
        shape=tuple(getattr(parameter, "ds_shape", parameter.shape)),
        dtype=str(parameter.dtype).removeprefix("torch."),
        trained=trained,
        weights_bytes=_bytes(parameter),
        gradients_bytes=_bytes(parameter) if trained else 0,
        optimizer_bytes=state.size_bytes,
        state=state.names,
    )


def _state_bytes(optimizers: list[torch.optim.Optimizer]) -> dict[int, _State]:
    """Optimizer state by parameter; a table that several share (bitsandbytes' quantization map) counts for the
    first."""
    seen: set[int] = set()
    states: dict[int, _State] = {}
    for optimizer in (part for wrapper in optimizers for part in parts_of(wrapper)):
        for parameter, state in optimizer.state.items():
            size, names = 0, []
            for name, value in state.items():
                held = (part for whole in all_of(torch.Tensor, value) for part in stored(whole))
                new = [tensor for tensor in held if tensor.is_cuda and id(tensor) not in seen]
                seen |= {id(tensor) for tensor in new}
                size += sum(_bytes(tensor) for tensor in new)
                if new:
                    names.append(str(name))
            states[id(parameter)] = _State(size, tuple(names))
    return states


def _state_of_pieces(
    learning: list[nn.Parameter], optimizers: list[torch.optim.Optimizer], state: Mapping[int, _State]
) -> dict[int, _State]:
    """Each parameter's share of the pieces that ZeRO's optimizer holds, and of their state."""
    pieces = [piece for optimizer in optimizers for piece in optimizer.state]
    held = sum(state.get(id(piece), _State()).size_bytes + _bytes(piece) for piece in pieces if piece.is_cuda)
    names = next((one.names for one in state.values() if one.names), ())
    sizes = [getattr(parameter, "ds_numel", None) or parameter.numel() for parameter in learning]
    whole = max(1, sum(sizes))
    return {
        id(parameter): _State(held * size // whole, ("fp32 copy", *names))
        for parameter, size in zip(learning, sizes, strict=True)
    }


def _bytes(tensor: torch.Tensor) -> int:
    """On this rank: ZeRO's third stage leaves a parameter empty and keeps its part beside it."""
    part = getattr(tensor, "ds_tensor", None)
    if part is not None:
        return _bytes(part)
    return tensor.numel() * tensor.element_size()
