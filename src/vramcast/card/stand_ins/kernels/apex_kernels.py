"""apex: layer and RMS norm (csrc/layer_norm_cuda.cpp) and optimizers that update all tensors in one kernel
(apex/optimizers); the repository of July 2026, which calls itself 0.1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import NotInStandIn, op

_PARTS = 16
"""Blocks that sum the gradients of a norm's weights by themselves."""


@op(
    "apex::norm_fwd(Tensor x, Tensor? weight, Tensor? bias, SymInt width, bool centred, bool mixed) "
    "-> (Tensor, Tensor, Tensor)"
)
def norm_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, width: int, centred: bool, mixed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = weight.dtype if mixed and weight is not None else x.dtype
    out = torch.empty_like(x, dtype=dtype)
    rows = x.numel() // width
    statistics = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean = x.new_empty(rows if centred else 0, dtype=statistics)
    return out, mean, x.new_empty(rows, dtype=statistics)


@op(
    "apex::norm_bwd(Tensor grad, Tensor saved, Tensor? weight, Tensor? bias, Tensor deviation, SymInt width) "
    "-> (Tensor, Tensor, Tensor)"
)
def norm_backward(
    grad: Tensor, saved: Tensor, weight: Tensor | None, bias: Tensor | None, deviation: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    none = saved.new_empty(0)
    dx = torch.empty_like(saved)
    dweight = none if weight is None else torch.empty_like(weight)
    dbias = none if bias is None else torch.empty_like(bias)
    partial = [saved.new_empty((_PARTS, width), dtype=deviation.dtype) for t in (weight, bias) if t is not None]
    del partial
    return dx, dweight, dbias


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, width: int, centred: bool, mixed: bool,
        memory_efficient: bool,
    ) -> Any:  # fmt: skip
        x = x.contiguous()
        out, mean, deviation = torch.ops.apex.norm_fwd(x, weight, bias, width, centred, mixed)
        if memory_efficient:
            ctx.save_for_backward(out, weight, bias, None, deviation)
        else:
            ctx.save_for_backward(x, weight, bias, mean, deviation)
        ctx.width, ctx.dtype = width, x.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        saved, weight, bias, _, deviation = ctx.saved_tensors
        dx, dweight, dbias = torch.ops.apex.norm_bwd(grad.contiguous(), saved, weight, bias, deviation, ctx.width)
        return dx, None if weight is None else dweight, None if bias is None else dbias, None, None, None, None


class _FusedNorm(torch.nn.Module):
    _centred, _mixed = True, False

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, memory_efficient: bool = False
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps = torch.Size(shape), eps
        self.elementwise_affine, self.memory_efficient = elementwise_affine, memory_efficient
        self.register_parameter("weight", torch.nn.Parameter(torch.ones(shape)) if elementwise_affine else None)
        if self._centred:
            self.register_parameter("bias", torch.nn.Parameter(torch.zeros(shape)) if elementwise_affine else None)

    def reset_parameters(self) -> None:
        if self.elementwise_affine:
            torch.nn.init.ones_(self.get_parameter("weight"))

    def forward(self, input: Tensor) -> Any:
        bias = self.bias if self._centred else None
        apply: Callable[..., Any] = Norm.apply
        width = math.prod(self.normalized_shape)
        with torch.autocast("cuda", enabled=False):
            return apply(input, self.weight, bias, width, self._centred, self._mixed, self.memory_efficient)


class FusedLayerNorm(_FusedNorm): ...


class FusedRMSNorm(_FusedNorm):
    _centred = False


class MixedFusedLayerNorm(FusedLayerNorm):
    _mixed = True


class MixedFusedRMSNorm(FusedRMSNorm):
    _mixed = True


# -- optimizers -------------------------------------------------------------------------------------------------------


@op("apex::multi_tensor_update(Tensor[] gradients, Tensor(a!)[] parameters, Tensor(b!)[] state) -> ()")
def update(gradients: list[Tensor], parameters: list[Tensor], state: list[Tensor]) -> None:
    return None


class _Fused(torch.optim.Optimizer):
    """Tensors of a dtype are updated together; their state is in fp32 where it is Adam's or LAMB's."""

    _state: tuple[str, ...] = ()
    _in_fp32 = True
    _takes_bf16 = True

    def __init__(self, params: Any, set_grad_none: bool, **defaults: Any) -> None:
        super().__init__(params, defaults)
        self.set_grad_none = set_grad_none
        device = self.param_groups[0]["params"][0].device
        self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device=device)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(set_to_none=self.set_grad_none if set_to_none is None else set_to_none)

    @torch.no_grad()
    def step(self, closure: Any = None, **unused: Any) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            with_gradient = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in with_gradient:
                state = self.state[parameter]
                for name in self._state if not state else ():
                    zeros = torch.zeros_like(parameter)
                    state[name] = zeros.float() if self._in_fp32 else zeros
            if not self._takes_bf16 and any(parameter.dtype == torch.bfloat16 for parameter in with_gradient):
                raise RuntimeError(f"{type(self).__name__} only support fp16 and fp32.")
            for dtype in (torch.float16, torch.bfloat16, torch.float32):
                chosen = [parameter for parameter in with_gradient if parameter.dtype == dtype]
                if chosen:
                    kept = [self.state[parameter][name] for name in self._state for parameter in chosen]
                    torch.ops.apex.multi_tensor_update([p.grad for p in chosen], chosen, kept)
        return loss


class FusedAdam(_Fused):
    _state = ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999),
        eps: float = 1e-8, adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False,
        set_grad_none: bool = True, capturable: bool = False, master_weights: bool = False,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        if master_weights:
            raise NotInStandIn("apex's FusedAdam with master_weights")
        options = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, set_grad_none, weight_decay=weight_decay, **options)


class FusedSGD(_Fused):
    _state = ("momentum_buffer",)
    _in_fp32 = False

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, wd_after_momentum: bool = False, materialize_master_grads: bool = True,
        set_grad_none: bool = False,
    ) -> None:  # fmt: skip
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
        super().__init__(params, set_grad_none, weight_decay=weight_decay, **options)


class FusedLAMB(_Fused):
    _state = ("exp_avg", "exp_avg_sq")
    _in_fp32 = False
    _takes_bf16 = False

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.01, amsgrad: bool = False, adam_w_mode: bool = True, grad_averaging: bool = True,
        set_grad_none: bool = True, max_grad_norm: float = 1.0, use_nvlamb: bool = False,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedLAMB does not support the AMSGrad variant.")
        options = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, set_grad_none, weight_decay=weight_decay, **options)


class FusedAdagrad(_Fused):
    _state = ("sum",)
    _in_fp32 = False
    _takes_bf16 = False

    def __init__(
        self, params: Any, lr: float = 1e-2, eps: float = 1e-10, weight_decay: float = 0.0, set_grad_none: bool = True,
        adagrad_w_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, set_grad_none, lr=lr, eps=eps, weight_decay=weight_decay)
