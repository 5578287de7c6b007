"""What an op did once is remembered for the same shapes, and only for those."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

import vramcast
from vramcast.card.dispatch.known_calls import KnownCalls
from vramcast.trace import StepTrace


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


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.mix = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Dropout(0.1))
        self.norm = torch.nn.LayerNorm(64)
        self.conv = torch.nn.Sequential(torch.nn.Conv1d(64, 16, 3, padding=1), torch.nn.BatchNorm1d(16))
        self.head = torch.nn.Linear(16, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x: Any = checkpoint(self.mix, self.embed(ids), use_reentrant=False)
        x = self.conv(self.norm(x).transpose(1, 2)).relu_().transpose(1, 2)
        x = x + torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        logits: torch.Tensor = self.head(x)
        return logits


def train() -> tuple[StepTrace, list[Any]]:
    """Steps of two lengths, each of two batches, with what comes once: hooks, errors, a frozen layer, evaluation."""
    read: list[Any] = []
    torch.manual_seed(0)
    with vramcast.virtual_gpu("rtx-4090") as gpu:
        model = Network().cuda()
        model.norm.register_forward_hook(lambda module, args, out: read.append(out.shape))
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(5):
            for batch in range(2):
                ids = torch.randint(0, 50, (3, 8 + 4 * (step % 2)), device="cuda")
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=bool(batch)):
                    logits = model(ids)
                    logits.register_hook(lambda gradient: gradient * 2)
                    loss = torch.nn.functional.cross_entropy(logits[ids > 5], ids[ids > 5])
                loss.backward()
            read += [
                loss.item(),
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item(),
                (ids > 5).sum().item(),
            ]
            optimizer.step()
            optimizer.zero_grad(set_to_none=step != 2)
            if step == 1:
                with pytest.raises(RuntimeError, match="broadcast"):
                    model(ids) + torch.ones(2, 7, device="cuda")
                model.embed.requires_grad_(False)
            with torch.no_grad():
                read.append(model(ids).float().std(-1).max().item())
    return gpu.trace(), read


def test_what_is_remembered_changes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered, read = train()
    monkeypatch.setattr(KnownCalls, "of", lambda *args: None)
    anew, read_anew = train()
    assert read == read_anew
    for column in fields(StepTrace):
        if column.name != "calls":
            assert getattr(remembered, column.name) == getattr(anew, column.name), column.name
    assert remembered.calls is not None and anew.calls is not None
    for column in fields(remembered.calls):
        assert getattr(remembered.calls, column.name) == getattr(anew.calls, column.name), column.name
    assert remembered.n_blocks > 1000
