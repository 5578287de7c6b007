"""The card refuses where it would, says what was alive, and a program that catches it goes on as it would."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import vramcast
from vramcast.base.units import GIB, MIB
from vramcast.card.device.context import VirtualGpu


def room(gpu: VirtualGpu) -> int:
    return gpu.capacity_bytes


def test_it_is_raised_at_the_allocation_that_does_not_fit(gpu: VirtualGpu) -> None:
    held = []
    fitting = room(gpu) // GIB
    for _ in range(fitting):
        held.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert len(held) == fitting and torch.cuda.memory_allocated() == fitting * GIB
    assert isinstance(caught.value, torch.cuda.OutOfMemoryError) and isinstance(caught.value, RuntimeError)
    torch.empty(room(gpu) % GIB // MIB * MIB // 2, dtype=torch.uint8, device="cuda")


def test_cached_memory_is_given_back_first(gpu: VirtualGpu) -> None:
    half = room(gpu) // 2 // MIB * MIB
    torch.empty(half, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() >= half
    torch.empty(half + 512 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 1
    assert gpu.prediction().fits and gpu.prediction().retries == 1


def test_the_message_says_what_was_alive(gpu: VirtualGpu) -> None:
    model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)).cuda()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model(torch.randn(1 << 20, 4096, device="cuda"))
    message = str(caught.value)
    assert "CUDA out of memory. Tried to allocate 16.00 GiB" in message
    assert "virtual RTX 4090" in message
    alive = next(line for line in message.splitlines() if line.startswith("Alive"))
    assert "inputs 16.00 GiB" in alive and "weights 128.0" in alive


def test_the_message_before_the_first_step_knows_weights_too(gpu: VirtualGpu) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        nn.ModuleList([nn.Linear(16384, 16384, bias=False) for _ in range(30)]).cuda()
    alive = next(line for line in str(caught.value).splitlines() if line.startswith("Alive"))
    assert alive == "Alive at this moment: weights 23.00 GiB"


def test_activations_are_named_where_the_forward_pass_breaks_off(gpu: VirtualGpu) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(40)]).cuda()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        model(torch.randn(1 << 15, 4096, device="cuda"))
    alive = next(line for line in str(caught.value).splitlines() if line.startswith("Alive"))
    assert alive.startswith("Alive at this moment: saved activations")
    modules = next(line for line in str(caught.value).splitlines() if line.startswith("Largest modules"))
    assert "Sequential." in modules


def test_what_a_refused_op_held_is_free_at_once(gpu: VirtualGpu) -> None:
    def grow() -> None:
        kept = [torch.empty(1 << 30, device="cuda")]
        while True:
            kept.append(kept[-1].sin())

    gc.disable()  # not only once cycles are looked for
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            grow()
        del caught
        assert torch.cuda.memory_allocated() == 0
    finally:
        gc.enable()


def test_a_program_that_halves_its_batch() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        model = nn.Sequential(nn.Linear(4096, 16384), nn.GELU(), nn.Linear(16384, 4096)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch, refused = 1 << 20, []
        while True:
            try:
                for _ in range(2):
                    model(torch.randn(batch, 4096, device="cuda")).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                break
            except torch.OutOfMemoryError:
                refused.append(batch)
                torch.cuda.empty_cache()
                batch //= 2
    # By hand, in KiB a row: forward keeps 16 of input and 64 each before and after GELU, 64 more is the first gradient
    # in backward. 131072 rows need 26 GiB, 65536 rows 13 GiB, beside 1 GiB of weights and gradients.
    assert refused == [1 << 20, 1 << 19, 1 << 18, 1 << 17]
    assert batch == 1 << 16
    prediction = gpu.prediction()
    assert prediction.fits, "in the end it ran"
    assert prediction.steps == 2


def test_a_run_that_is_never_caught_does_not_fit() -> None:
    with pytest.raises(torch.OutOfMemoryError), vramcast.virtual_gpu("t4") as gpu:
        nn.Linear(65536, 65536).cuda()
    prediction = gpu.prediction()
    assert not prediction.fits and prediction.at_least
    assert prediction.out_of_memory is not None
    assert prediction.out_of_memory.tried_bytes == 65536 * 65536 * 4


def test_a_limit_moves_the_refusal() -> None:
    def largest(limit: int | None) -> int:
        with vramcast.virtual_gpu("rtx-4090", limit_bytes=limit):
            held = []
            try:
                while True:
                    held.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                return len(held)

    assert largest(2 * GIB) == 8
    assert largest(2 * GIB - 1) == 7
    assert largest(None) > 80


def test_expandable_segments_leave_no_gaps() -> None:
    def survives(conf: str) -> bool:
        with vramcast.virtual_gpu("rtx-4090", limit_bytes=GIB, allocator_conf=conf):
            large = torch.empty(1000 * MIB, dtype=torch.uint8, device="cuda")
            del large
            pieces = [torch.empty(100 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]
            del pieces[::2]
            try:
                torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                return False
            return True

    # The pieces lie in one segment. Plain, half of it is free and none of it can be given back; expandable, the
    # free pages can.
    assert not survives("")
    assert survives("expandable_segments:True")


def test_memory_comes_back_after_the_error(gpu: VirtualGpu) -> None:
    before = torch.cuda.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError):
        [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(100)]
    assert torch.cuda.memory_allocated() == before
    assert torch.empty(20 * GIB, dtype=torch.uint8, device="cuda").is_cuda
