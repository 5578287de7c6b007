"""Parameters by module: how many, and what their weights, gradients and optimizer state take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTensor:
    """One parameter."""

    name: str
    count: int
    """How many numbers; quantized ones are counted as they were."""
    shape: tuple[int, ...]
    dtype: str
    """As torch writes it: float32"""
    trained: bool
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    state: tuple[str, ...] = ()
    """What the optimizer keeps for it on the card: exp_avg, exp_avg_sq."""

    def renamed(self, name: str) -> ParameterTensor:
        return replace(self, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleParameters:
    """The parameters that lie in one module itself, each counted once although several modules may share it."""

    module: str
    """The dotted path, beginning with the component."""
    count: int
    trained_count: int
    weights_bytes: int
    gradients_bytes: int
    """Gradients of the trained ones, while they exist."""
    optimizer_bytes: int
    """State of the optimizer on the card, as it was after the last traced step."""
    tensors: tuple[ParameterTensor, ...] = ()
    """Each of them."""


@dataclass(frozen=True, slots=True)
class ParameterNode:
    """A module with all below it; the root's name is empty."""

    name: str
    count: int
    trained_count: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    children: tuple[ParameterNode, ...]
    """In the order of the model."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def walk(self) -> Iterator[ParameterNode]:
        yield self
        for child in self.children:
            yield from child.walk()


class _Draft:
    __slots__ = ("children", "sums")

    def __init__(self) -> None:
        self.sums = [0] * 5
        self.children: dict[str, _Draft] = {}


def parameter_tree(rows: Iterable[ModuleParameters]) -> ParameterNode:
    root = _Draft()
    for row in rows:
        figures = (row.count, row.trained_count, row.weights_bytes, row.gradients_bytes, row.optimizer_bytes)
        node = root
        _add(node, figures)
        for part in row.module.split("."):
            node = node.children.setdefault(part, _Draft())
            _add(node, figures)
    return _finish("", root)


def _add(node: _Draft, figures: tuple[int, ...]) -> None:
    node.sums = [a + b for a, b in zip(node.sums, figures, strict=True)]


def _finish(name: str, draft: _Draft) -> ParameterNode:
    prefix = f"{name}." if name else ""
    children = tuple(_finish(prefix + part, child) for part, child in draft.children.items())
    count, trained, weights, gradients, optimizer = draft.sums
    return ParameterNode(name, count, trained, weights, gradients, optimizer, children)
