"""Functional ops that autograd would run in place, were no dispatch mode active."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.device import gradient_accumulation as accumulation
from vramcast.card.dispatch.storages import block_number
from vramcast.card.ops.convolution import in_second_backward
from vramcast.card.ops.registry import Call, kernel


@kernel("aten::add.Tensor")
def add(call: Call) -> Any:
    old, new = call.args[0], call.args[1]
    if call.mode.machine.in_math_attention:
        return old.detach()  # the mask is added to the scores, which nobody else holds
    if (
        call.mode.machine.engine_is_running()
        and isinstance(new, torch.Tensor)
        and old.shape == new.shape
        and old.dtype == new.dtype
        and old.is_meta
        and new.is_meta
        and not torch.is_grad_enabled()
        and accumulation.reusable(old)
        and not _adds_terms_of_formula(call)
    ):
        return old.detach()  # the engine adds to the gradient that came first, or not in place
    return call.run()


def _adds_terms_of_formula(call: Call) -> bool:
    """_convolution_double_backward adds two convolutions out of place, which nobody else holds either."""
    terms = [block_number(tensor) for tensor in call.args[:2]]
    return in_second_backward(call) and list(call.mode.machine.second_backward_terms) == terms


@kernel(
    "aten::scatter_add.default",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::index_add.default",
    "aten::index_fill.int_Scalar",
    "aten::index_fill.int_Tensor",
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
)
def fill_zeros(call: Call) -> Any:
    """Backward formulas write into the zeros they have just made (gather, index, max and sort backward)."""
    out = written_over(call)
    return call.run() if out is None else out


@kernel("aten::sub.Tensor", "aten::mul.Tensor")
def logits_gradient(call: Call) -> Any:
    """binary_cross_entropy_with_logits_backward goes on in place from the sigmoid on."""
    if call.mode.machine.engine_is_running():
        node = torch._C._current_autograd_node()
        if node is not None and node.name().startswith("BinaryCrossEntropyWithLogitsBackward"):
            out = written_over(call)
            if out is not None:
                return out
    return call.run()


def written_over(call: Call, through_indices: bool = False) -> Any:
    """The op's first argument as its result, where autograd would have run the op in place; else None."""
    if not call.mode.machine.engine_is_running() or torch.is_grad_enabled() or not call.args[0].is_meta:
        return None
    return call.args[0].detach() if accumulation.reusable(call.args[0], through_indices) else None
