"""Streams: their pools, memory that several of them use, and backward functions on the stream of the forward."""

from __future__ import annotations

import torch

from vramcast.card.device.context import VirtualGpu
from vramcast.memory.replay import replay
from vramcast.trace.schema import FREE, REUSABLE

MIB = 1 << 20


def test_streams_come_from_a_pool_of_32(gpu: VirtualGpu) -> None:
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert len(set(streams)) == 32 and streams[0] == streams[32]
    assert torch.cuda.Stream(priority=-1) not in streams


def test_memory_that_another_stream_uses_is_free_at_the_latest_when_the_host_has_waited(gpu: VirtualGpu) -> None:
    side = torch.cuda.Stream()
    used = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    used.record_stream(side)
    del used
    torch.empty(1, device="cuda")
    torch.cuda.current_stream().synchronize()
    torch.empty(1, device="cuda")
    assert REUSABLE not in gpu.trace().event_kind, "nothing has waited for the side stream"
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.current_stream().synchronize()
    torch.empty(1, device="cuda")
    kinds = list(gpu.trace().event_kind)
    assert kinds.index(FREE) < kinds.index(REUSABLE)
    assert replay(gpu.trace()).peak_reserved.reserved_bytes == 34 * MIB


def test_the_host_waits_for_an_event_and_what_came_before_it(gpu: VirtualGpu) -> None:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    used = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    used.record_stream(side)
    event.record(side)
    del used
    event.synchronize()  # recorded before the free, so it tells nothing of it
    torch.empty(1, device="cuda")
    assert REUSABLE not in gpu.trace().event_kind
    event.record(side)
    event.synchronize()
    torch.empty(1, device="cuda")
    assert REUSABLE in gpu.trace().event_kind


def test_a_use_on_the_stream_it_was_made_on_is_none(gpu: VirtualGpu) -> None:
    tensor = torch.empty(MIB, device="cuda")
    tensor.record_stream(torch.cuda.current_stream())
    del tensor
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    assert REUSABLE not in gpu.trace().event_kind


def test_a_trace_with_streams_can_be_saved(gpu: VirtualGpu, tmp_path: object) -> None:
    from pathlib import Path

    from vramcast.trace import StepTrace

    tensor = torch.empty(MIB, device="cuda")
    tensor.record_stream(torch.cuda.Stream())
    del tensor
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    path = Path(str(tmp_path)) / "trace"
    gpu.trace().save(path)
    assert StepTrace.load(path).event_kind == gpu.trace().event_kind


def test_backward_functions_run_on_the_stream_of_their_forward(gpu: VirtualGpu) -> None:
    weight = torch.empty(MIB, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        halves = torch.split(weight, MIB // 2)
    (halves[0] * 2.0).sum().backward()
    trace = gpu.trace()
    made = [block for block in range(trace.n_blocks) if trace.phases[trace.phase[block]] == "backward"]
    found = [(trace.requested_bytes[block], trace.stream[block]) for block in made]
    assert (2 * MIB, 0) in found, "the gradient of the product"
    assert (4 * MIB, side.stream_id) in found, "the gradient of both halves together"
    assert (4 * MIB, 0) not in found
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
