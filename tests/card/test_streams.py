"""Work on several streams: whose pool memory comes from, and when it can be had again."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import vramcast
from vramcast.base.units import MIB
from vramcast.card.libraries.cudnn_installed import open_cudnn
from vramcast.memory.replay import replay

SCRIPTS = Path(__file__).parents[2] / "lab" / "practice" / "scripts"
torch_2_11 = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="measured with torch 2.11")


def test_backward_runs_on_the_stream_of_the_forward_pass() -> None:
    with vramcast.virtual_gpu("h200") as card:
        layer, side = nn.Linear(512, 512).cuda(), torch.cuda.Stream()
        x = torch.randn(1024, 512, device="cuda")
        with torch.cuda.stream(side):
            y = layer(x).relu()
        y.sum().backward()
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
    trace = card.trace()
    workspaces = [block for block, size in enumerate(trace.requested_bytes) if size == 32 * MIB]
    # cuBLAS has one for each thread and stream that it works on: here Python's and autograd's.
    assert [trace.stream[block] for block in workspaces] == [side.stream_id] * 2


def test_a_hook_in_backward_sees_the_stream_of_its_node() -> None:
    seen = []
    with vramcast.virtual_gpu("h200"):
        w, side = torch.randn(64, 64, device="cuda", requires_grad=True), torch.cuda.Stream()
        with torch.cuda.stream(side):
            y = w.exp()
            y.grad_fn.register_prehook(lambda grads: seen.append(torch.cuda.current_stream() == side))
        y.sum().backward()
    assert seen == [True]


def test_memory_used_by_a_second_stream_waits_for_it() -> None:
    """The host is far ahead of matrix products of 17 TFLOP, so what they use is not free for the next copy."""
    with vramcast.virtual_gpu("h200") as card:
        side, w = torch.cuda.Stream(), torch.randn(16384, 16384, device="cuda")
        for _ in range(4):
            with torch.cuda.stream(side):
                x = torch.zeros(32768, 16384, device="cuda")
            x.record_stream(torch.cuda.current_stream())
            y = x @ w
            del x, y
    assert replay(card.trace()).peak_reserved.reserved_bytes == (1024 + 32 + 4 * 2048 + 2048) * MIB


@torch_2_11
@pytest.mark.skipif(open_cudnn() is None, reason="sizes of workspaces are cuDNN's")
def test_prefetched_batches_reserve_what_they_did() -> None:
    with vramcast.virtual_gpu("h200") as card:
        runpy.run_path(str(SCRIPTS / "side_stream_prefetch.py"))
    done = replay(card.trace())
    assert done.peak_allocated.allocated_bytes == 4567738368
    assert done.peak_reserved.reserved_bytes == 7088373760


def test_a_stream_by_its_address_is_the_stream() -> None:
    with vramcast.virtual_gpu("h200"):
        side = torch.cuda.Stream()
        assert torch.cuda.ExternalStream(side.cuda_stream) == side
