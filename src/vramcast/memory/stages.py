"""Activations by module in one step: what stays until the backward pass, and what is there only for a moment.

With checkpointing a block keeps its input, and makes the rest again while the backward pass is inside it: that part
lives only inside the block, so of all blocks only the largest counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.trace.schema import ALLOC, FREE, KINDS, StepTrace

_SAVED = KINDS.index("saved activations")
_TEMPORARY = KINDS.index("temporaries")


@dataclass(frozen=True, slots=True)
class Stage:
    """A module with all below it; the root's name is empty and holds everything."""

    name: str
    stays_bytes: int
    """Made in the forward pass and kept until the backward pass reaches it."""
    inside_bytes: int
    """Made again inside the backward pass for one checkpointed block: the most that is alive at once."""
    momentary_bytes: int
    """Results that nothing keeps: the most that is alive at once."""
    children: tuple[Stage, ...]

    def walk(self) -> Iterator[Stage]:
        yield self
        for child in self.children:
            yield from child.walk()


class _Draft:
    __slots__ = ("children", "inside", "inside_now", "momentary", "momentary_now", "stays")

    def __init__(self) -> None:
        self.stays = 0
        self.inside = self.inside_now = 0
        self.momentary = self.momentary_now = 0
        self.children: dict[str, _Draft] = {}


def stages(trace: StepTrace) -> Stage:
    """Activations by module over the last finished step (or the only one)."""
    step = max(0, trace.steps - 1)
    backward = list(trace.phases).index("backward") if "backward" in trace.phases else -1
    root = _Draft()
    paths: dict[int, list[_Draft]] = {}
    for code, block in zip(trace.event_kind, trace.event_arg, strict=True):
        if code not in (ALLOC, FREE) or trace.step[block] != step:
            continue
        kind = trace.kind[block]
        if kind not in (_SAVED, _TEMPORARY):
            continue
        module = trace.module[block]
        path = paths.get(module)
        if path is None:
            path = paths[module] = _path(root, trace.modules[module])
        size = trace.requested_bytes[block] if code == ALLOC else -trace.requested_bytes[block]
        if kind == _TEMPORARY:
            for node in path:
                node.momentary_now += size
                node.momentary = max(node.momentary, node.momentary_now)
        elif trace.phase[block] == backward:
            for node in path:
                node.inside_now += size
                node.inside = max(node.inside, node.inside_now)
        elif code == ALLOC:
            for node in path:
                node.stays += size
    return _finish("", root)


def _path(root: _Draft, name: str) -> list[_Draft]:
    path = [root]
    for part in name.split(".") if name else ():
        path.append(path[-1].children.setdefault(part, _Draft()))
    return path


def _finish(name: str, draft: _Draft) -> Stage:
    prefix = f"{name}." if name else ""
    children = tuple(_finish(prefix + part, child) for part, child in draft.children.items())
    return Stage(name, draft.stays, draft.inside, draft.momentary, children)
