"""Where a step is cut, on the CPU: the cuts do not depend on the device."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vramcast.features.measure.phases import BACKWARD, FORWARD, OPTIMIZER, SETUP, PhaseWatcher


def _cuts(step: object, watcher_calls: list[str]) -> list[str]:
    watcher = PhaseWatcher(watcher_calls.append)
    with watcher.watching():
        watcher.begin_step()
        step()  # type: ignore[operator]
        watcher.end_step()
    return watcher_calls


def test_a_plain_step() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    assert _cuts(step, []) == [FORWARD, BACKWARD, OPTIMIZER, OPTIMIZER, OPTIMIZER]


def test_accumulation_returns_to_forward_and_two_optimizers_alternate() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]

    def step() -> None:
        for model, optimizer in zip((first, second), optimizers, strict=True):
            for _ in range(2):
                model(torch.ones(2, 3)).sum().backward()
            optimizer.step()

    one = [FORWARD, BACKWARD, FORWARD, BACKWARD, OPTIMIZER, OPTIMIZER]
    assert _cuts(step, []) == [*one, *one, OPTIMIZER]


def test_a_reentrant_checkpoint_cuts_once() -> None:
    model = nn.Linear(3, 3)

    def step() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        checkpoint(model, x, use_reentrant=True).sum().backward()

    assert _cuts(step, []) == [FORWARD, BACKWARD, OPTIMIZER]


def test_autograd_grad_is_part_of_the_forward_pass() -> None:
    def step() -> None:
        x = torch.ones(3, requires_grad=True)
        (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        slope.sum().backward()

    assert _cuts(step, []) == [FORWARD, BACKWARD, OPTIMIZER]


def test_everything_is_put_back() -> None:
    before = (torch.autograd.backward, torch.Tensor.to, torch.Tensor.cuda)
    watcher = PhaseWatcher(lambda phase: None)
    with watcher.watching():
        assert torch.autograd.backward is not before[0]
    assert (torch.autograd.backward, torch.Tensor.to, torch.Tensor.cuda) == before
    assert "to" not in vars(torch.Tensor)


def test_data_time_counts_copies_from_the_cpu_inside_steps_only() -> None:
    watcher = PhaseWatcher(lambda phase: None)
    with watcher.watching():
        torch.ones(4).to(torch.float64)
        assert watcher.data_seconds == 0.0
        assert watcher.current == SETUP
        watcher.begin_step()
        torch.ones(4).to(torch.float64)
        assert watcher.data_seconds > 0.0
        assert watcher.current == FORWARD


def test_skipped_optimizer_steps_are_not_counted() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    watcher = PhaseWatcher(lambda phase: None)
    with watcher.watching():
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert watcher.optimizer_steps == 2
