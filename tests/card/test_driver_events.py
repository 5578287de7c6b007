"""When the driver takes memory for itself: marks that a run on the virtual card leaves."""

from __future__ import annotations

import torch
from torch import nn

from vramcast.allocator.driver_events import (
    CUBLAS_HANDLE,
    CUDNN_HANDLE,
    DRIVER_EVENTS,
    FIRST_KERNEL,
    NORM,
    RANDOM_NUMBERS,
)
from vramcast.card.device.context import VirtualGpu
from vramcast.trace.schema import MARK


def marks(gpu: VirtualGpu) -> list[str]:
    trace = gpu.trace()
    rows = zip(trace.event_kind, trace.event_arg, strict=True)
    labels = [trace.labels[arg] for code, arg in rows if code == MARK]
    return [label for label in labels if label in DRIVER_EVENTS]


def test_moving_weights_runs_no_kernel_but_changing_their_layout_does(gpu: VirtualGpu) -> None:
    model = nn.Conv2d(8, 8, 3).cuda()
    torch.empty(100, device="cuda")
    assert marks(gpu) == []
    model.to(memory_format=torch.channels_last)
    assert marks(gpu) == [FIRST_KERNEL]


def test_random_numbers_are_not_the_first_kernel(gpu: VirtualGpu) -> None:
    x = torch.empty(100, device="cuda").uniform_()
    x.normal_()
    assert marks(gpu) == [RANDOM_NUMBERS]
    x.fill_(1.0)
    x.uniform_()
    assert marks(gpu) == [RANDOM_NUMBERS, FIRST_KERNEL]


def test_handles_of_both_threads_and_the_first_norm(gpu: VirtualGpu) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    model(torch.zeros(2, 8, 8, 8, device="cuda")).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert marks(gpu) == [FIRST_KERNEL, CUDNN_HANDLE, CUBLAS_HANDLE, CUBLAS_HANDLE, CUDNN_HANDLE, NORM]
