"""CUDA graphs of compiled code (mode="reduce-overhead") on the virtual card."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vramcast
from vramcast.card.compiled.compiler import why_not
from vramcast.timing.step import predict_step
from vramcast.trace.calls import REPLAY, REPLAYED

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.filterwarnings("ignore"),
]
MIB = 1 << 20


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()


def test_warm_up_recording_and_replay() -> None:
    made, peaks = [], []
    with vramcast.virtual_gpu("h200") as card:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(4):
            before = card.n_blocks
            torch.cuda.reset_peak_memory_stats()
            compiled(torch.randn(512, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            made.append(card.n_blocks - before)
            peaks.append(torch.cuda.max_memory_allocated())
        trace = card.trace()
    assert made[0] > 10
    assert made[1] > 10, "the second call is recorded, with its inputs copied"
    assert made[2] == made[3], "a replay allocates nothing"
    assert made[2] < 10
    weights = 2 * 1024 * 4096 * 4
    assert peaks[2] < peaks[1] - weights, "gradients are in the graphs' pool, which replays do not book again"
    calls = trace.calls
    assert calls is not None
    replays = [row for row, number in enumerate(calls.call) if calls.ops[number] == REPLAY]
    assert len(replays) == 6, "a forward and a backward graph: run once after they are recorded, then in two steps"
    assert sum(bool(flags & REPLAYED) for flags in calls.flags) >= 6 * 2
    time = predict_step(trace)
    assert time is not None
    assert 1e-4 < time.seconds < 2e-3, "the products alone take about 0.1 ms"


def test_gradients_of_an_earlier_pass_are_overwritten() -> None:
    """As on a real card: without cudagraph_mark_step_begin gradients cannot be accumulated."""
    with vramcast.virtual_gpu("h200"), pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
        compiled = torch.compile(make_model(), mode="reduce-overhead")
        for _ in range(2):
            compiled(torch.randn(512, 1024, device="cuda")).sum().backward()


def test_cublas_takes_its_workspace_again() -> None:
    with vramcast.virtual_gpu("h200"):
        x = torch.randn(1024, 1024, device="cuda")
        x @ x
        held = torch.cuda.memory_allocated()
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() < held - 8 * MIB
        x @ x
        assert torch.cuda.memory_allocated() == held
