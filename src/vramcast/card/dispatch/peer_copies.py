"""Copies from one card of the machine to another, and gradients that come back the same way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vramcast.card.device.one_card import CARD
from vramcast.card.dispatch.storages import GPU, block_of, dense_parts

if TYPE_CHECKING:
    from vramcast.card.dispatch.functions import FunctionMode

META = torch.device("meta")


def card_of(tensor: torch.Tensor) -> int:
    """The card that a tensor of the GPU lies on."""
    parts = dense_parts(tensor)
    block = block_of(parts[0]) if parts else None
    if block is None and is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return card_of(getattr(tensor, names[0])) if names else CARD.index
    return CARD.index if block is None else block.card


def to_card(
    mode: FunctionMode, tensor: torch.Tensor, card: int, dtype: torch.dtype | None, **options: Any
) -> torch.Tensor:
    """`tensor.to("cuda:1")` of a tensor that lies on another card."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _Copy.apply(tensor, mode, card, dtype, options)  # type: ignore[no-any-return]
    return _copy(mode, tensor, card, dtype, options)


class _Copy(torch.autograd.Function):
    """Autograd's own node for a copy asks what device the source has, and would see none but meta here."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, mode: FunctionMode, card: int, dtype: torch.dtype | None, options: Any
    ) -> torch.Tensor:
        ctx.came_from = card_of(tensor), tensor.dtype
        ctx.mode = mode
        return _copy(mode, tensor, card, dtype, options)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        card, dtype = ctx.came_from
        return to_card(ctx.mode, grad, card, dtype), None, None, None, None


def _copy(mode: FunctionMode, tensor: torch.Tensor, card: int, dtype: torch.dtype | None, options: Any) -> torch.Tensor:
    """PyTorch runs it on the source's stream, and each of the two streams waits for the other (copy_kernel_cuda)."""
    ledger, log = mode.dispatch.ledger, mode.dispatch.machine.op_log
    timeline = ledger.timeline
    source = card_of(tensor)
    stream = ledger.stream_on_card(source)
    ledger.use_card(card)
    timeline.wait(stream, timeline.record(ledger.stream))
    with log.silent():
        out = mode.copy(tensor, META, dtype, GPU, **{**options, "non_blocking": True})
    ledger.use_card(source)
    log.communicate(f"send {tensor.numel() * tensor.element_size()} 2 1 here")
    ledger.use_card(card)
    timeline.wait(ledger.stream, timeline.record(stream))
    return out
