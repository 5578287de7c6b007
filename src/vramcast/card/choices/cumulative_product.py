"""The gradient of cumprod as it is worked out on a card.

PyTorch asks the card whether a factor is zero. Where none is, a sum from the end does; else, and always under a
dispatch mode, it goes through the columns one by one (cumprod_backward in FunctionsManual.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_ASSUMED = "the gradient of cumprod: assumed that no factor is zero; with zeros it takes far longer"


def cumprod_for(machine: Any) -> Callable[..., torch.Tensor]:
    class CumulativeProduct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
            result = _plain(input, dim, dtype)
            ctx.save_for_backward(input, result)
            ctx.dim = dim
            return result

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
            input, result = ctx.saved_tensors
            grad = grad.to(input.dtype)
            if input.numel() <= 1 or input.size(ctx.dim) == 1:
                return grad, None, None
            machine.note("unknown value", _ASSUMED)
            weighted = result.conj() * grad
            is_zero = input == 0
            is_zero.any().item()
            turned = weighted.flip(ctx.dim)
            sums = turned.cumsum(ctx.dim)
            from_the_end = sums.flip(ctx.dim)
            del sums, turned  # one expression in C++, whose parts live to its end
            return from_the_end.div(input.conj()), None, None

    def cumprod(self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        if torch.is_grad_enabled() and self.requires_grad:
            return CumulativeProduct.apply(self, dim, dtype)  # type: ignore[no-any-return]
        return _plain(self, dim, dtype)

    return cumprod


def _plain(input: torch.Tensor, dim: int, dtype: torch.dtype | None) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.aten.cumprod.default(input, dim, dtype=dtype)  # type: ignore[no-any-return]
