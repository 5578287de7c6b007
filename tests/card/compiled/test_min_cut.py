"""The quicker minimum cut is networkx's."""

from __future__ import annotations

import math
import random

import networkx  # type: ignore[import-untyped]
import pytest

from vramcast.card.compiled import min_cut


def drawn(seed: int) -> networkx.DiGraph:
    """A graph as the partitioner makes it: nodes that may be cut, edges that may not."""
    draw, graph = random.Random(seed), networkx.DiGraph()
    count = draw.randint(2, 40)
    graph.add_nodes_from(("source", "sink"))
    for i in range(count):
        graph.add_edge(f"{i}_in", f"{i}_out", capacity=draw.choice([0, 3, draw.randint(1, 100), 1 << 30]))
        if draw.random() < 0.25:
            graph.add_edge("source", f"{i}_in", capacity=math.inf)
        if draw.random() < 0.2:
            graph.add_edge(f"{i}_out", "sink", capacity=draw.choice([math.inf, math.inf, draw.randint(1, 20)]))
        for j in range(i + 1, min(count, i + 6)):
            if draw.random() < 0.4:
                graph.add_edge(f"{i}_out", f"{j}_in", capacity=math.inf)
    return graph


def test_same_cut_as_networkx() -> None:
    quicker = min_cut.quicker(networkx.minimum_cut)
    for seed in range(40):
        graph = drawn(seed)
        assert quicker(graph, "source", "sink") == networkx.minimum_cut(graph, "source", "sink")


def test_without_a_cut_the_error_is_networkx_s() -> None:
    graph = networkx.DiGraph()
    graph.add_edge("source", "sink", capacity=math.inf)
    with pytest.raises(networkx.NetworkXUnbounded):
        min_cut.quicker(networkx.minimum_cut)(graph, "source", "sink")
