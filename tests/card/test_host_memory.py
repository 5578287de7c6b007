"""Memory of the computer beside the card's: what is counted, where, and what a copy takes on the card on its way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from vramcast.card.device.context import virtual_gpu
from vramcast.trace import HostUse, StepTrace
from vramcast.trace.host import PAGEABLE, PAGED, PINNED, HostLog

CARD = "rtx-4090"
MIB = 2**20


def test_pinned_blocks_are_powers_of_two_and_are_kept() -> None:
    log = HostLog()
    log.begin()
    first = log.made(3 * MIB, PINNED, "a")
    log.freed(first)
    log.made(4 * MIB, PINNED, "b")  # the block of the first
    log.made(5 * MIB, PINNED, None)
    log.made(6 * MIB, PAGEABLE, None)
    log.made(7 * MIB, PAGED, None)
    use = log.use()
    assert use is not None
    assert (use.peak_bytes, use.pinned_bytes, use.paged_bytes) == (18 * MIB, 12 * MIB, 7 * MIB)
    assert use.parts == {"other": 11 * MIB, "b": 4 * MIB, "pinned cache and rounding": 3 * MIB}


def test_set_up_does_not_count_but_what_it_leaves_does() -> None:
    log = HostLog()
    kept = log.made(4 * MIB, PAGEABLE, "weights")
    log.freed(log.made(64 * MIB, PAGEABLE, None))
    log.begin()
    log.freed(log.made(2 * MIB, PAGEABLE, None))
    log.freed(kept)
    use = log.use()
    assert use is not None and use.peak_bytes == 6 * MIB


def test_a_module_on_the_cpu_is_counted_and_saved_with_the_trace(tmp_path: Path) -> None:
    with virtual_gpu(CARD) as gpu:
        model = torch.nn.Linear(1024, 1024).cuda()
        frozen = torch.nn.Linear(2048, 2048)
        model(torch.ones(8, 1024, device="cuda")).sum().backward()
    del frozen
    gpu.trace().save(tmp_path / "a.trace")
    host = StepTrace.load(tmp_path / "a.trace").host
    assert host == gpu.prediction().host == HostUse.from_dict(host.to_dict()) if host else None
    assert host is not None and host.parts == {"weights": 4 * (2048 * 2048 + 2048)}


def _scratch(source: torch.Tensor, how: str) -> int:
    """Bytes asked for on the card while `source` is copied to the host."""
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    if how == "cpu":
        source.cpu()
    else:
        torch.empty(source.shape, dtype=source.dtype, pin_memory=True).copy_(source)
    return torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before


@pytest.mark.parametrize(("how", "transposed"), [("cpu", 0), ("copy_", 8 * MIB)])
def test_a_view_with_gaps_is_made_dense_on_the_card_first(how: str, transposed: int) -> None:
    with virtual_gpu(CARD):
        whole = torch.ones(2048, 2048, device="cuda")
        assert _scratch(whole, how) == 0
        assert _scratch(whole[:, :1024], how) == 8 * MIB
        assert _scratch(whole[:1024].T, how) == transposed, "only its strides differ"


def test_pinned_memory_knows_that_it_is() -> None:
    with virtual_gpu(CARD):
        staging = torch.empty(1024, 1024, pin_memory=True)
        assert staging.is_pinned() and staging.device.type == "cpu" and not torch.empty(4).is_pinned()
        weights = torch.nn.Linear(1024, 1024).weight.data
        assert not weights.is_pinned() and weights.pin_memory().is_pinned()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_pinned_memory_may_be_larger_than_that_of_this_machine(dtype: torch.dtype) -> None:
    with virtual_gpu(CARD) as gpu:
        model = torch.nn.Linear(4, 4).cuda()
        buffer = torch.empty((1 << 46) // dtype.itemsize, dtype=dtype, pin_memory=True)
        assert buffer.is_pinned()
        model(torch.rand(2, 4, device="cuda")).sum().backward()
        host = gpu.trace().host
    assert host is not None and host.pinned_bytes == 1 << 46


class Wrapped(torch.optim.Optimizer):
    """Made of others, and never initialised as an optimizer itself."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.inner = [torch.optim.SGD([one], lr=0.1) for one in parameters]

    @property
    def param_groups(self) -> list[dict[str, object]]:  # type: ignore[override]
        return [group for one in self.inner for group in one.param_groups]

    def step(self) -> None:  # type: ignore[override]
        for one in self.inner:
            one.step()


def test_a_step_of_many_optimizers_is_one_step() -> None:
    original = Wrapped.step
    with virtual_gpu(CARD) as gpu:
        model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3))).cuda()
        optimizer = Wrapped(list(model.parameters()))
        for _ in range(2):
            model(torch.ones(4, 16, device="cuda")).sum().backward()
            optimizer.step()
    assert gpu.trace().steps == 2
    assert Wrapped.step is original


def test_paged_optimizer_state_is_neither_here_nor_there() -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    figures = []
    for kind in (bitsandbytes.optim.AdamW8bit, bitsandbytes.optim.PagedAdamW8bit):
        with virtual_gpu(CARD) as gpu:
            model = torch.nn.Linear(4096, 4096).cuda()
            optimizer = kind(model.parameters(), lr=1e-4)
            for _ in range(2):
                model(torch.ones(4, 4096, device="cuda")).sum().backward()
                optimizer.step()
        figures.append(gpu.prediction())
    plain, paged = figures
    assert plain.host is None and paged.host is not None
    assert paged.host.paged_bytes == 2 * 4096 * 4096 and paged.host_bytes == 0
    gone = plain.account.part("optimizer state") - paged.account.part("optimizer state")
    assert gone == paged.host.paged_bytes
