"""RMS norm as CUDA's fused kernel does it: one output, one number a row saved for backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.choices.traced import is_traced

if TYPE_CHECKING:
    from vramcast.card.dispatch.op_log import OpLog


class _FusedRmsNorm(torch.autograd.Function):
    """PyTorch has no autograd formula for the fused op on meta tensors, so this saves what CUDA's saves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, dims: int, log: OpLog) -> torch.Tensor:
        ctx.log, ctx.shape = log, list(x.shape[x.dim() - dims :])
        with log.instead("aten._fused_rms_norm.default", (x, ctx.shape, weight)):
            dense = x.contiguous()
            out = torch.empty_like(dense)
            statistics = (*x.shape[: x.dim() - dims], *([1] * dims))
            wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
            ctx.save_for_backward(x, weight, torch.empty(statistics, dtype=wide, device=x.device))
            return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, statistics = ctx.saved_tensors
        needed = list(ctx.needs_input_grad[:2])
        arguments = (grads[0], x, ctx.shape, statistics, weight, needed)
        with ctx.log.instead("aten._fused_rms_norm_backward.default", arguments):
            dense = [t.contiguous() for t in (x, grads[0])]
            dx = torch.empty_like(dense[0]) if needed[0] else None
            dw = torch.empty_like(weight) if weight is not None and needed[1] else None
            return dx, dw, None, None


def _taken_apart() -> Any:
    from torch._decomp import decompositions  # slow to import

    return decompositions


class _TracedRmsNorm(torch.autograd.Function):
    """The fused op and its gradient as AOTAutograd takes them apart."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, shape: list[int], eps: float | None
    ) -> torch.Tensor:
        out, statistics = _taken_apart()._fused_rms_norm(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, statistics)
        ctx.shape = shape
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight, statistics = ctx.saved_tensors
        needed = list(ctx.needs_input_grad[:2])
        dx, dw = _taken_apart()._fused_rms_norm_backward(grads[0], x, ctx.shape, statistics, weight, needed)
        return dx, dw, None, None


def rms_norm_for(log: OpLog) -> Callable[..., torch.Tensor]:
    def rms_norm(
        input: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
    ) -> torch.Tensor:
        """rms_norm_symint in aten/src/ATen/native/layer_norm.cpp: fused unless dtypes differ or layout is
        channels-last."""
        mismatch = weight is not None and weight.dtype != input.dtype
        if mismatch or input.is_complex() or _channels_last(input):
            return _composite(input, len(normalized_shape), weight)
        if is_traced(input):
            return _TracedRmsNorm.apply(input, weight, normalized_shape, eps)  # type: ignore[no-any-return]
        return _FusedRmsNorm.apply(input, weight, len(normalized_shape), log)  # type: ignore[no-any-return]

    return rms_norm


def _channels_last(x: torch.Tensor) -> bool:
    layout = torch.channels_last if x.dim() == 4 else torch.channels_last_3d if x.dim() == 5 else None
    return layout is not None and x.is_contiguous(memory_format=layout) and not x.is_contiguous()


def _composite(x: torch.Tensor, dims: int, weight: torch.Tensor | None) -> torch.Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    scale = torch.rsqrt(wide.pow(2).mean(list(range(x.dim() - dims, x.dim())), keepdim=True).add_(1e-6))
    out = wide * scale
    out = out * weight if weight is not None else out
    return out.type_as(x)


def mish_backward_for(log: OpLog) -> Callable[..., torch.Tensor]:
    def mish_backward(grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
        """One kernel on CUDA; on meta it would be taken apart."""
        if is_traced(self):
            return _taken_apart().mish_backward(grad_output, self)  # type: ignore[no-any-return]
        with log.instead("aten.mish_backward.default", (grad_output, self)):
            return torch.empty_like(self)

    return mish_backward
