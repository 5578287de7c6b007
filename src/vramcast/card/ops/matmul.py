"""Matrix products: the outputs are plain; cuBLAS takes a workspace once per handle."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.registry import Call, kernel


@kernel(
    "aten::mm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::baddbmm_",
    "aten::addbmm",
    "aten::addmv",
    "aten::mv",
    "aten::dot",
)
def matmul(call: Call) -> Any:
    out = call.run()
    copies = call.once(_copies, (*reversed(call.args[:3]), out))
    held = [call.empty(size, dtype) for size, dtype in copies]
    call.mode.machine.use_cublas()
    del held
    return out


@kernel(
    "aten::mm.dtype",
    "aten::mm.dtype_out",
    "aten::bmm.dtype",
    "aten::bmm.dtype_out",
    "aten::addmm.dtype",
    "aten::addmm.dtype_out",
    "aten::baddbmm.dtype",
    "aten::baddbmm.dtype_out",
)
def matmul_into_dtype(call: Call) -> Any:
    """`out_dtype=`: half-precision operands, a result in fp32. The meta kernels of torch do not take it."""
    first = 1 if "add" in call.func._schema.name else 0
    left, right = call.args[first : first + 2]
    out = call.empty((*left.shape[:-1], right.shape[-1]), call.argument("out_dtype"))
    held = [call.empty(t.size(), t.dtype) for t in (right, left) if _needs_copy(t)]
    call.mode.machine.use_cublas()
    del held
    return out


def _copies(operands: tuple[Any, ...]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(operand.size(), operand.dtype) for operand in operands if _needs_copy(operand)]


def _needs_copy(operand: Any) -> bool:
    """cuBLAS wants one of the last two dimensions dense (prepare_batch_matrix_for_cublas in Blas.cpp)."""
    if not isinstance(operand, torch.Tensor) or operand.dim() < 2 or not operand.is_meta:
        return False
    rows, columns = operand.size(-2), operand.size(-1)
    row_stride, column_stride = operand.stride(-2), operand.stride(-1)
    return not (
        (column_stride == 1 and row_stride >= max(1, columns)) or (row_stride == 1 and column_stride >= max(1, rows))
    )


@kernel("aten::addmm", "aten::_addmm_activation", "aten::addmm_", "aten::_int_mm")
def addmm(call: Call) -> Any:
    """A bias is added in cublasLt's epilogue, which has a small workspace of its own."""
    out = call.run()
    copies = call.once(_copies, (*reversed(call.args[1:3]), out))
    held = [call.empty(size, dtype) for size, dtype in copies]
    call.mode.machine.use_cublas(lt=True)
    del held
    return out


@kernel("aten::_scaled_mm")
def scaled_mm(call: Call) -> Any:
    """Eight-bit operands; torch has no meta kernel for `out=`, which is how compiled code calls it."""
    left, right = call.args[:2]
    out = call.empty((left.size(0), right.size(1)), call.argument("out_dtype") or left.dtype)
    call.mode.machine.use_cublas(lt=True)
    return out
