"""Ops that PyTorch puts together from others in C++: their parts take memory that a meta tensor does not show."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.registry import Call, kernel

_KEYS = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@kernel(
    "aten::logsumexp", "aten::dist", "aten::_trilinear", "aten::masked_scatter", "aten::mvlgamma", "aten::mvlgamma_",
    "aten::ldexp.Tensor", "aten::ldexp_", "aten::isinf", "aten::count_nonzero.default",
)  # fmt: skip
def composed(call: Call) -> Any:
    """The op's composite kernel, its parts on the card one by one."""
    name = call.func.name()
    key = next(key for key in _KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
    with call.mode:
        return call.func._op_dk(getattr(torch._C.DispatchKey, key), *call.args, **call.kwargs)
