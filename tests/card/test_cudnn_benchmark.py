"""cudnn.benchmark: what a run needs, and what it touches on a card with room while cuDNN tries its plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import vramcast
from vramcast.allocator import CachingAllocator
from vramcast.allocator.trials import Trial, trials_in, try_out
from vramcast.base.units import GIB, MIB
from vramcast.card.libraries.cudnn_installed import open_cudnn
from vramcast.memory import Prediction, predict


@pytest.fixture(autouse=True)
def benchmark() -> Iterator[None]:
    yield
    torch.backends.cudnn.benchmark = False


def _train(benchmark: bool, limit_bytes: int | None = None) -> Prediction:
    with vramcast.virtual_gpu("h200", limit_bytes=limit_bytes) as gpu:
        torch.backends.cudnn.benchmark = benchmark
        model = nn.Sequential(nn.Conv2d(64, 256, 1), nn.ReLU(), nn.Conv2d(256, 64, 1)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(32, 64, 56, 56, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return gpu.prediction()


@pytest.mark.skipif(open_cudnn() is None, reason="cuDNN is not here")
def test_a_run_touches_more_than_it_needs() -> None:
    plain, tried = _train(False), _train(True)
    assert plain.touched_bytes == plain.device_bytes
    assert tried.device_bytes < tried.touched_bytes
    # The weight gradient of the second convolution: 579,338,240 bytes on an H200 (tests/card/libraries).
    assert tried.touched_bytes - tried.context_bytes > 579_338_240 + 2 * 32 * 256 * 56 * 56 * 4
    note = next(note for note in tried.notes if note.topic == "cudnn.benchmark")
    assert "the run needs" in note.text
    assert not any(note.topic == "cudnn.benchmark" for note in plain.notes)


@pytest.mark.skipif(open_cudnn() is None, reason="cuDNN is not here")
def test_a_card_without_that_room_is_enough() -> None:
    roomy = _train(True)
    tight = _train(True, limit_bytes=roomy.peak_reserved_bytes + 64 * MIB)
    assert tight.fits and tight.touched_bytes <= roomy.touched_bytes
    assert roomy.trace is not None
    again = predict(roomy.trace, capacity_bytes=roomy.peak_reserved_bytes)
    assert again.fits and again.peak_reserved_bytes == roomy.peak_reserved_bytes


def test_what_is_refused_is_halved_and_nothing_stays() -> None:
    allocator = CachingAllocator(capacity_bytes=GIB)
    try_out(allocator, Trial((2 * GIB, 900 * MIB, MIB), MIB, MIB, MIB))
    assert allocator.peak_reserved_bytes == 900 * MIB and allocator.allocated_bytes == 0
    trial = Trial((5, 3), 3, 0, 5)
    assert trials_in(["", trial.label, "another"]) == {1: trial}
