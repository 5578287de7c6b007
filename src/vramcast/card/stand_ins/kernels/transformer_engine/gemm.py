"""Matrix products (`gemm.cpp`). cuBLASLt takes the workspace that the Python part holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vramcast.card.stand_ins.kernels.transformer_engine.launches import multiply
from vramcast.card.stand_ins.kernels.transformer_engine.names import torch_dtype
from vramcast.card.stand_ins.kernels.transformer_engine.quantizers import create, fill, kind_of
from vramcast.card.stand_ins.ops import NotInStandIn


@torch.no_grad()
def _matrix(tensor: Any) -> Tensor:
    """The numbers of a tensor, quantized or not, as rows by columns."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return tensor.reshape(-1, tensor.shape[-1])  # type: ignore[no-any-return]
    if hasattr(tensor, "_rowwise_data"):
        data, other = tensor._rowwise_data, tensor._columnwise_data
        on_its_side = hasattr(tensor, "_is_2D_scaled")
    else:
        data, other, on_its_side = tensor._data, tensor._transpose, True
    if data is not None:
        return data.reshape(-1, data.shape[-1])  # type: ignore[no-any-return]
    if on_its_side:
        return other.reshape(other.shape[0], -1).t()  # type: ignore[no-any-return]
    return other.reshape(-1, other.shape[-1])  # type: ignore[no-any-return]


def _leading(tensor: Any) -> list[int]:
    return list(tensor.size())[:-1]


def generic_gemm(
    A: Any, transa: bool, B: Any, transb: bool, D: Any, quantizer: Any, out_dtype: Any, bias: Tensor | None,
    bias_type: Any, gelu: bool, gelu_in: Tensor | None, grad: bool, workspace: Tensor, workspace_size: int,
    accumulate: bool, use_split_accumulator: bool, comm_overlap: Any = None, comm_type: Any = None,
    extra_output: Tensor | None = None, *rest: Any, **named: Any,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """The product of B and A, both row-major, as cuBLAS sees them."""
    if comm_overlap is not None:
        raise NotInStandIn("transformer_engine_torch.generic_gemm with userbuffers", "leave ub_overlap out")
    left, right = _operands(A, transa, B, transb)
    dtype = torch_dtype(out_dtype) if out_dtype is not None else A.dtype
    shape = [left.shape[0], right.shape[1]] if transb else [*_leading(B), right.shape[1]]
    if D is None:
        D = create(quantizer, shape, dtype, left.device)
    plain = D
    if quantizer is not None:  # delayed scaling of products in 8 bits is quantized by the product itself
        at_once = kind_of(quantizer) == "Float8Quantizer" and left.dtype == torch.uint8
        plain = D._data if at_once else torch.empty(shape, dtype=dtype, device=left.device)
    bias_grad = left.new_empty(B.size()[-1], dtype=dtype) if bias is not None and grad else None
    held = [] if bias is None or grad or bias.is_contiguous() else [bias.contiguous()]
    low = left.dtype == torch.uint8
    before_gelu = gelu_in
    if gelu and not grad:
        before_gelu = left.new_empty(shape, dtype=torch_dtype(bias_type) if low else dtype)
    held += [*_swizzled(A), *_swizzled(B)]
    multiply(left, right, plain)
    if plain is not D and plain.dtype != torch.uint8:
        fill(quantizer, plain, D)
    del held
    return D, bias_grad, before_gelu if gelu else None, extra_output


def _operands(A: Any, transa: bool, B: Any, transb: bool) -> tuple[Tensor, Tensor]:
    left, right = _matrix(B), _matrix(A)
    return left.t() if transb else left, right.t() if transa else right


def _swizzled(tensor: Any) -> list[Tensor]:
    """Scales of 32 numbers each, in the order that cuBLAS wants."""
    if getattr(tensor, "_with_gemm_swizzled_scales", True):
        return []
    return [torch.empty_like(scales) for scales in (tensor._rowwise_scale_inv, tensor._columnwise_scale_inv)
            if scales is not None]  # fmt: skip


def te_general_grouped_gemm(
    A: list[Any], transa: bool, B: list[Any], transb: bool, D: list[Tensor] | None, D_type: Any, m_splits: list[int],
    bias: list[Tensor], bias_type: Any, single_output: bool, pre_gelu_out: list[Tensor], grad: bool,
    *settings: Any,
) -> list[Tensor] | None:  # fmt: skip
    """One product for each expert, the results in one tensor or in one for each."""
    dtype = torch_dtype(D_type)
    outs = list(D) if D is not None else None
    if single_output:
        assert outs is not None
        outs = list(torch.split(outs[0].view(-1, outs[0].shape[-1]), m_splits))
    made = []
    for index, (a, b) in enumerate(zip(A, B, strict=True)):
        left, right = _operands(a, transa, b, transb)
        out = outs[index] if outs is not None else left.new_empty((left.shape[0], right.shape[1]), dtype=dtype)
        if left.numel() and right.numel():
            multiply(left, right, out)
        made.append(out)
    return made if D is None else bias
