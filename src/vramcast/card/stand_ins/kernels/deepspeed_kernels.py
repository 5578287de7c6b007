"""DeepSpeed's optimizers that update all tensors in one kernel (deepspeed/ops/csrc of 0.19): what the compiled modules
that their builders load have in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import op

_PARTIAL_SUMS = 512
"""Of a norm, `lamb/fused_lamb_cuda.cpp`."""


@op("deepspeed::multi_tensor_update(Tensor[] gradients, Tensor(a!)[] updated) -> ()")
def update(gradients: list[Tensor], updated: list[Tensor]) -> None:
    return None


@op("deepspeed::lamb(Tensor(a!) parameter, Tensor(b!) first, Tensor(c!) second, Tensor gradient) -> Tensor")
def update_with_norms(parameter: Tensor, first: Tensor, second: Tensor, gradient: Tensor) -> Tensor:
    dtype = torch.float32 if parameter.dtype == torch.float16 else parameter.dtype
    of_weights, of_update = (parameter.new_empty(_PARTIAL_SUMS, dtype=dtype) for _ in range(2))
    coefficient = parameter.new_empty(1, dtype=dtype)
    del of_weights, of_update
    return coefficient


def _update_lists(chunk: int, noop: Tensor, lists: list[list[Tensor]], *settings: Any) -> None:
    """In place; the first list holds the gradients."""
    gradients, *updated = lists
    with torch.no_grad():
        torch.ops.deepspeed.multi_tensor_update(gradients, [tensor for tensors in updated for tensor in tensors])


def _lamb(
    parameter: Tensor, copy: Tensor, first: Tensor, second: Tensor, gradient: Tensor, *settings: Any
) -> Tensor:  # fmt: skip
    with torch.no_grad():
        coefficient: Tensor = torch.ops.deepspeed.lamb(parameter, first, second, gradient)
    return coefficient


MODULES = {
    "fused_adam": SimpleNamespace(multi_tensor_adam=_update_lists),
    "fused_lion": SimpleNamespace(multi_tensor_lion=_update_lists),
    "fused_lamb": SimpleNamespace(lamb=_lamb),
}
"""By the name of the builder."""
