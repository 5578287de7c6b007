"""Seconds by module: a tree of dotted names, each node with what it and all below it take."""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.timing.results import ModuleTime

PARTS = ("forward", "backward", "recompute", "other")


class _Draft:
    __slots__ = ("children", "seconds")

    def __init__(self) -> None:
        self.seconds = [0.0] * len(PARTS)
        self.children: dict[str, _Draft] = {}


def module_times(own: Mapping[tuple[str, int], float]) -> ModuleTime:
    """The tree over (dotted name, part) → seconds of the module itself."""
    root = _Draft()
    for (name, part), seconds in own.items():
        node = root
        node.seconds[part] += seconds
        for word in name.split(".") if name else ():
            node = node.children.setdefault(word, _Draft())
            node.seconds[part] += seconds
    return _finish("", root)


def _finish(name: str, draft: _Draft) -> ModuleTime:
    prefix = f"{name}." if name else ""
    children = [_finish(prefix + word, child) for word, child in draft.children.items()]
    forward, backward, recompute, other = draft.seconds
    ordered = tuple(sorted(children, key=lambda node: (-node.seconds, node.name)))
    return ModuleTime(name, forward, backward, recompute, other, ordered)
