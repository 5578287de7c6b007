"""Functions over lists of tensors: `pytorch/csrc/extensions/multi_tensor`."""

from __future__ import annotations

from typing import Any

import torch

BLOCKS = 320
"""Partial sums of a norm, `multi_tensor/l2norm.cu`."""


def multi_tensor_l2norm(
    chunk: int, noop: torch.Tensor, lists: list[list[torch.Tensor]], per_tensor: bool | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    device = noop.device
    partial = torch.zeros(BLOCKS, dtype=torch.float32, device=device)
    each = torch.zeros(len(lists[0]) if per_tensor else 0, dtype=torch.float32, device=device)
    total = torch.empty(1, dtype=torch.float32, device=device)
    del partial
    return total, each


def multi_tensor_unscale_l2norm(
    chunk: int, noop: torch.Tensor, lists: list[list[torch.Tensor]], scale: torch.Tensor, per_tensor: bool | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return multi_tensor_l2norm(chunk, noop, lists, per_tensor)


def multi_tensor_scale(chunk: int, noop: torch.Tensor, lists: list[list[torch.Tensor]], scale: float) -> None:
    for source, target in zip(*lists, strict=True):
        target.detach().copy_(source.detach())


multi_tensor_scale_tensor = multi_tensor_scale


def multi_tensor_adam(chunk: int, noop: torch.Tensor, lists: list[list[torch.Tensor]], *settings: Any) -> None:
    """In place; the first lists are gradients, parameters and the two moments."""
    gradients, parameters, *moments = lists
    for gradient, parameter in zip(gradients, parameters, strict=True):
        parameter.detach().copy_(gradient.detach())
    for moment in moments:
        for tensor in moment:
            tensor.detach().mul_(1.0)


def multi_tensor_adam_param_remainder(
    chunk: int, noop: torch.Tensor, lists: list[list[torch.Tensor]], *rest: Any
) -> None:
    multi_tensor_adam(chunk, noop, lists)
