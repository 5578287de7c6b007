"""Ops that CUDA has and whose meta kernels PyTorch lacks: what they return, and what they take meanwhile."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.dispatch.storages import known_values
from vramcast.card.ops.registry import Call, kernel


@kernel(
    "aten::multi_margin_loss_backward",
    "aten::multilabel_margin_loss_backward",
    "aten::fractional_max_pool3d_backward",
)
def gradient_of_input(call: Call) -> Any:
    """One gradient, as large as the input."""
    x = call.args[1]
    held = [] if x.is_contiguous() else [call.empty(x.size(), x.dtype)]
    out = call.empty(x.size(), x.dtype)
    del held
    return out


@kernel("aten::_padded_dense_to_jagged_forward")
def padded_to_jagged(call: Call) -> Any:
    """The rows that are no padding, made twice (NestedTensorTransformerFunctions.cu); how many is usually given."""
    dense, rows = call.args[0], call.argument("total_L")
    if rows is None:
        ends = known_values(call.args[1][-1])
        if ends is None:
            raise NotImplementedError
        rows = int(ends.max())
    held = call.empty((rows, dense.size(-1)), dense.dtype)
    out = call.empty(held.size(), dense.dtype)
    del held
    return out


@kernel("aten::glu_jvp")
def glu_jvp(call: Call) -> Any:
    glu = call.args[0]
    return call.empty(glu.size(), glu.dtype)


@kernel("aten::glu_backward_jvp")
def glu_backward_jvp(call: Call) -> Any:
    grad_x = call.args[0]
    return call.empty(grad_x.size(), grad_x.dtype)


@kernel("aten::_fake_quantize_learnable_per_tensor_affine", "aten::_fake_quantize_learnable_per_channel_affine")
def fake_quantize_learnable(call: Call) -> Any:
    """Per tensor the mask of values in range is made and dropped; per channel the scales are rounded into copies."""
    x, scale = call.args[:2]
    if "per_tensor" in call.func._schema.name:
        out, mask = call.empty(x.size(), x.dtype), call.empty(x.size(), torch.bool)
        del mask
        return out
    zero_points = call.empty(scale.size(), torch.int32)
    out = call.empty(x.size(), x.dtype)
    del zero_points
    return out


@kernel(
    "aten::_fake_quantize_learnable_per_tensor_affine_backward",
    "aten::_fake_quantize_learnable_per_channel_affine_backward",
)
def fake_quantize_learnable_backward(call: Call) -> Any:
    """The gradients of scale and zero point are made for every element and then summed."""
    _, x, scale, zero_point = call.args[:4]
    grad_x = call.empty(x.size(), x.dtype)
    each = [call.empty(x.size(), x.dtype) for _ in range(2)]
    sums = [call.empty(t.size(), t.dtype) for t in (scale, zero_point)]
    del each
    return grad_x, *sums


@kernel("aten::geqrf")
def geqrf(call: Call) -> Any:
    """Both factors in a copy of the matrix, column by column (geqrf_out_helper in BatchLinearAlgebra.cpp)."""
    a = call.args[0]
    factors = call.empty(a.mT.size(), a.dtype).mT
    return factors, call.empty((*a.shape[:-2], min(a.shape[-2:])), a.dtype)


@kernel("aten::cholesky_solve", "aten::_cholesky_solve_helper")
def cholesky_solve(call: Call) -> Any:
    """Both sides are copied, column by column (_cholesky_solve_helper_cuda_cusolver in BatchLinearAlgebraLib.cpp)."""
    right, factor = call.args[:2]
    batch = torch.broadcast_shapes(right.shape[:-2], factor.shape[:-2])
    info = call.empty((1,), torch.int32)
    solution = call.empty((*batch, right.size(-1), right.size(-2)), right.dtype).mT
    copied = call.empty((*batch, *factor.shape[-2:]), factor.dtype)
    if batch.numel() > 1 and right.size(-1) == 1:
        call.scratch(8 * batch.numel(), 8 * batch.numel())  # potrsBatched takes arrays of pointers
    del info, copied
    return solution


@kernel("aten::linalg_lstsq")
def linalg_lstsq(call: Call) -> Any:
    """The driver gels, the only one on CUDA: a QR factorization of a copy of the matrix. The solution keeps the rows in
    which the residuals were (linalg_lstsq_out_info in BatchLinearAlgebra.cpp)."""
    a, b = call.args[:2]
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    batch = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    n_right = right.size(-1)
    info = call.empty(batch, torch.int32)
    solution = call.empty((*batch, n_right, max(rows, columns)), a.dtype).mT
    factors = call.empty(a.mT.size(), a.dtype)
    tau = call.empty((*a.shape[:-2], min(rows, columns)), a.dtype)
    del tau, info
    residuals = call.empty((*batch, n_right) if rows > columns else (0,), a.dtype.to_real())
    del factors
    solution = solution.narrow(-2, 0, columns)
    nothing = call.empty((0,), torch.int64), call.empty((0,), a.dtype.to_real())
    return solution.squeeze(-1) if is_vector else solution, residuals, *nothing
