"""Functional ops that autograd would run in place, were no dispatch mode active."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.device import gradient_accumulation as accumulation
from vramcast.card.dispatch.storages import block_number
from vramcast.card.ops.registry import Call, kernel
from vramcast.card.values import known_values


@kernel("aten::add.Tensor")
def add(call: Call) -> Any:
    old, new = call.args[0], call.args[1]
    if call.mode.machine.in_math_attention:
        return _in_place(call)  # the mask is added to the scores, which nobody else holds
    if (
        call.mode.machine.engine_is_running()
        and isinstance(new, torch.Tensor)
        and old.shape == new.shape
        and old.dtype == new.dtype
        and old.is_meta
        and new.is_meta
        and not torch.is_grad_enabled()
        and accumulation.reusable(old)
        and not _is_term_of_formula(call)
    ):
        return _in_place(call)  # the engine adds to the gradient that came first, or not in place
    return call.run()


def _is_term_of_formula(call: Call) -> bool:
    """Whether a backward formula adds two terms of its own: out of place, though nobody else holds them. The engine
    adds to the gradient of an earlier node, or of the same where it leads twice to one place (`x * x`)."""
    node, block = torch._C._current_autograd_node(), block_number(call.args[0])
    if node is None or block is None or not call.mode.machine.position.made_by_node(block):
        return False
    targets = [target for target in node.next_functions if target[0] is not None]
    return len(targets) == len(set(targets))


@kernel(
    "aten::scatter_add.default",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::index_add.default",
    "aten::index_fill.int_Scalar",
    "aten::index_fill.int_Tensor",
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    "aten::put",
)
def fill_zeros(call: Call) -> Any:
    """Backward formulas write into the zeros they have just made (gather, index, take, max and sort backward)."""
    out = written_over(call)
    return call.run() if out is None else out


@kernel("aten::sub.Tensor", "aten::mul.Tensor")
def logits_gradient(call: Call) -> Any:
    """binary_cross_entropy_with_logits_backward goes on in place with what it has made itself."""
    if call.mode.machine.engine_is_running() and not torch.is_grad_enabled():
        node = torch._C._current_autograd_node()
        if node is not None and node.name().startswith("BinaryCrossEntropyWithLogitsBackward"):
            block = block_number(call.args[0])
            if block is not None and call.mode.machine.position.made_by_node(block):
                return _in_place(call)
    return call.run()


def written_over(call: Call, through_indices: bool = False) -> Any:
    """The op's first argument as its result, where a backward formula would have run the op in place, since it has just
    made that argument itself; else None. A gradient that it was given it leaves as it is."""
    if not call.mode.machine.engine_is_running() or torch.is_grad_enabled() or not call.args[0].is_meta:
        return None
    block = block_number(call.args[0])
    if block is None or not call.mode.machine.position.made_by_node(block):
        return None
    return _in_place(call) if accumulation.reusable(call.args[0], through_indices) else None


def _in_place(call: Call) -> torch.Tensor:
    """The first argument as the op's result."""
    known_values.overwrite_first(call.mode, call.func, call.args, call.kwargs)
    result: torch.Tensor = call.args[0].detach()
    return result
