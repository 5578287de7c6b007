"""Training steps as people write them, for the tests of the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def network(width: int = 256) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.Dropout(0.1), nn.GELU(), nn.Linear(width, 10))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
    loss.backward()
    optimizer.step()
    return loss.detach()


def batch_of(size: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(size, 64), "y": torch.randint(0, 10, (size,))}


def build(batch: int = 1024, accumulation: int = 1, checkpointing: bool = False) -> Callable[[], None]:
    model = nn.ModuleList([nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)])
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def one() -> None:
        optimizer.zero_grad()
        for _ in range(accumulation):
            x = torch.randn(batch, 256, device="cuda")
            for block in model:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
            x.square().mean().backward()
        optimizer.step()

    return one


class Program:
    """Holds everything itself."""

    def __init__(self) -> None:
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.steps = 0

    def train_step(self, batch: dict[str, torch.Tensor]) -> Any:
        self.steps += 1
        return step(self.model, self.optimizer, batch)
