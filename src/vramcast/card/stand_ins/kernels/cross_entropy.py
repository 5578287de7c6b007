"""Cross-entropy of flash-attn (ops/triton/cross_entropy.py), one kernel forward and one backward; version 2.8.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import dense_rows, op


@op("flash_attn::cross_entropy_fwd(Tensor logits, Tensor labels, Tensor? lse) -> (Tensor, Tensor, Tensor)")
def forward(logits: Tensor, labels: Tensor, lse: Tensor | None) -> tuple[Tensor, ...]:
    rows = logits.shape[0]
    losses = logits.new_empty(rows, dtype=torch.float32)
    sums = logits.new_empty(rows, dtype=torch.float32)
    return losses, sums, logits.new_empty(rows, dtype=torch.float32)


@op("flash_attn::cross_entropy_bwd(Tensor dlosses, Tensor logits, Tensor lse, Tensor labels) -> Tensor")
def backward(dlosses: Tensor, logits: Tensor, lse: Tensor, labels: Tensor) -> Tensor:
    return torch.empty_like(logits)


@op("flash_attn::cross_entropy_bwd_(Tensor dlosses, Tensor(a!) logits, Tensor lse, Tensor labels) -> ()")
def backward_in_place(dlosses: Tensor, logits: Tensor, lse: Tensor, labels: Tensor) -> None:
    return None


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace_backward: bool) -> Any:
        logits = dense_rows(logits)
        losses, sums, z_losses = torch.ops.flash_attn.cross_entropy_fwd(logits, labels, None)
        ctx.save_for_backward(logits, sums, labels)
        ctx.mark_non_differentiable(z_losses)
        ctx.inplace_backward = inplace_backward
        return losses, z_losses

    @staticmethod
    def backward(ctx: Any, dlosses: Tensor, *unused: Any) -> Any:
        logits, sums, labels = ctx.saved_tensors
        if ctx.inplace_backward:
            torch.ops.flash_attn.cross_entropy_bwd_(dlosses, logits, sums, labels)
            return logits, None, None
        return torch.ops.flash_attn.cross_entropy_bwd(dlosses, logits, sums, labels), None, None


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, precomputed_lse: Tensor | None = None, label_smoothing: float = 0.0,
    logit_scale: float = 1.0, lse_square_scale: float = 0.0, ignore_index: int = -100, inplace_backward: bool = False,
    process_group: Any = None,
) -> Any:  # fmt: skip
    apply: Callable[..., Any] = CrossEntropy.apply
    return apply(logits, labels, inplace_backward)


class CrossEntropyLoss(torch.nn.Module):
    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
        logit_scale: float = 1.0, lse_square_scale: float = 0.0, inplace_backward: bool = False,
        process_group: Any = None, return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.ignore_index, self.reduction, self.inplace_backward = ignore_index, reduction, inplace_backward
        self.return_z_loss = return_z_loss

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Tensor | None = None) -> Any:
        losses, z_losses = cross_entropy_loss(input, target, inplace_backward=self.inplace_backward)
        loss = self._reduced(losses, target)
        return (loss, self._reduced(z_losses, target)) if self.return_z_loss else loss

    def _reduced(self, losses: Tensor, target: Tensor) -> Tensor:
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses
