"""Which variable of the program keeps memory alive: for a message, so it looks where programs usually keep things."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import torch

from vramcast.card.dispatch.storages import block_of
from vramcast.card.dispatch.unknown import is_own

_LONGEST_WALK = 200_000
"""Nodes of autograd's graph."""
_DEEPEST = 4
"""Containers within containers."""
_CONTAINERS = (list, tuple, dict, set, deque)


def holder(blocks: set[int], first_node: int, frame: FrameType | None) -> str:
    """A variable that leads to one of the blocks, as its code names it; empty where none was found.

    `first_node`: the number of autograd's first node in the last step; a graph that goes further back was kept.
    """
    with torch._C.DisableTorchFunction():
        for name, value in _variables(frame):
            if isinstance(value, torch.Tensor) and _is_in(value, blocks):
                return name
        names = dict(_names(frame))
        holding: list[Any] = _tensors(blocks)
        seen = {id(names), id(holding)}
        for _ in range(_DEEPEST):
            holding = [thing for thing in gc.get_referrers(*holding) if isinstance(thing, _CONTAINERS)]
            holding = [thing for thing in holding if id(thing) not in seen]
            seen |= {id(holding), *map(id, holding)}
            name = next((names[id(thing)] for thing in holding if id(thing) in names), "")
            if name or not holding:
                break
        if name:
            return name
        for name, value in _variables(frame):
            if isinstance(value, torch.Tensor) and _reaches_back(value, first_node):
                return f"the graph of {name}"
    return ""


def _tensors(blocks: set[int]) -> list[torch.Tensor]:
    """Tensors that Python holds: the program's own, and what autograd saves."""
    tensors: list[torch.Tensor] = []
    for thing in gc.get_objects():
        # type(), because asking a proxy object for its class may run code of its own.
        if issubclass(type(thing), torch.Tensor) and _is_in(thing, blocks):
            tensors.append(thing)
    return tensors


def _is_in(tensor: torch.Tensor, blocks: set[int]) -> bool:
    block = block_of(tensor) if tensor.is_meta else None
    return block is not None and block.block_id in blocks


def _names(frame: FrameType | None) -> Iterator[tuple[int, str]]:
    """The names of the program's containers and of its objects' attributes."""
    for name, value in _variables(frame):
        if isinstance(value, _CONTAINERS):
            yield id(value), name
        else:
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                for attribute, inner in attributes.items():
                    if isinstance(inner, _CONTAINERS):
                        yield id(inner), f"{name}.{attribute}"
                yield id(attributes), name


def _variables(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Variables of the user's own code, from the innermost call outwards."""
    seen: set[int] = set()
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            for space in (frame.f_locals, frame.f_globals):
                if id(space) in seen:
                    continue
                seen.add(id(space))
                for name, value in list(space.items()):
                    if not name.startswith("__") and not isinstance(value, (ModuleType, type)):
                        yield name, value
        frame = frame.f_back


def _reaches_back(tensor: torch.Tensor, first_node: int) -> bool:
    """Whether a tensor's graph has nodes of an earlier step."""
    waiting: list[Any] = [tensor.grad_fn]
    seen: set[Any] = set()
    while waiting and len(seen) < _LONGEST_WALK:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        number = node._sequence_nr()
        if number < first_node:
            return True
        waiting.extend(following for following, _ in node.next_functions)
    return False
