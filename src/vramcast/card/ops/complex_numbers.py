"""Complex numbers: their size and angle are worked out as complex numbers first, whose real part is then copied
(unary_op_impl_with_complex_to_float_out in UnaryOps.cpp)."""

from __future__ import annotations

from typing import Any

from vramcast.card.ops.registry import Call, kernel


@kernel("aten::abs")
def absolute(call: Call) -> Any:
    x = call.args[0]
    out = call.run()
    if x.is_complex():
        call.scratch(x.numel() * x.element_size())
    return out


@kernel("aten::angle")
def angle(call: Call) -> Any:
    x = call.args[0]
    first = call.empty(x.size(), x.dtype) if x.is_complex() else None
    out = call.run()
    del first
    return out
