"""Fused layer norm and RMS norm of flash-attn and mamba-ssm (ops/triton/layer_norm.py), which add a residual, drop
elements and normalise in one kernel; version 2.8.4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import autotuned, dense_rows, is_traced, multiprocessors, op

_PROGRAMS_PER_MULTIPROCESSOR = 8


@op(
    "flash_attn::layer_norm_fwd(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, Tensor? x1, Tensor? weight1, "
    "float dropout_p, Tensor? rowscale, ScalarType? out_dtype, ScalarType? residual_dtype, bool is_rms_norm) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, x1: Tensor | None,
    weight1: Tensor | None, dropout_p: float, rowscale: Tensor | None, out_dtype: torch.dtype | None,
    residual_dtype: torch.dtype | None, is_rms_norm: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The results, the sum that backward wants (empty where that is x itself), mean, 1/deviation, seeds."""
    rows, width = x.shape
    none = x.new_empty(0)
    out = torch.empty_like(x, dtype=out_dtype or x.dtype)
    residual_dtype = residual.dtype if residual is not None else residual_dtype
    own = residual_dtype is not None and (residual is not None or residual_dtype != x.dtype)
    total = none
    if own or dropout_p > 0.0 or rowscale is not None or x1 is not None:
        total = torch.empty_like(x, dtype=residual_dtype or x.dtype)
    second = none if weight1 is None else torch.empty_like(out)
    mean = none if is_rms_norm else x.new_empty(rows, dtype=torch.float32)
    deviation = x.new_empty(rows, dtype=torch.float32)
    seeds = none
    if dropout_p > 0.0:
        seeds = x.new_empty(rows if x1 is None else 2 * rows, dtype=torch.int64)
    if not is_traced(x):
        present = (residual is not None, total is not none, is_rms_norm, bias is not None, x1 is not None)
        autotuned(x.device, "layer_norm_fwd", width, *present, weight1 is not None, x.dtype)
    return out, second, total, mean, deviation, seeds


