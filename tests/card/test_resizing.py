"""Memory that changes its size, sparse tensors, and the check that tests run with."""

from __future__ import annotations

import pytest
import torch

import vramcast
from vramcast.base.units import MIB
from vramcast.card.dispatch.self_check import BooksDiffer, CheckedDispatchMode, dispatch_mode
from vramcast.card.ops.registry import KERNELS, Call


def test_the_check_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch_mode() is CheckedDispatchMode, "tests/conftest.py switches it on"
    monkeypatch.delenv("VRAMCAST_CHECK")
    assert dispatch_mode() is not CheckedDispatchMode


def test_a_rule_that_does_not_book_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def unbooked(call: Call) -> torch.Tensor:
        return torch.empty(1000, device="meta")

    monkeypatch.setitem(KERNELS, "aten::cumsum", unbooked)
    with vramcast.virtual_gpu("rtx-4090") as card:
        x = torch.ones(10, device="cuda")
        with pytest.raises(
            BooksDiffer, match=r"aten::cumsum, called at .*test_resizing.py:\d+, hands back a tensor of"
        ):
            x.cumsum(0)
        assert card.unknown_kernels, "a program that swallows it must not end with a number"


def test_a_storage_that_grows_unseen_is_named() -> None:
    resize = torch.UntypedStorage.resize_
    with vramcast.virtual_gpu("rtx-4090"):
        x = torch.ones(10, device="cuda")
        resize(x.untyped_storage(), 4000)
        with pytest.raises(BooksDiffer, match="leaves an argument of 4000 bytes of which 40 are booked"):
            x.sum()


def test_what_was_written_into_out_is_known() -> None:
    with vramcast.virtual_gpu("rtx-4090"):
        x = torch.tensor([3, 1, 2], device="cuda")
        out = torch.zeros(3, dtype=torch.int64, device="cuda")
        torch.add(x, 1, out=out)
        assert out.tolist() == [4, 2, 3]
        ordered, places = torch.empty_like(x), torch.empty_like(x)
        torch.sort(x, out=(ordered, places))
        assert ordered.tolist() == [1, 2, 3] and places.tolist() == [1, 2, 0]


def test_a_resize_that_is_refused_leaves_the_books_as_they_were() -> None:
    with vramcast.virtual_gpu("rtx-4090", limit_bytes=64 * MIB):
        x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        before = torch.cuda.memory_allocated()
        with pytest.raises(torch.OutOfMemoryError):
            x.resize_(100 * MIB)
        assert torch.cuda.memory_allocated() == before
        assert x.untyped_storage().nbytes() == MIB
        (x[:100] + 1).sum()


def test_sparse_gradients_that_meet_are_joined() -> None:
    with vramcast.virtual_gpu("rtx-4090"):
        table = torch.nn.Embedding(1000, 16, sparse=True, device="cuda")
        for rows in (100, 200):
            (table(torch.arange(rows, device="cuda")) * 2).sum().backward()
        assert table.weight.grad is not None and table.weight.grad._values().shape == (300, 16)


def test_a_sparse_tensor_comes_back() -> None:
    with vramcast.virtual_gpu("rtx-4090"):
        sparse = torch.eye(4).to_sparse().cuda()
        assert sparse.is_cuda and sparse.device.type == "cuda"
        assert sparse.cpu().to_dense().tolist() == torch.eye(4).tolist()
