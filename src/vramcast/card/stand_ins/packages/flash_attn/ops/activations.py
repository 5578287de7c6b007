"""As in flash-attn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import op


@op("flash_attn::swiglu_fwd(Tensor x, Tensor y) -> Tensor")
def _forward(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@op("flash_attn::swiglu_bwd(Tensor x, Tensor y, Tensor dout) -> (Tensor, Tensor)")
def _backward(x: Tensor, y: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), y.new_empty(y.shape)


class SwiGLUFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.save_for_backward(x, y)
        return torch.ops.flash_attn.swiglu_fwd(x, y)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        return torch.ops.flash_attn.swiglu_bwd(*ctx.saved_tensors, dout)


swiglu = SwiGLUFunction.apply
