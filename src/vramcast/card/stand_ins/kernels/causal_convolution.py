"""causal-conv1d (causal_conv1d_interface.py, csrc/causal_conv1d.cpp); version 1.6.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.ops import is_traced, op


@op(
    "DaoAILab::_causal_conv1d_fwd_cpp(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, "
    "Tensor? initial_states, Tensor(a!) out, Tensor(b!)? final_states_out, bool silu_activation) -> ()"
)
def run_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None, out: Tensor,
    final_states_out: Tensor | None, silu_activation: bool,
) -> None:  # fmt: skip
    return None


@op(
    "DaoAILab::_causal_conv1d_bwd_cpp(Tensor x, Tensor weight, Tensor? bias, Tensor dout, Tensor? seq_idx, "
    "Tensor? initial_states, Tensor(a!)? dfinal_states, Tensor(b!) dx, Tensor(c!) dweight, Tensor(d!)? dbias, "
    "Tensor(e!)? dinitial_states, bool silu_activation) -> ()"
)
def run_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, seq_idx: Tensor | None,
    initial_states: Tensor | None, dfinal_states: Tensor | None, dx: Tensor, dweight: Tensor, dbias: Tensor | None,
    dinitial_states: Tensor | None, silu_activation: bool,
) -> None:  # fmt: skip
    """Where the order of additions is fixed, each sample (and chunk) has its own sums."""
    if is_traced(x) or not torch.are_deterministic_algorithms_enabled():
        return
    batch, channels, length = x.shape
    chunks = 1 if x.stride(2) == 1 else -(-length // (64 if length <= 128 else 128))
    parts = x.new_zeros((batch, chunks, channels, weight.shape[-1]), dtype=torch.float32)
    of_bias = None if dbias is None else x.new_zeros((batch, chunks, channels), dtype=torch.float32)
    dweight.add_(parts.sum((0, 1)))
    if of_bias is not None and dbias is not None:
        dbias.add_(of_bias.sum((0, 1)))


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None, initial_states: Tensor | None,
    final_states_out: Tensor | None, silu_activation: bool,
) -> Tensor:  # fmt: skip
    out = torch.empty_like(x)
    torch.ops.DaoAILab._causal_conv1d_fwd_cpp(
        x, weight, bias, seq_idx, initial_states, out, final_states_out, silu_activation
    )
    return out


def backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, seq_idx: Tensor | None,
    initial_states: Tensor | None, dfinal_states: Tensor | None, dx: Tensor | None, return_dinitial_states: bool,
    silu_activation: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    dx = torch.empty_like(x) if dx is None else dx
    dweight = torch.zeros_like(weight, dtype=torch.float32)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    dinitial = None
    if return_dinitial_states:
        dinitial = x.new_empty((x.shape[0], weight.shape[-1] - 1, x.shape[1])).transpose(1, 2)
    torch.ops.DaoAILab._causal_conv1d_bwd_cpp(
        x, weight, bias, dout, seq_idx, initial_states, dfinal_states, dx, dweight, dbias, dinitial, silu_activation
    )
    return dx, dweight.type_as(weight), None if dbias is None or bias is None else dbias.type_as(bias), dinitial


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(2) == 1 or x.stride(1) == 1 else x.contiguous()


class CausalConv1d(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, seq_idx: Tensor | None,
        initial_states: Tensor | None, return_final_states: bool, final_states_out: Tensor | None, activation: Any,
    ) -> Any:  # fmt: skip
        if activation not in (None, "silu", "swish"):
            raise NotImplementedError("activation must be None, silu, or swish")
        x = _dense(x)
        final = final_states_out if return_final_states else None
        if return_final_states and final is None:
            final = x.new_empty((x.shape[0], weight.shape[1] - 1, x.shape[1])).transpose(1, 2)
        ctx.silu = activation is not None
        out = forward(x, weight, bias, seq_idx, initial_states, final, ctx.silu)
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.returns_states = return_final_states
        return (out, final) if return_final_states else out

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *args: Any) -> Any:
        x, weight, bias, seq_idx, initial = ctx.saved_tensors
        dfinal = args[0] if ctx.returns_states else None
        wanted = initial is not None and initial.requires_grad
        dx, dweight, dbias, dinitial = backward(
            x, weight, bias, _dense(dout), seq_idx, initial, dfinal, None, wanted, ctx.silu
        )
        return dx, dweight, dbias, None, dinitial, None, None, None


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False, final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:  # fmt: skip
    apply: Callable[..., Any] = CausalConv1d.apply
    return apply(x, weight, bias, seq_idx, initial_states, return_final_states, final_states_out, activation)


def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, *args: Any, **options: Any) -> Tensor:
    """One step of inference."""
    return torch.empty_like(x)
