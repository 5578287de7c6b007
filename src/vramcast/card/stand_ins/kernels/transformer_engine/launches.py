"""Operators that stand for kernels: they allocate nothing, and their time follows from their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import op


@op("transformer_engine::launch(Tensor[] reads, Tensor(a!)[] writes) -> ()")
def _launch(reads: list[Tensor], writes: list[Tensor]) -> None:
    return None


@op("transformer_engine::te_gemm(Tensor left, Tensor right, Tensor(a!) out) -> ()")
def _gemm(left: Tensor, right: Tensor, out: Tensor) -> None:
    """cuBLASLt with the workspace that TransformerEngine holds."""
    return


def launch(reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
    with torch.no_grad():
        torch.ops.transformer_engine.launch(list(reads), list(writes))


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    with torch.no_grad():
        torch.ops.transformer_engine.te_gemm(left, right, out.view(left.shape[0], right.shape[1]))


def parts(tensor: Any) -> list[Tensor]:
    """The tensors that a quantized tensor holds; a plain one by itself."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return [tensor]
    return [value for value in vars(tensor).values() if isinstance(value, Tensor)]
