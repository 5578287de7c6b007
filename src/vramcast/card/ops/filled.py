"""Tensors that take their shape from another and their contents from nobody: a mask of ones is known whatever it is a
mask for."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.dispatch.storages import known_values
from vramcast.card.ops.registry import Call, kernel
from vramcast.card.values import known_values as values


@kernel("aten::zeros_like", "aten::ones_like", "aten::full_like")
def filled_like(call: Call) -> Any:
    out = call.run()
    _learn(call, out, call.args[0])
    return out


@kernel("aten::new_zeros", "aten::new_ones", "aten::new_full")
def newly_filled(call: Call) -> Any:
    out = call.run()
    _learn(call, out, call.args[0][:0] if call.args[0].dim() else call.args[0])
    return out


def _learn(call: Call, out: torch.Tensor, model: torch.Tensor) -> None:
    if out.layout is torch.strided and values.small(out) and known_values(out) is None:
        twin = torch.empty_strided(model.size(), model.stride(), dtype=model.dtype, device="cpu")
        values.propagate(call.mode, call.func, (twin, *call.args[1:]), call.kwargs, out)