@op(
    "flash_attn::layer_norm_bwd(Tensor dy, Tensor x, Tensor weight, Tensor? bias, Tensor? dresidual, Tensor? weight1, "
    "float dropout_p, Tensor? rowscale, bool has_residual, bool has_x1, bool is_rms_norm, ScalarType x_dtype) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, dresidual: Tensor | None, weight1: Tensor | None,
    dropout_p: float, rowscale: Tensor | None, has_residual: bool, has_x1: bool, is_rms_norm: bool,
    x_dtype: torch.dtype,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, of the weight and the bias, of the residual and of x1 (empty where they are x's), of weight1."""
    held = dense_rows(dy)
    rows, width = x.shape
    none = x.new_empty(0)
    dx = x.new_empty((rows, width), dtype=x_dtype)
    apart = dx.dtype != x.dtype or dropout_p > 0.0 or rowscale is not None or has_x1
    dresidual_in = torch.empty_like(x) if has_residual and apart else none
    dx1 = torch.empty_like(dx) if has_x1 and dropout_p > 0.0 else none
    programs = 1 if is_traced(x) else multiprocessors(x) * _PROGRAMS_PER_MULTIPROCESSOR
    wanted = [tensor for tensor in (weight, bias, weight1) if tensor is not None]
    partial = [x.new_empty((programs, width), dtype=torch.float32) for _ in wanted]
    if not is_traced(x):
        autotuned(
            x.device, "layer_norm_bwd", width, dresidual is not None, dresidual_in is not none, is_rms_norm,
            bias is not None, dropout_p > 0.0, x.dtype,
        )  # fmt: skip
    sums = [part.sum(0).to(tensor.dtype) for part, tensor in zip(partial, wanted, strict=True)]
    dweight = sums.pop(0)
    dbias = sums.pop(0) if bias is not None else none
    dweight1 = sums.pop(0) if weight1 is not None else none
    del held
    return dx, dweight, dbias, dresidual_in, dx1, dweight1


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, x1: Tensor | None,
        weight1: Tensor | None, dropout_p: float, rowscale: Tensor | None, prenorm: bool, residual_in_fp32: bool,
        is_rms_norm: bool, out_dtype: torch.dtype | None,
    ) -> Any:  # fmt: skip
        shape = x.shape
        x = dense_rows(x.reshape(-1, shape[-1]))
        residual = None if residual is None else dense_rows(residual.reshape(-1, shape[-1]))
        x1 = None if x1 is None else dense_rows(x1.reshape(-1, shape[-1]))
        residual_dtype = torch.float32 if residual is None and residual_in_fp32 else None
        y, y1, total, mean, deviation, seeds = torch.ops.flash_attn.layer_norm_fwd(
            x, weight, bias, residual, x1, weight1, dropout_p, rowscale, out_dtype, residual_dtype, is_rms_norm
        )
        if not total.numel():
            total = x
        ctx.save_for_backward(total, weight, bias, weight1, rowscale, seeds, mean, deviation)
        ctx.shape, ctx.dropout_p, ctx.is_rms_norm, ctx.dtype = shape, dropout_p, is_rms_norm, x.dtype
        ctx.has_residual, ctx.has_x1, ctx.prenorm = residual is not None, x1 is not None, prenorm
        results = [y.reshape(shape)]
        results += [y1.reshape(shape)] if weight1 is not None else []
        results += [total.reshape(shape)] if prenorm else []
        return results[0] if len(results) == 1 else tuple(results)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *args: Tensor) -> Any:
        x, weight, bias, weight1, rowscale, *_ = ctx.saved_tensors
        dresidual = args[-1].reshape(x.shape) if ctx.prenorm else None
        dx, dweight, dbias, dresidual_in, dx1, dweight1 = torch.ops.flash_attn.layer_norm_bwd(
            dy.reshape(-1, dy.shape[-1]), x, weight, bias, dresidual, weight1, ctx.dropout_p, rowscale,
            ctx.has_residual, ctx.has_x1, ctx.is_rms_norm, ctx.dtype,
        )  # fmt: skip
        dresidual_in = dresidual_in if dresidual_in.numel() else dx
        dx1 = dx1 if dx1.numel() else dx
        return (
            dx.reshape(ctx.shape), dweight, dbias if bias is not None else None,
            dresidual_in.reshape(ctx.shape) if ctx.has_residual else None,
            dx1.reshape(ctx.shape) if ctx.has_x1 else None, dweight1 if weight1 is not None else None,
            *(None,) * 6,
        )  # fmt: skip


def layer_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None, x1: Tensor | None = None,
    weight1: Tensor | None = None, bias1: Tensor | None = None, eps: float = 1e-6, dropout_p: float = 0.0,
    rowscale: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False,
    zero_centered_weight: bool = False, is_rms_norm: bool = False, return_dropout_mask: bool = False,
    out_dtype: torch.dtype | None = None, out: Tensor | None = None, residual_out: Tensor | None = None,
) -> Any:  # fmt: skip
    apply: Callable[..., Any] = Norm.apply
    return apply(
        x, weight, bias, residual, x1, weight1, dropout_p, rowscale, prenorm, residual_in_fp32, is_rms_norm, out_dtype
    )


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, *args: Any, **options: Any) -> Any:
    options["is_rms_norm"] = True
    return layer_norm_fn(x, weight, bias, *args, **options)


class RMSNorm(torch.nn.Module):
    def __init__(
        self, hidden_size: int, eps: float = 1e-5, dropout_p: float = 0.0, zero_centered_weight: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        self.drop = torch.nn.Dropout(dropout_p) if dropout_p > 0.0 else None
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.weight)

    def forward(
        self, x: Tensor, residual: Tensor | None = None, prenorm: bool = False, residual_in_fp32: bool = False
    ) -> Any:
        dropout_p = self.drop.p if self.drop is not None and self.training else 0.0
        return rms_norm_fn(
            x, self.weight, None, residual=residual, eps=self.eps, dropout_p=dropout_p, prenorm=prenorm,
            residual_in_fp32=residual_in_fp32,
        )  # fmt: skip
