"""Choices among assumed numbers, and what follows from them, are worked out where they are asked for, and are then what
they would have been at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from vramcast import virtual_gpu
from vramcast.card.device.context import VirtualGpu
from vramcast.card.dispatch.storages import Block, block_of
from vramcast.card.values import later
from vramcast.card.values.later import Later, Waiting

_ROUNDS = 6
"""Each kind of op is worked out once before it waits."""


def _hashed(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows in the order of the bucket that each falls into."""
    buckets = layer(x).argmax(-1)
    numbered = buckets * 64 + torch.arange(64, device="cuda")
    order = numbered.argsort(-1)
    return buckets, order, x.gather(1, order[..., None].expand(-1, -1, 32))


def _rounds() -> list[tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    layer = nn.Linear(32, 16).cuda()
    return [_hashed(layer, torch.randn(4, 64, 32, device="cuda")) for _ in range(_ROUNDS)]


def _chosen() -> torch.Tensor:
    return nn.Linear(32, 4).cuda()(torch.randn(16, 32, device="cuda")).argmax(-1)


def _block(tensor: torch.Tensor) -> Block:
    with torch._C.DisableTorchFunction():
        block = block_of(tensor)
    assert block is not None
    return block


def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waiting, "put_off", lambda *_: False)
    monkeypatch.setattr(Waiting, "put_off_choice", lambda *_: None)


def test_what_nobody_asks_for_waits(gpu: VirtualGpu) -> None:
    buckets, order, rows = _rounds()[-1]
    assert all(isinstance(_block(tensor).values, Later) for tensor in (buckets, order))
    assert rows.shape == (4, 64, 32)
    assert 0 <= buckets.max().item() < 16


def test_it_is_what_it_would_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_gpu("h200"):
        waited = [(buckets.tolist(), order.tolist()) for buckets, order, _ in _rounds()]
    _at_once(monkeypatch)
    with virtual_gpu("h200"):
        assert [(buckets.tolist(), order.tolist()) for buckets, order, _ in _rounds()] == waited


def test_a_write_changes_nothing_that_followed_before(gpu: VirtualGpu) -> None:
    for _ in range(_ROUNDS):
        chosen = _chosen()
        plus_one = chosen + 1
        chosen += 10
        assert (chosen - plus_one).tolist() == [9] * 16


def test_a_long_chain_is_worked_out_on_the_way(gpu: VirtualGpu) -> None:
    for _ in range(2):
        chosen = _chosen()
        count = chosen
        for _ in range(2_000):
            count = count + 1
        assert (count - chosen).tolist() == [2_000] * 16


def test_a_choice_keeps_no_memory_of_the_card(gpu: VirtualGpu) -> None:
    _chosen()  # cuBLAS keeps a workspace
    before = torch.cuda.memory_allocated()
    kept = [_chosen() for _ in range(4)]
    assert torch.cuda.memory_allocated() - before == 512 * len(kept)


def test_a_choice_that_cannot_be_worked_out_is_drawn(gpu: VirtualGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = nn.Linear(32, 4).cuda()(torch.randn(16, 32, device="cuda"))
    scores.topk(2)
    chosen = scores.topk(2).indices
    assert isinstance(_block(chosen).values, Later)

    def fails(func: Any) -> Any:
        raise RuntimeError("not implemented for such numbers")

    monkeypatch.setattr(later, "on_cpu", fails)
    assert all(0 <= first < 4 and 0 <= second < 4 and first != second for first, second in chosen.tolist())
