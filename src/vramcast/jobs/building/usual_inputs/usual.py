"""What is usual for a model: inputs, the call, sizes to assume, and the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vramcast.jobs.fields import Expression
from vramcast.jobs.schema import Diffusion, Input, Loss

Config = Mapping[str, Any]

_TARGETS = ("labels", "start_positions", "end_positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """Plain data, as a job would say it."""

    inputs: dict[str, Input]
    call: dict[str, str]
    """Argument → reference. "a.b" is key b of a dict a, "a.0" the first of a tuple a."""
    sizes: dict[str, int] = field(default_factory=dict)
    """What to assume where the job does not say a size."""
    loss: tuple[Loss, ...] = (Loss(kind="mean"),)
    diffusion: Diffusion | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the call that are no tensors."""

    def without_targets(self) -> Usual:
        """For a forward pass alone: nothing to compare with."""
        inputs = {name: tensor for name, tensor in self.inputs.items() if name not in _TARGETS}
        call = {argument: ref for argument, ref in self.call.items() if ref not in _TARGETS}
        return dataclasses.replace(self, inputs=inputs, call=call)


def floats(*shape: Expression, **more: Any) -> Input:
    return Input(shape=list(shape), **more)


def integers(*shape: Expression, below: int, **more: Any) -> Input:
    return Input(shape=list(shape), dtype="int64", below=max(1, below), **more)


def ones(*shape: Expression) -> Input:
    return Input(shape=list(shape), dtype="int64", fill="ones")


def by_name(inputs: dict[str, Input]) -> dict[str, str]:
    """Each input goes to the argument of its name."""
    return {name: name for name in inputs}


def pair(value: Any, default: int) -> tuple[int, int]:
    """(height, width) from one number or two."""
    if isinstance(value, (list, tuple)) and len(value) >= 2:
        return int(value[-2]), int(value[-1])
    if isinstance(value, Mapping) and "height" in value:
        return int(value["height"]), int(value["width"])
    return (int(value), int(value)) if value else (default, default)
