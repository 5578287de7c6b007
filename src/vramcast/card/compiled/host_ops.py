"""Parts of compiled code that run on the host: PyTorch computes them, op by op. Inductor would write C++ for them and
have it compiled, which takes a minute of the user's processor and changes nothing on the card."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

_LOWERED = ("aten::_assert", "aten::lift_fresh_copy", "prims::inductor_", "inductor::")
"""Ops, by the beginnings of their names, that Inductor has to see: they check sizes, or are its own."""
_LISTS = "aten::_foreach_"


def install(put: Patches) -> None:
    from torch._inductor import graph

    asked: Any = getattr(graph, "should_fallback_by_default", None)  # made for Inductor's mode "lite"
    if asked is None:
        return

    @functools.wraps(asked)
    def should_fallback_by_default(node: Node) -> bool:
        return bool(asked(node)) or _is_of_the_host(node)

    put.set(graph, "should_fallback_by_default", should_fallback_by_default)
    put.set(graph, "fallback_handler", _lists_in_place(graph.fallback_handler))  # type: ignore[attr-defined]


def _is_of_the_host(node: Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or target.name().startswith(_LOWERED):
        return False
    if _changes_a_list(target) and _out_of_place(target) is None:
        return False
    return _on_host(node) and all(_on_host(other) for other in node.all_input_nodes if _tensors(other))


def _on_host(node: Node) -> bool:
    tensors = _tensors(node)
    return bool(tensors) and all(tensor.device.type == "cpu" for tensor in tensors)


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [value for value in values if isinstance(value, torch.Tensor)]


def _changes_a_list(target: OpOverload) -> bool:
    return target.name().startswith(_LISTS) and target._schema.is_mutable


def _out_of_place(target: OpOverload) -> OpOverload | None:
    """_foreach_add.Scalar of _foreach_add_.Scalar."""
    name, _, overload = target.name().removeprefix("aten::").partition(".")
    found = getattr(torch.ops.aten, name.removesuffix("_"), None) if name.endswith("_") else None
    return getattr(found, overload or "default", None)


def _lists_in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor calls an op that changes a single tensor as it is. One that changes a list becomes the op that makes new
    tensors, and copies of these."""

    @functools.wraps(original)
    def fallback_handler(target: Any, *options: Any, **more: Any) -> Callable[..., Any]:
        if not isinstance(target, OpOverload) or not _changes_a_list(target):
            return original(target, *options, **more)  # type: ignore[no-any-return]
        makes_new = original(_out_of_place(target), *options, **more)

        def handler(tensors: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
            from torch._inductor import ir

            for tensor, new in zip(tensors, makes_new(tensors, *args, **kwargs), strict=True):
                ir.InplaceCopyFallback.create(tensor, new)
            return tensors

        return handler

    return fallback_handler
