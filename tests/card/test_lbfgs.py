"""LBFGS: its history and what it evaluates, beside levels measured on an H200 with torch 2.11."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vramcast
from tests.card.reading import by_kind

PARAMETERS = 512 * 1024 + 1024 + 1024 * 64 + 64


def run(steps: int, **options: Any) -> tuple[Any, list[tuple[int, int]], list[int], Any]:
    """The optimizer; (allocated, peak) after each step, less what the card held before; how often each evaluated; its
    state in bytes, and the trace."""
    with vramcast.virtual_gpu("h200") as card:
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        torch.addmm(x[0], x, x).sum().backward()  # cuBLAS has its workspaces
        del x
        before = torch.cuda.memory_allocated()
        model = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 64)).cuda()
        data, target = torch.randn(256, 512, device="cuda"), torch.randn(256, 64, device="cuda")
        optimizer = torch.optim.LBFGS(model.parameters(), **options)
        levels, calls = [], [0]

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(data), target)
            loss.backward()
            calls[-1] += 1
            return loss

        for _ in range(steps):
            optimizer.step(closure)
            levels.append((torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before))
            calls.append(0)
        trace = card.trace()
        history = by_kind(trace, trace.n_events - 1)["optimizer state"]
    return optimizer, levels, calls[:-1], (history, trace)


@pytest.mark.parametrize(
    ("options", "measured", "evaluations"),
    [
        ({}, (168281088 - 68157440, 175440384 - 68157440), 20),
        ({"history_size": 5, "max_iter": 10}, (101847552 - 68157440, 111601152 - 68157440), 10),
        ({"line_search_fn": "strong_wolfe"}, (168547840 - 68157440, 180704256 - 68157440), 24),
        ({"max_iter": 1, "history_size": 50}, (78203392 - 68157440, 82998272 - 68157440), 1),
    ],
)
def test_the_first_step(options: dict[str, Any], measured: tuple[int, int], evaluations: int) -> None:
    _, levels, calls, _ = run(1, **options)
    for predicted, real in zip(levels[0], measured, strict=True):
        assert predicted == pytest.approx(real, abs=1 << 19)  # the allocator's splits
    assert calls[0] == pytest.approx(evaluations, abs=2)


def test_the_history_is_full_from_the_second_step_on() -> None:
    optimizer, levels, _, (history, trace) = run(3, history_size=30, max_iter=4)
    state = optimizer.state[next(iter(optimizer.state))]
    assert len(state["old_dirs"]) == len(state["old_stps"]) == 30
    assert levels[1][0] == pytest.approx(levels[2][0], abs=1 << 19)
    # Pairs of the history, the direction, the last gradient.
    assert history == pytest.approx(62 * 4 * PARAMETERS, rel=0.001)
    assert any(note.topic == "LBFGS" for note in trace.notes)
