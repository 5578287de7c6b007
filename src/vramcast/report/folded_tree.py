"""A tree of modules as a few lines: stacks of equal layers folded into one, small parts left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_FOLD_FROM = 3

Values = tuple[int, ...]
Combine = Callable[[Sequence[Values]], Values]


@dataclass(frozen=True, slots=True)
class Branch:
    """A module's figures with all below it."""

    label: str
    path: str
    """The module, or the first of those that were folded into it."""
    values: Values
    children: tuple[Branch, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    depth: int
    label: str
    path: str
    values: Values


def rows(
    root: Branch,
    combine: Combine,
    weight: Callable[[Values], int],
    *,
    most: int,
    depth: int = 4,
    least: float = 0.01,
    every_first: bool = False,
) -> list[Row]:
    """Lines below `root`, parents first. `combine` folds figures of equal modules, `weight` says what matters;
    `every_first`: of the first level, small ones too."""
    threshold = weight(root.values) * least
    small = [] if not every_first else [one for one in root.children if 0 < weight(one.values) < threshold]
    shown = list(_walk(_folded(root.children, combine), combine, weight, threshold, 0, depth))
    while len(shown) > most and max(row.depth for row in shown) > 0:
        deepest = max(row.depth for row in shown)
        shallower = [row for row in shown if row.depth < deepest]
        if len(shallower) < most // 2:  # rather the largest of this level than a table that says nothing
            spare = most - len(shallower)
            at_deepest = sorted((row for row in shown if row.depth == deepest), key=lambda row: -weight(row.values))
            kept = at_deepest[:spare]
            shown = [row for row in shown if row.depth < deepest or row in kept]
            break
        shown = shallower
    shown = shown[:most] if len(shown) > most else shown
    return [*shown, *(Row(0, one.label, one.path, one.values) for one in small)]


def _walk(
    branches: Sequence[Branch], combine: Combine, weight: Callable[[Values], int], least: float, level: int, depth: int
) -> Iterator[Row]:
    for branch in branches:
        if weight(branch.values) < least or not weight(branch.values):
            continue
        label, inner = branch.label, branch
        while len(inner.children) == 1 and inner.children[0].values == inner.values:  # wrappers that add nothing
            inner = inner.children[0]
            label = f"{label}.{inner.label}"
        yield Row(level, label, inner.path, branch.values)
        if level + 1 < depth:
            yield from _walk(_folded(inner.children, combine), combine, weight, least, level + 1, depth)


def _folded(children: Sequence[Branch], combine: Combine) -> list[Branch]:
    numbered = [child for child in children if child.label.isdigit()]
    if len(numbered) < _FOLD_FROM:
        return list(children)
    label = f"{numbered[0].label}…{numbered[-1].label} ({len(numbered)} ×)"
    folded = _merge(label, numbered, combine)
    result: list[Branch] = []
    for child in children:
        if child is numbered[0]:
            result.append(folded)
        elif child not in numbered:
            result.append(child)
    return result


def _merge(label: str, branches: Sequence[Branch], combine: Combine) -> Branch:
    by_label: dict[str, list[Branch]] = {}
    for branch in branches:
        for child in branch.children:
            by_label.setdefault(child.label, []).append(child)
    children = tuple(_merge(name, group, combine) for name, group in by_label.items())
    return Branch(label, branches[0].path, combine([branch.values for branch in branches]), children)
