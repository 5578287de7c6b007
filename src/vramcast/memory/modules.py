"""Live bytes by module: a tree of dotted names, each node with its own bytes and those of all below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from vramcast.trace.schema import KINDS, StepTrace


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """One module; the root's name is empty and holds what belongs to no module."""

    name: str
    """The whole dotted path."""
    self_bytes: int
    total_bytes: int
    by_kind_bytes: Mapping[str, int]
    """Bytes of the whole subtree by kind, without kinds that have none."""
    children: tuple[ModuleNode, ...]
    """Largest first."""

    def walk(self) -> Iterator[ModuleNode]:
        yield self
        for child in self.children:
            yield from child.walk()


class _Draft:
    __slots__ = ("by_kind", "children", "own")

    def __init__(self) -> None:
        self.own = 0
        self.by_kind = [0] * len(KINDS)
        self.children: dict[str, _Draft] = {}


def module_tree(trace: StepTrace, blocks: Iterable[int]) -> ModuleNode:
    """The tree over `blocks`; modules that hold nothing are left out."""
    held: dict[int, list[int]] = {}
    for block in blocks:
        kinds = held.setdefault(trace.module[block], [0] * len(KINDS))
        kinds[trace.kind[block]] += trace.requested_bytes[block]
    root = _Draft()
    for module, kinds in held.items():
        node = root
        _add(node, kinds)
        name = trace.modules[module]
        for part in name.split(".") if name else ():
            node = node.children.setdefault(part, _Draft())
            _add(node, kinds)
        node.own += sum(kinds)
    return _finish("", root)


def _add(node: _Draft, kinds: list[int]) -> None:
    node.by_kind = [a + b for a, b in zip(node.by_kind, kinds, strict=True)]


def _finish(name: str, draft: _Draft) -> ModuleNode:
    prefix = f"{name}." if name else ""
    children = [_finish(prefix + part, child) for part, child in draft.children.items()]
    return ModuleNode(
        name=name,
        self_bytes=draft.own,
        total_bytes=sum(draft.by_kind),
        by_kind_bytes={kind: size for kind, size in zip(KINDS, draft.by_kind, strict=True) if size},
        children=tuple(sorted(children, key=lambda node: (-node.total_bytes, node.name))),
    )
