"""What a source hands back: the module, and what else is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vramcast.jobs.patterns import matches


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast the module. Libraries build in fp32, and nobody casts to that: a buffer that they make in fp64 stays
    fp64."""
    return module if dtype == torch.float32 else module.to(dtype)


def keep_fp32(module: nn.Module, patterns: list[str]) -> None:
    """Bring the parameters with these names into fp32; those that are quantized stay as they are."""
    for name, parameter in module.named_parameters():
        if type(parameter) is nn.Parameter and parameter.is_floating_point() and matches(name, patterns):
            parameter.data = parameter.data.float()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A module on the CPU, without data in its large tensors."""

    module: nn.Module
    config: Mapping[str, Any] = field(default_factory=dict)
    """The model's configuration, where it has one: sizes of its usual inputs come from it."""
    family: str = "factory"
    """transformers, diffusers, timm, torchvision or factory."""
    checkpoints_itself: bool = False
    """It was given the checkpointing that the job says as arguments."""
    base: nn.Module | None = None
    """The model inside adapters, whose class and signature say what it is called with; None: the module itself."""
    copies: tuple[nn.Module, ...] = ()
    """Further copies that only lie on the card."""

    @property
    def model(self) -> nn.Module:
        return self.module if self.base is None else self.base
