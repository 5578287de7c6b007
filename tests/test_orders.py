"""Steps of a trace that change places."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.card.scripts import runner
from vramcast.memory.orders import _reordered, _steps, worst_order
from vramcast.memory.replay import replay
from vramcast.trace import StepTrace

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for rows in LENGTHS:
    loss = model(torch.randn(rows, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def traced(folder: Path, *lengths: int) -> StepTrace:
    trace = runner(folder)(SCRIPT.replace("LENGTHS", str(lengths)), steps=None).trace
    assert trace is not None
    return trace


def sizes(trace: StepTrace) -> tuple[list[int], list[int], list[int]]:
    return list(trace.event_kind), list(trace.event_arg), list(trace.requested_bytes)


def test_another_order_is_as_if_it_had_been_run(tmp_path: Path) -> None:
    trace = traced(tmp_path, 512, 512, 100, 3000, 9000, 40_000, 700, 512)
    steps = _steps(trace)
    assert len(steps) == 8
    assert sizes(_reordered(trace, steps, 3, [3, 4, 5, 6])) == sizes(trace)
    other = traced(tmp_path, 512, 512, 100, 40_000, 700, 3000, 9000, 512)
    assert sizes(_reordered(trace, steps, 3, [5, 6, 3, 4])) == sizes(other)


def test_the_worst_order_reserves_most(tmp_path: Path) -> None:
    falling = 512, 512, 100, 40_000, 9000, 3000, 700, 512
    trace = traced(tmp_path, *falling)
    worst = worst_order(trace, 3, 7)
    assert worst is not None and worst.tried == 43
    assert worst.as_run_bytes == replay(trace).peak_reserved.reserved_bytes
    rising = traced(tmp_path, 512, 512, 100, 700, 3000, 9000, 40_000, 512)
    assert worst.reserved_bytes >= replay(rising).peak_reserved.reserved_bytes > worst.as_run_bytes
    assert replay(worst.trace).peak_reserved.reserved_bytes == worst.reserved_bytes


@pytest.mark.parametrize(("first", "end"), [(0, 4), (3, 4), (3, 8)])
def test_steps_at_the_beginning_and_the_end_stay(first: int, end: int, tmp_path: Path) -> None:
    assert worst_order(traced(tmp_path, 512, 512, 100, 3000, 9000, 40_000, 700, 512), first, end) is None


def test_steps_that_leave_something_behind_stay(tmp_path: Path) -> None:
    text = SCRIPT.replace("LENGTHS", "[512, 512, 100, 3000, 9000, 700, 512]")
    queue = "    kept = [*kept[-2:], torch.zeros(rows, device='cuda')]\n"
    kept = text.replace("for rows", "kept = []\nfor rows").replace("    optimizer.step", f"{queue}    optimizer.step")
    trace = runner(tmp_path)(kept, steps=None).trace
    assert trace is not None and worst_order(trace, 3, 6) is None
