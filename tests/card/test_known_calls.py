"""What an op did once is remembered for the same shapes, and only for those."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

import vramcast


def test_an_op_that_writes_in_place_gives_its_argument_back() -> None:
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        made = [torch.empty(1000, device="cuda") for _ in range(2)]
        for x in made * 2:
            assert x.normal_(0, 1) is x and x.add_(made[0]) is x
            assert x.shape == (1000,) and x._version % 2 == 0
        assert all(version > 0 for version in (x._version for x in made))
    assert gpu.prediction().peak_allocated_bytes == 2 * 4096


def test_what_was_right_for_one_shape_is_not_for_another() -> None:
    with vramcast.virtual_gpu("rtx-4090"):
        x = torch.empty(4, 3, device="cuda")
        for other in (torch.empty(4, 3, device="cuda"), torch.empty(3, device="cuda")):
            x.add_(other)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"size of tensor|broadcast"):
                x.add_(torch.empty(4, device="cuda"))
        counts = torch.empty(4, dtype=torch.int64, device="cuda")
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"Float|Promotion"):
                counts.add_(x[:, 0])


def test_the_default_dtype_counts() -> None:
    with vramcast.virtual_gpu("rtx-4090"):
        ones = torch.ones(8, dtype=torch.int64, device="cuda")
        assert (ones / 2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (ones / 2).dtype == torch.float64 and torch.zeros(2, device="cuda").dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_an_op_runs_where_its_arguments_are() -> None:
    with vramcast.virtual_gpu("rtx-4090"):
        weight = torch.nn.Linear(512, 512).cuda().weight.detach()
        for x in (weight, weight.cpu(), weight, weight.cpu()):
            assert (x * 2).device == x.device == x.mul_(2).device


@pytest.mark.parametrize("same", [True, False])
def test_checkpointing_still_sees_what_differs(same: bool) -> None:
    calls = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return (x if same or len(calls) == 1 else x[:2]).sin().cos()

    with vramcast.virtual_gpu("rtx-4090") as gpu:
        x = torch.randn(4, 1000, device="cuda", requires_grad=True)
        loss = checkpoint(block, x, use_reentrant=False).sum()
        if same:
            loss.backward()
            assert x.grad is not None and x.grad.device == torch.device("cuda", 0)
        else:
            with pytest.raises(CheckpointError, match="different metadata"):
                loss.backward()
    assert len(calls) == 2
    assert gpu.trace().n_blocks
