"""Functions over lists of tensors (`multi_tensor`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.kernels.transformer_engine.launches import launch

_BLOCKS = 320
"""Partial sums of a norm, `multi_tensor/l2norm.cu`."""


def multi_tensor_l2norm(
    chunk: int, noop: Tensor, lists: list[list[Tensor]], per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    tensors, device = lists[0], lists[0][0].device
    partial = torch.zeros(_BLOCKS, dtype=torch.float32, device=device)
    total = torch.empty(1, dtype=torch.float32, device=device)
    chunks = max(-(-tensor.numel() // chunk) for tensor in tensors)
    of_chunks = torch.zeros(len(tensors) * chunks if per_tensor else 0, dtype=torch.float32, device=device)
    each = torch.empty(len(tensors) if per_tensor else 0, dtype=torch.float32, device=device)
    launch(tensors, [partial, total])
    del partial, of_chunks
    return total, each


def multi_tensor_unscale_l2norm(
    chunk: int, noop: Tensor, lists: list[list[Tensor]], scale: Tensor, per_tensor: bool | None = None
) -> tuple[Tensor, Tensor]:
    return multi_tensor_l2norm(chunk, noop, lists, per_tensor)


def multi_tensor_scale(chunk: int, noop: Tensor, lists: list[list[Tensor]], *settings: Any) -> None:
    source, target = lists
    launch(source, target)


multi_tensor_scale_tensor = multi_tensor_scale


def _update(chunk: int, noop: Tensor, lists: list[list[Tensor]], *settings: Any) -> None:
    """In place; the first list holds the gradients."""
    gradients, *updated = lists
    launch(gradients, [tensor for tensors in updated for tensor in tensors if isinstance(tensor, Tensor)])


UPDATES: dict[str, Callable[..., None]] = dict.fromkeys(
    (
        *("multi_tensor_adam", "multi_tensor_adam_param_remainder", "multi_tensor_adam_fp8", "multi_tensor_sgd"),
        *("multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master"),
        *("multi_tensor_compute_scale_and_scale_inv", "multi_tensor_compute_scale_inv_e8m0"),
    ),
    _update,
)
