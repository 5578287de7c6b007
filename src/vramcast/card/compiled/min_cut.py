"""The minimum cut that decides what is saved for the backward pass: networkx's answer, found sooner.

Sizes in bytes are whole numbers, so that of all minimum cuts the one nearest the sink, which networkx gives, is the
same by whatever way it is found. Nodes that no finite edge parts from the source or from the sink are taken together
first: few remain. They are cut by Dinitz's algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

Cut = tuple[float, tuple[set[Any], set[Any]]]


def quicker(original: Callable[..., Cut]) -> Callable[..., Cut]:
    """networkx.minimum_cut for directed graphs of whole numbers; the rest, and errors, are the original's."""

    def minimum_cut(graph: Any, source: Any, sink: Any, **options: Any) -> Cut:
        edges = [(a, b, data.get("capacity", math.inf)) for a, b, data in graph.edges(data=True)]
        whole = all(isinstance(capacity, int) or capacity == math.inf for _, _, capacity in edges)
        if options or not whole or not graph.is_directed() or source not in graph or sink not in graph:
            return original(graph, source, sink, **options)
        fixed = [(a, b) for a, b, capacity in edges if capacity == math.inf]
        of_source = _reachable(source, fixed)
        of_sink = _reachable(sink, ((b, a) for a, b in fixed))
        if of_source & of_sink:  # without a cut
            return original(graph, source, sink)
        flow = _Flow()
        for a, b, capacity in edges:
            first, second = _group(a, of_source, of_sink), _group(b, of_source, of_sink)
            if first != second and first != 1 and second != 0 and capacity > 0:
                flow.add_edge(first, second, capacity)
        value = flow.push_all()
        behind = flow.reaching_sink()
        beyond = of_sink | {node for node in graph if node in behind and node not in of_source}
        return value, (set(graph) - beyond, beyond)

    return minimum_cut


def _group(node: Any, of_source: set[Any], of_sink: set[Any]) -> Any:
    return 0 if node in of_source else 1 if node in of_sink else node


def _reachable(start: Any, edges: Iterable[tuple[Any, Any]]) -> set[Any]:
    successors: dict[Any, list[Any]] = {}
    for a, b in edges:
        successors.setdefault(a, []).append(b)
    found, waiting = {start}, [start]
    while waiting:
        for node in successors.get(waiting.pop(), ()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


class _Flow:
    """From node 0 to node 1. An edge and its reverse have numbers that differ in the last bit."""

    def __init__(self) -> None:
        self._edges: dict[Any, list[int]] = {0: [], 1: []}
        self._end: list[Any] = []
        self._left: list[float] = []
        """What each edge can still carry."""

    def add_edge(self, a: Any, b: Any, capacity: float) -> None:
        for start, end, left in ((a, b, capacity), (b, a, 0)):
            self._edges.setdefault(start, []).append(len(self._end))
            self._end.append(end)
            self._left.append(left)

    def push_all(self) -> float:
        total: float = 0
        while 0 in (levels := self._distances()):
            tried = dict.fromkeys(self._edges, 0)
            while path := self._path(levels, tried):
                pushed = min(self._left[edge] for edge in path)
                for edge in path:
                    self._left[edge] -= pushed
                    self._left[edge ^ 1] += pushed
                total += pushed
        return total

    def reaching_sink(self) -> set[Any]:
        return set(self._distances())

    def _distances(self) -> dict[Any, int]:
        """Of the nodes from which the sink is reached: by how many edges."""
        end, left = self._end, self._left
        found, waiting = {1: 0}, [1]
        for node in waiting:
            distance = found[node] + 1
            for edge in self._edges[node]:
                before = end[edge]
                if before not in found and left[edge ^ 1]:
                    found[before] = distance
                    waiting.append(before)
        return found

    def _path(self, levels: dict[Any, int], tried: dict[Any, int]) -> list[int]:
        """Edges of a shortest path that has room. `tried`: how many edges of each node lead nowhere."""
        path: list[int] = []
        node = 0
        while node != 1:
            edges, level = self._edges[node], levels[node] - 1
            while tried[node] < len(edges):
                edge = edges[tried[node]]
                if self._left[edge] and levels.get(self._end[edge]) == level:
                    path.append(edge)
                    node = self._end[edge]
                    break
                tried[node] += 1
            else:
                if not path:
                    return []
                node = self._end[path.pop() ^ 1]
                tried[node] += 1
        return path
