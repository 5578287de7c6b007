"""Captured memory lies in a pool of its own: levels measured on an H200 with torch 2.11."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import vramcast
from vramcast.allocator.stream_uses import USED_ELSEWHERE
from vramcast.base.units import MIB
from vramcast.card.device.context import VirtualGpu
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.memory import replay


@pytest.fixture
def card() -> Iterator[VirtualGpu]:
    with vramcast.virtual_gpu("h200") as card:
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        torch.addmm(x[0], x, x).sum().backward()  # cuBLAS has its workspaces
        del x
        torch.cuda.empty_cache()
        yield card


def setup() -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
    data = torch.randn(512, 1024, device="cuda"), torch.randn(512, 1024, device="cuda")
    return model, torch.optim.SGD(model.parameters(), lr=0.1), *data


def level() -> tuple[int, int]:
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def train(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def warmed_up(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    return loss


@pytest.mark.skipif(INSTALLED != (2, 11), reason="measured with torch 2.11, which keeps a workspace of cuBLASLt")
def test_a_whole_step_captured(card: VirtualGpu) -> None:
    parts = setup()
    last_loss = warmed_up(*parts)
    parts[1].zero_grad(set_to_none=True)
    assert level() == (176181248, 268435456)
    graph = torch.cuda.CUDAGraph()
    assert card.awaits_capture
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        loss = train(*parts)
    assert not card.awaits_capture and not torch.cuda.is_current_stream_capturing()
    assert level() == (280011776, 339738624)
    for _ in range(3):
        graph.replay()
    assert level() == (280011776, 339738624)
    other = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    assert level() == (347120640, 406847488), "memory that is free in the graph's pool serves nobody else"
    del other
    torch.cuda.empty_cache()
    assert level() == (280011776, 339738624)
    assert max(replay(card.trace()).reserved_bytes) == 406847488 == torch.cuda.max_memory_reserved()
    del loss, last_loss


def test_a_pool_stays_while_its_graph_lives(card: VirtualGpu) -> None:
    model, _, x, _ = setup()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = model(x)
    del out
    torch.cuda.empty_cache()
    kept = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == kept
    del graph
    assert torch.cuda.memory_reserved() == kept
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < kept
    assert replay(card.trace()).reserved_bytes[-1] == torch.cuda.memory_reserved()


def test_a_captured_backward_uses_its_own_stream_only(card: VirtualGpu) -> None:
    model, optimizer, x, y = setup()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        train(model, optimizer, x, y)
    assert USED_ELSEWHERE not in card.trace().labels


@pytest.mark.usefixtures("card")
def test_graphs_that_share_a_pool() -> None:
    model, _, x, _ = setup()
    pool, graphs, outs, levels = torch.cuda.graph_pool_handle(), [], [], []
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, pool=pool):
            outs.append(model(x))
        graphs.append(graph)
        levels.append(level())
    assert [after[0] - before[0] for before, after in pairwise(levels)] == [2 * MIB, 2 * MIB]
    assert len({reserved for _, reserved in levels}) == 1


@pytest.mark.usefixtures("card")
def test_graphed_callables_train() -> None:
    model, optimizer, x, y = setup()
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(512, 1024, device="cuda"),))
    levels = []
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        train(graphed, optimizer, x, y)
        levels.append(level())
    assert levels[0] == levels[1] == levels[2]


@pytest.mark.skipif(INSTALLED < (2, 8), reason="MemPool is made otherwise before torch 2.8")
def test_a_memory_pool(card: VirtualGpu) -> None:
    def block() -> torch.Tensor:
        return torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")

    pool = torch.cuda.MemPool()
    first, before = block(), torch.cuda.memory_reserved()
    with torch.cuda.use_mem_pool(pool):
        second = block()
    del second
    third = block()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before == 64 * MIB
    del pool
    assert torch.cuda.memory_reserved() - before == 32 * MIB
    del first, third


@pytest.mark.usefixtures("card")
def test_what_a_capture_does_not_permit() -> None:
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"), torch.cuda.graph(graph):
        x.sum().item()


def test_a_capture_that_was_not_seen_is_noted() -> None:
    with vramcast.virtual_gpu("h200") as card:
        parts = setup()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            train(*parts)
            assert card.awaits_capture
        torch.cuda.CUDAGraph()
    assert any("about to be captured" in note.text for note in card.trace().notes)


def test_random_state_of_efficient_attention_is_on_the_card_in_a_graph(card: VirtualGpu) -> None:
    """As attention.cu does: graph trees refuse outputs that are on the host."""
    q = torch.randn(2, 4, 64, 32, device="cuda")
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    assert [part.device.type for part in attend(q, q, q, None, True)[2:]] == ["cpu", "cpu"]
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        before = card.n_blocks
        results = attend(q, q, q, None, True)
        assert card.n_blocks - before == len(results) == 4
    assert {part.device.type for part in results} == {"cuda"}
