from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import vramcast
from vramcast.card.device.context import VirtualGpu

Start = Callable[..., VirtualGpu]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Begin as a rank of a world, with its process group; all is put back afterwards."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no distributed package")
    cards: list[VirtualGpu] = []

    def begin(rank: int, size: int, gpu: str = "h200", **environment: str) -> VirtualGpu:
        for name, value in {"RANK": str(rank), "WORLD_SIZE": str(size), **environment}.items():
            monkeypatch.setenv(name, value)
        card = vramcast.virtual_gpu(gpu)
        cards.append(card)
        card.__enter__()
        torch.distributed.init_process_group("nccl")
        return card

    yield begin
    for card in cards:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        card.__exit__(None, None, None)
