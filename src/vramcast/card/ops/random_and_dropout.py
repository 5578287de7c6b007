"""Dropout as CUDA's fused kernel does it: the mask takes one byte an element. Samplers without a meta kernel."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.registry import Call, kernel


@kernel("aten::native_dropout")
def native_dropout(call: Call) -> Any:
    tensor, p, train = call.args[0], call.argument("p"), call.argument("train")
    if train is False or p == 0:
        out = call.func(*call.args, **call.kwargs)
        call.mode.adopt(out, call.device)
        return out
    dense = tensor.is_contiguous() or _dense(tensor)
    stride = tensor.stride() if dense else None
    mask = call.empty(tensor.size(), torch.bool, stride)
    result = call.empty(tensor.size(), tensor.dtype, stride)
    return result, mask


@kernel("aten::_sample_dirichlet", "aten::_standard_gamma", "aten::poisson", "aten::binomial")
def sample(call: Call) -> Any:
    """Distributions.cpp for CUDA: one tensor like the parameters (for binomial, like the counts)."""
    parameters = call.args[0]
    return call.empty(parameters.size(), parameters.dtype, parameters.stride() if _dense(parameters) else None)


@kernel("aten::_dirichlet_grad", "aten::_standard_gamma_grad")
def sample_backward(call: Call) -> Any:
    shape = torch.broadcast_shapes(*(arg.shape for arg in call.args if isinstance(arg, torch.Tensor)))
    return call.empty(shape, call.args[0].dtype)


def _dense(tensor: torch.Tensor) -> bool:
    """Non-overlapping and dense: strides can be kept by empty_like."""
    expected = 1
    for stride, size in sorted((st, sz) for st, sz in zip(tensor.stride(), tensor.size(), strict=True) if sz != 1):
        if stride != expected:
            return False
        expected *= size
    return True
