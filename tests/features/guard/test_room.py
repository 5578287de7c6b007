"""What there is for a run on the card: named, free by the driver, or free beside what this process holds itself."""

from __future__ import annotations

import pytest
import torch

import vramcast
from vramcast.base.units import GIB, MIB
from vramcast.errors import UsageError
from vramcast.features.guard.room import room
from vramcast.gpus import find_gpu, state
from vramcast.gpus.survey import LocalGpu, Survey


def local(*free_gib: int) -> Survey:
    cards = tuple(
        LocalGpu(index=i, name="NVIDIA GeForce RTX 4090", uuid=f"GPU-{i}", total_bytes=24 * GIB,
                 used_bytes=(24 - free) * GIB, free_bytes=free * GIB)
        for i, free in enumerate(free_gib)
    )  # fmt: skip
    return Survey(cards=cards)


def test_a_named_card_is_empty() -> None:
    found = room("t4")
    assert found.available_bytes == found.free_bytes == find_gpu("t4").total_memory_bytes
    assert found.where == "on Tesla T4"
    limited = room("t4", "4GiB")
    assert limited.available_bytes == 4 * GIB and limited.where == "allowed on Tesla T4"
    assert room("t4", "4TiB").available_bytes == found.available_bytes


def test_what_the_driver_says_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_by_nvml", lambda: local(3, 20))
    assert room(None).free_bytes == 3 * GIB
    second = room(None, device=1, otherwise="t4")
    assert second.available_bytes == 20 * GIB and second.where == "free on RTX 4090 (device 1)"
    with pytest.raises(UsageError, match="device 2: the visible cards are 0, 1"):
        room(None, device=2)


def test_none_here() -> None:
    assert room(None, otherwise="t4").gpu.id == "t4"
    assert room(None, "10GiB").gpu.name == "10 GiB GPU"
    with pytest.raises(UsageError, match="name one"):
        room(None)


def test_what_this_process_holds_itself() -> None:
    """The run's own tensors are predicted again; others stay where they are; cached memory can be used again."""
    with vramcast.virtual_gpu("rtx-4090") as card:
        model = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
        other = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
        cached = torch.empty(GIB, dtype=torch.uint8, device="cuda")
        del cached
        free, total = torch.cuda.mem_get_info()
        own = room(None, own_bytes=2 * GIB)
        assert own.free_bytes == free
        kernels = total - 3 * GIB - own.available_bytes
        assert 0 <= kernels < 200 * MIB, "all but what is not the run's, and kernels that are loaded"
        assert room(None, own_bytes=None).available_bytes == total - kernels
        assert room(None, own_bytes=0).available_bytes == total - kernels - 5 * GIB
        torch.cuda.set_per_process_memory_fraction(0.5)
        limited = room(None, own_bytes=2 * GIB)
        assert limited.available_bytes == int(total * 0.5) + card.gpu.context_bytes - 3 * GIB
        assert "50% of it" in limited.where
    del model, other
