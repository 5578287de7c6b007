"""What a step waits for other ranks, from the collectives and streams that the program used."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vramcast
from vramcast.gpus import find_gpu
from vramcast.timing import predict_step
from vramcast.timing.collectives import Collective

WIDTH, BATCH = 8192, 64


def _trace(monkeypatch: pytest.MonkeyPatch, wrap: str, world: int) -> vramcast.trace.StepTrace:
    for name, value in {"RANK": 0, "WORLD_SIZE": world, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 8}.items():
        monkeypatch.setenv(name, str(value))
    with vramcast.virtual_gpu("h100") as card:
        torch.distributed.init_process_group("nccl")
        try:
            model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))).to("cuda")
            if wrap == "ddp":
                model = nn.parallel.DistributedDataParallel(model)
            else:
                from torch.distributed.fsdp import fully_shard

                for layer in model.children():
                    fully_shard(layer)
                fully_shard(model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            torch.distributed.destroy_process_group()
    return card.trace()


def test_fsdp_gathers_twice_and_scatters_once(monkeypatch: pytest.MonkeyPatch) -> None:
    time = predict_step(_trace(monkeypatch, "fsdp", 8))
    assert time is not None
    h100, size = find_gpu("h100"), 4 * WIDTH * WIDTH
    gather, scatter = (Collective(kind, size, 8, 1).seconds(h100) for kind in ("all_gather", "reduce_scatter"))
    assert time.communication_seconds == pytest.approx(8 * gather + 4 * scatter, rel=1e-6)
    assert 0 < time.exposed_communication_seconds <= time.communication_seconds


def test_ddp_sums_each_bucket_once(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = (predict_step(_trace(monkeypatch, "ddp", world)) for world in (8, 16))
    assert near is not None
    assert far is not None
    size = 4 * 4 * WIDTH * WIDTH
    assert near.communication_seconds >= Collective("all_reduce", size, 8, 1).seconds(find_gpu("h100"))
    assert far.communication_seconds > near.communication_seconds  # over the network


def test_one_rank_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    time = predict_step(_trace(monkeypatch, "ddp", 1))
    assert time is not None
    assert time.communication_seconds == 0.0
    assert "communication" not in time.limits
