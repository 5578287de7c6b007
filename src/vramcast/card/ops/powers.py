"""Powers whose base is a number."""

from __future__ import annotations

from typing import Any

from vramcast.card.ops.registry import Call, kernel


@kernel("aten::pow.Scalar")
def pow_scalar(call: Call) -> Any:
    """The base is put on the card first, as a double, a long or a complex number (pow_out in Pow.cpp)."""
    out = call.run()
    base = call.args[0]
    if base != 1:
        call.scratch(16 if isinstance(base, complex) else 8)
    return out
