"""Matrix products: `pytorch/csrc/extensions/gemm.cpp`."""

from __future__ import annotations

from typing import Any

import torch


def torch_dtype(dtype: Any) -> torch.dtype:
    from transformer_engine.pytorch.constants import TE_DType

    return next(each for each, name in TE_DType.items() if name == dtype)


def generic_gemm(
    A: torch.Tensor,
    transa: bool,
    B: torch.Tensor,
    transb: bool,
    D: torch.Tensor | None,
    quantizer: Any,
    out_dtype: Any,
    bias: torch.Tensor | None,
    bias_type: Any,
    gelu: bool,
    gelu_in: torch.Tensor | None,
    grad: bool,
    workspace: torch.Tensor,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    **overlap: Any,
) -> tuple[Any, Any, Any, Any]:
    """The product of B and A, both row-major, as cuBLAS sees them."""
    if quantizer is not None or type(A) not in (torch.Tensor, torch.nn.Parameter):
        raise NotImplementedError("transformer_engine_torch.generic_gemm of quantized tensors")
    if overlap.get("comm_overlap") is not None:
        raise NotImplementedError("transformer_engine_torch.generic_gemm with userbuffers")
    dtype = torch_dtype(out_dtype) if out_dtype is not None else A.dtype
    out = product(A.detach(), transa, B.detach(), transb, D, dtype, accumulate)
    bias_grad = torch.empty(B.shape[-1], dtype=dtype, device=B.device) if bias is not None and grad else None
    before_gelu = torch.empty_like(out, dtype=dtype) if gelu and not grad else gelu_in
    return out, bias_grad, before_gelu, overlap.get("extra_output")


def product(
    A: torch.Tensor,
    transa: bool,
    B: torch.Tensor,
    transb: bool,
    D: torch.Tensor | None,
    dtype: torch.dtype,
    accumulate: bool,
) -> torch.Tensor:
    flat_a, flat_b = A.reshape(-1, A.shape[-1]), B.reshape(-1, B.shape[-1])
    left = flat_b.t() if transb else flat_b
    right = flat_a.t() if transa else flat_a
    if D is not None:
        flat = D.detach().view(left.shape[0], right.shape[1])
        if dtype == left.dtype == D.dtype:
            torch.addmm(flat, left, right, beta=1 if accumulate else 0, out=flat)
        else:
            torch.ops.aten.addmm.dtype_out(flat, left, right, D.dtype, beta=1 if accumulate else 0, out=flat)
        return D
    out = torch.mm(left, right) if dtype == left.dtype else torch.mm(left, right, out_dtype=dtype)
    return out if transb else out.view(*B.shape[:-1], right.shape[1])


def te_general_grouped_gemm(
    A: list[torch.Tensor],
    transa: bool,
    B: list[torch.Tensor],
    transb: bool,
    D: list[torch.Tensor] | None,
    D_type: Any,
    m_splits: list[int],
    bias: list[torch.Tensor],
    bias_type: Any,
    single_output: bool,
    pre_gelu_out: list[torch.Tensor],
    grad: bool,
    workspace: list[torch.Tensor],
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: int = 0,
) -> list[torch.Tensor] | None:
    """One product for each expert, the results in one tensor or in one for each."""
    dtype = torch_dtype(D_type)
    outs = list(D) if D is not None else None
    if single_output:
        assert outs is not None
        outs = list(torch.split(outs[0].view(-1, outs[0].shape[-1]), m_splits))
    made = []
    for index, (a, b) in enumerate(zip(A, B, strict=True)):
        out = outs[index] if outs is not None else None
        if b.numel() and a.numel():
            out = product(a.detach(), transa, b.detach(), transb, out, dtype, accumulate)
        elif out is None:
            out = torch.empty(0, dtype=dtype, device=b.device)
        made.append(out)
    if D is None:
        return made
    return [torch.empty(b.shape[-1], dtype=dtype, device=b.device) for b in B] if grad and bias[0].numel() else bias
