"""Grouped matrix products (the experts of a mixture).

CUTLASS multiplies bf16 on Hopper and Blackwell; else it is one product after the other.
See GroupMM.cu and GroupedMMUtils.h in PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.registry import Call, kernel

_OUTPUT_ALIGNMENT = 16
_CUTLASS_CAPABILITIES = (9, 10)


@kernel("aten::_grouped_mm")
def grouped_mm(call: Call) -> Any:
    """torch's meta kernel takes bf16 alone; CUDA multiplies any floating type group by group."""
    left, right = call.args[:2]
    dtype = call.argument("out_dtype") or left.dtype
    size, stride = _output_layout(left, right, call.argument("offs"), dtype)
    out = call.empty(size, dtype, stride)
    if not _uses_cutlass(call, left, right, dtype):
        call.mode.machine.use_cublas()
    return out


def _uses_cutlass(call: Call, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    all_bf16 = left.dtype == right.dtype == dtype == torch.bfloat16
    return all_bf16 and call.gpu.compute_capability[0] in _CUTLASS_CAPABILITIES


def _output_layout(
    left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor | None, dtype: torch.dtype
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rows start at multiples of 16 bytes."""
    columns = right.size(-1)
    padded = -(-columns * dtype.itemsize // _OUTPUT_ALIGNMENT) * _OUTPUT_ALIGNMENT // dtype.itemsize
    if left.dim() != right.dim():
        return (left.size(-2), columns), (padded, 1)
    groups = left.size(0) if offsets is None else offsets.size(0)
    rows = left.size(-2)
    return (groups, rows, columns), (rows * padded, padded, 1)
