"""Wherever a program says "cuda", it gets the card; what it asks about the card is the target's answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.card.reading import growth
from vramcast.base.units import MIB
from vramcast.card.device.context import VirtualGpu

pytestmark = pytest.mark.usefixtures("gpu")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3).cuda(),
        lambda: torch.zeros(3).cuda(0),
        lambda: torch.zeros(3).to("cuda"),
        lambda: torch.zeros(3).to(0),
        lambda: torch.zeros(3).to(device="cuda:0", non_blocking=True),
        lambda: torch.zeros(3).to(torch.ones(1, device="cuda")),
        lambda: torch.zeros(3).to("cuda", torch.float16, copy=True),
        lambda: torch.zeros(3, device="cuda"),
        lambda: torch.tensor([1.0, 2.0, 3.0], device=torch.device("cuda")),
        lambda: torch.as_tensor([1, 2, 3], device="cuda"),
        lambda: torch.zeros_like(torch.zeros(3), device="cuda"),
        lambda: torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(0)),
        lambda: torch.ones(1, device="cuda").new_zeros(3),
        lambda: torch.ones(1, device="cuda").new_tensor([1, 2, 3]),
        lambda: torch.ones(1, device="cuda").new_full((3,), 2.0),
        lambda: torch.zeros(3).type(torch.cuda.FloatTensor),
        lambda: torch.cuda.FloatTensor(3),
        lambda: torch.cuda.LongTensor([1, 2, 3]),
        lambda: torch.nn.Linear(2, 3).cuda().bias,
        lambda: torch.nn.Linear(2, 3, device="cuda", dtype=torch.bfloat16).bias,
    ],
)
def test_every_way_to_the_card(make: Any) -> None:
    taken, tensor = growth(make)
    assert tensor.is_cuda and not tensor.is_cpu and not tensor.is_meta
    assert tensor.device == torch.device("cuda", 0) and tensor.get_device() == 0
    assert tensor.shape == (3,)
    assert taken == 512


def test_there_is_one_card() -> None:
    assert torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
    uses = (lambda: torch.zeros(3).to("cuda:1"), lambda: torch.zeros(3, device=1), lambda: torch.cuda.set_device(1))
    for use in uses:
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use()


def test_cpu_tensors_are_real() -> None:
    data = torch.arange(6).reshape(2, 3)
    assert data.device.type == "cpu" and data.sum().item() == 15
    assert (data.float() @ data.float().T).tolist() == [[5.0, 14.0], [14.0, 50.0]]
    back = data.cuda().cpu()
    assert back.tolist() == data.tolist(), "what is known comes back"


def test_the_programs_own_meta_tensors_stay_meta(gpu: VirtualGpu) -> None:
    before = gpu.trace().n_blocks
    with torch.device("meta"):
        layer = torch.nn.Linear(1000, 1000)
    out = layer(torch.empty(4, 1000, device="meta"))
    assert out.is_meta and out.device.type == "meta" and layer.weight.is_meta and not layer.weight.is_cuda
    assert gpu.trace().n_blocks == before
    layer.to_empty(device="cuda")
    assert layer.weight.is_cuda
    assert gpu.trace().n_blocks == before + 2


def test_device_as_a_context() -> None:
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda and torch.nn.Linear(3, 3).weight.is_cuda and torch.tensor([1]).is_cuda
        assert not torch.ones(2, device="cpu").is_cuda
    assert not torch.ones(2).is_cuda


def test_a_default_device() -> None:
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).is_cuda and torch.arange(3).is_cuda and torch.get_default_device().type == "cuda"
    finally:
        torch.set_default_device(None)
    assert not torch.ones(2).is_cuda


def test_a_default_tensor_type() -> None:
    torch.set_default_tensor_type("torch.cuda.HalfTensor")
    try:
        assert torch.ones(2).is_cuda and torch.ones(2).dtype == torch.float16
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_mixing_devices_is_an_error_in_cudas_words() -> None:
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        torch.ones(3, device="cuda") + torch.ones(3)
    with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
        torch.ones(3, device="cuda").numpy()


def test_memory_figures_follow_the_allocator() -> None:
    torch.cuda.reset_peak_memory_stats()
    held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 3 * MIB
    assert torch.cuda.memory_reserved() == 20 * MIB, "requests of 1 to 10 MiB share segments of 20 MiB"
    del held
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == 3 * MIB
    assert torch.cuda.memory_stats()["reserved_bytes.all.current"] == 20 * MIB
    assert "20480 KiB" in torch.cuda.memory_summary()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < total - free < 2**30, "the context"


def test_a_snapshot_lists_the_blocks_and_an_observer_is_told_of_a_refusal() -> None:
    held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    (segment,) = torch.cuda.memory._snapshot()["segments"]
    assert segment["total_size"] == 20 * MIB and segment["allocated_size"] == 3 * MIB
    used = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
    assert [(block["address"], block["requested_size"]) for block in used] == [
        (held.untyped_storage().data_ptr(), 3 * MIB)
    ]
    told: list[tuple[int, ...]] = []
    attach: Any = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]
    attach(lambda *figures: told.append(figures))
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, dtype=torch.uint8, device="cuda")
    ((device, tried, _, free),) = told
    assert (device, tried) == (0, 2**40) and 0 < free < 2**40


def test_a_gradient_follows_its_parameter_to_the_cpu() -> None:
    model = torch.nn.Linear(100, 100).cuda()
    model(torch.ones(2, 100, device="cuda")).sum().backward()
    model.cpu()
    assert all(
        p.device.type == "cpu" and p.grad is not None and p.grad.device.type == "cpu" for p in model.parameters()
    )


def test_a_storage_can_be_emptied_and_filled_again() -> None:
    """How sharded training frees gathered weights."""
    tensor = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    storage = tensor.untyped_storage()
    assert storage.data_ptr() == tensor.data_ptr() != 0
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == 0 and tensor.shape == (MIB,)
    storage.resize_(MIB)
    assert torch.cuda.memory_allocated() == MIB
    del tensor, storage
    assert torch.cuda.memory_allocated() == 0


def test_streams_allocate_from_their_own_pools() -> None:
    first = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    assert side != torch.cuda.current_stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        second = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == 40 * MIB, "a stream does not use another's segment"
    torch.cuda.current_stream().wait_stream(side)
    second.record_stream(torch.cuda.current_stream())
    with side:
        assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    del first, second


def test_events_and_synchronisation() -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert end.query() and start.elapsed_time(end) > 0
    with torch.cuda.device(0), torch.cuda.nvtx.range("x"):
        pass


def test_the_generic_accelerator_is_the_card() -> None:
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator().type == "cuda"
    torch.accelerator.synchronize()


def test_threads_see_the_card() -> None:
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(torch.zeros(3).cuda() + 1))
    thread.start()
    thread.join()
    assert found[0].is_cuda


def test_data_loaders_give_real_batches() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    for options in ({}, {"pin_memory": True}, {"num_workers": 1, "pin_memory": True}):
        loader = torch.utils.data.DataLoader(data, batch_size=3, **options)
        batches = [(x.cuda(non_blocking=True), y) for x, y in loader]
        assert [y.tolist() for _, y in batches] == [[0, 1, 2], [3, 4, 5]]
        assert batches[1][0].is_cuda and batches[1][0].tolist() == [[6.0, 7.0], [8.0, 9.0], [10.0, 11.0]]
