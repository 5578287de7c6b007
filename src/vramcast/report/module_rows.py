"""Which modules to show: the large ones, with a stack of numbered layers as one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vramcast.memory import ModuleNode

NO_MODULE = "(no module)"
_SMALLEST_SHARE = 0.01
_MERGE_FROM = 3


@dataclass(frozen=True, slots=True)
class ModuleRow:
    depth: int
    label: str
    size_bytes: int
    largest_kind: str


def module_rows(root: ModuleNode, *, most: int = 14, depth: int = 3) -> list[ModuleRow]:
    """At most `most` lines, parents before children; whatever belongs to no module comes last."""
    rows = list(_rows(root.children, "", 0, depth, root.total_bytes * _SMALLEST_SHARE))
    rows = _cut(rows, most)
    if root.self_bytes:
        outside = dict(root.by_kind_bytes)
        for child in root.children:
            for kind, size in child.by_kind_bytes.items():
                outside[kind] -= size
        rows.append(ModuleRow(0, NO_MODULE, root.self_bytes, _largest(outside)))
    return rows


def _rows(nodes: Sequence[ModuleNode], parent: str, level: int, depth: int, least: float) -> Iterator[ModuleRow]:
    numbered = [node for node in nodes if node.name.rpartition(".")[2].isdecimal()]
    if len(numbered) >= _MERGE_FROM:
        numbers = sorted(int(node.name.rpartition(".")[2]) for node in numbered)
        kinds: dict[str, int] = {}
        for node in numbered:
            for kind, size in node.by_kind_bytes.items():
                kinds[kind] = kinds.get(kind, 0) + size
        total = sum(node.total_bytes for node in numbered)
        if total >= least:
            label = f"{numbers[0]} … {numbers[-1]}  ({len(numbered)} of them)"
            yield ModuleRow(level, label, total, _largest(kinds))
        nodes = [node for node in nodes if node not in numbered]
    for node in nodes:
        if node.total_bytes < least:
            continue
        label = node.name.removeprefix(f"{parent}.") if parent else node.name
        yield ModuleRow(level, label, node.total_bytes, _largest(node.by_kind_bytes))
        if level + 1 < depth:
            yield from _rows(node.children, node.name, level + 1, depth, least)


def _cut(rows: list[ModuleRow], most: int) -> list[ModuleRow]:
    """Drop the deepest level as long as there are too many lines, then the smallest."""
    while len(rows) > most and max(row.depth for row in rows) > 0:
        deepest = max(row.depth for row in rows)
        rows = [row for row in rows if row.depth < deepest]
    if len(rows) > most:
        kept = sorted(rows, key=lambda row: -row.size_bytes)[:most]
        rows = [row for row in rows if row in kept]
    return rows


def _largest(kinds: Mapping[str, int]) -> str:
    return max(kinds, key=lambda kind: kinds[kind], default="")
