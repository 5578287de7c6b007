"""Timings that scripts print of their own stages, as a tree: which lies inside which is worked out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from vramcast.features.diagnose.logs.collect import Stage
from vramcast.features.diagnose.logs.result import MEASURED, WORKED_OUT, Part
from vramcast.features.diagnose.logs.vocabulary import phase_named

_TOTAL = re.compile("^(?:grand |step )?(?:total|sum|overall|\u603b\u8ba1|\u5408\u8ba1)(?: time)?$", re.IGNORECASE)
# The escapes are Chinese for "total" and "sum".
FITS = 1.01
"""Timers add a little of their own."""
_SAME_TOTAL = 0.02
_SAME_TIMER = 0.005
_WORD = re.compile(r"[a-z]{3,}|[^\W\da-z_]{2,}")
"""Latin letters, or those of another script, which stand beside them without a space."""
_DIGITS = re.compile(r"\d+")
_OTHER_FROM = 0.01


@dataclass(slots=True)
class _Node:
    name: str
    seconds: float
    phase: str | None
    depth: int
    parent: _Node | None = None
    children: list[_Node] = field(default_factory=list)
    same_as: _Node | None = None
    """A second name for that one."""

    def is_again(self, other: _Node) -> bool:
        """A phase that was timed before: the same time, to a hair."""
        same_time = abs(self.seconds - other.seconds) <= _SAME_TIMER * other.seconds
        return self.phase is not None and self.phase == other.phase and other.parent is None and same_time

    @property
    def left_seconds(self) -> float:
        return self.seconds * FITS - sum(child.seconds for child in self.children)

    @property
    def words(self) -> set[str]:
        return {word for word in _WORD.findall(self.name.lower()) if word not in ("total", "time")}

    @property
    def pattern(self) -> str:
        return _DIGITS.sub("#", self.name.lower())


@dataclass(frozen=True, slots=True)
class StageTree:
    parts: tuple[Part, ...]
    notes: tuple[str, ...]


def stage_tree(stages: Mapping[str, Stage]) -> StageTree:
    roots: list[_Node] = []
    nodes: list[_Node] = []
    total: tuple[str, float] | None = None
    for name, stage in stages.items():
        seconds = stage.seconds.median
        if _TOTAL.match(name):
            total = (name, seconds)
            continue
        node = _Node(name, seconds, phase_named(name), stage.depth)
        again = next((other for other in nodes if node.is_again(other)), None)
        if again is not None:  # two timers around the same code
            nodes.append(_Node(name, seconds, None, stage.depth, same_as=again))
            continue
        node.parent = _parent(node, nodes)
        (node.parent.children if node.parent is not None else roots).append(node)
        nodes.append(node)
    return StageTree(tuple(_part(root) for root in roots), tuple(_about_total(total, roots)))


def _parent(node: _Node, before: list[_Node]) -> _Node | None:
    """The enclosing stage: by indentation where there is any, or else by what names and times allow."""
    if node.depth:
        holder = next((other for other in reversed(before) if other.depth < node.depth), None)
        return None if holder is None else _with_room(holder.same_as or holder, node)
    before = [other for other in before if other.same_as is None]
    if node.phase is not None:
        # A phase stands by itself, unless a stage of the same phase holds it.
        holders = [other for other in before if other.phase == node.phase and other.parent is None]
        return next((other for other in holders if other.left_seconds >= node.seconds), None)
    alike = next((other for other in before if other.pattern == node.pattern), None)
    if alike is not None:
        return alike.parent
    fitting = [other for other in reversed(before) if other.left_seconds >= node.seconds]
    named = next((other for other in fitting if other.words & node.words), None)
    return named or next((other for other in fitting if other.phase is not None and other.parent is None), None)


def _with_room(holder: _Node, node: _Node) -> _Node:
    """`holder`, or, where its own children fill it already, the one of them that `node` must lie in."""
    while holder.left_seconds < node.seconds:
        fitting = [child for child in holder.children if child.left_seconds >= node.seconds]
        if not fitting:
            break
        holder = max(fitting, key=lambda child: (bool(child.words & node.words), child.left_seconds))
    return holder


def _about_total(total: tuple[str, float] | None, roots: list[_Node]) -> list[str]:
    if total is None:
        return []
    name, seconds = total
    top = sum(root.seconds for root in roots)
    nested = [child for root in roots for child in root.children]
    if abs(seconds - top) <= _SAME_TOTAL * seconds or not nested:
        return []
    twice = top + sum(child.seconds for child in nested)
    if abs(seconds - twice) <= _SAME_TOTAL * seconds:
        inside = ", ".join(
            f'"{child.name}" inside "{child.parent.name}"' for child in nested if child.parent is not None
        )
        return [f'"{name}" of the timings, {seconds:.2f} s, counts time twice ({inside}); {top:.2f} s were timed']
    return [f'"{name}" of the timings is {seconds:.2f} s; its parts are {top:.2f} s']


def _part(node: _Node) -> Part:
    children = sorted((_part(child) for child in node.children), key=lambda part: -(part.seconds or 0))
    other = node.seconds - sum(child.seconds for child in node.children)
    if children and other > _OTHER_FROM * node.seconds:
        children.append(Part(name="other", seconds=other, source=WORKED_OUT))
    return Part(name=node.name, seconds=node.seconds, source=MEASURED, phase=node.phase, children=tuple(children))
