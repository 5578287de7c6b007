"""Matrix products: the outputs are plain; cuBLAS takes a workspace once per handle."""

from __future__ import annotations

from typing import Any

from vramcast.virtual_gpu.kernels.registry import Call, kernel


@kernel(
    "aten::mm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::baddbmm_",
    "aten::addbmm",
    "aten::addmv",
    "aten::mv",
    "aten::dot",
    "aten::linear",
)
def matmul(call: Call) -> Any:
    out = call.run()
    call.mode.machine.use_cublas()
    return out


@kernel("aten::addmm", "aten::_addmm_activation", "aten::addmm_", "aten::_scaled_mm", "aten::_int_mm")
def addmm(call: Call) -> Any:
    """A bias is added in cublasLt's epilogue, which has a small workspace of its own."""
    out = call.run()
    call.mode.machine.use_cublas(lt=True)
    return out
