"""Small networks that jobs in the tests name as factories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Mixer(nn.Module):
    def __init__(self, width: int = 256, depth: int = 3, classes: int = 10, dropout: float = 0.1) -> None:
        super().__init__()
        self.stem = nn.Linear(64, width)
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ConvNet(nn.Module):
    def __init__(self, channels: int = 32, scale: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, 3 * scale, 3, padding=1)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.body(image)


def mixer(**arguments: Any) -> nn.Module:
    return Mixer(**arguments)


def conv_net(**arguments: Any) -> nn.Module:
    return ConvNet(**arguments)


def features() -> nn.Module:
    """A stand-in for VGG: what a loss network returns."""
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))


class LooksAtData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.layer(x)[x > 0]
        return chosen.view(3, 1000).sum()


def looks_at_data() -> nn.Module:
    return LooksAtData()


def step(batch: int = 4, width: int = 64) -> Any:
    """A whole training step, for `step: {factory: ...}`."""
    model = Mixer(width).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def one() -> None:
        optimizer.zero_grad()
        model(torch.randn(batch, 64, device="cuda")).sum().backward()
        optimizer.step()

    return one


def absolute_error(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (prediction - target).abs().mean()


JOB = {
    "components": {"model": {"factory": "tests.jobs.tiny:mixer"}},
    "inputs": {
        "x": {"shape": ["batch", 64]},
        "labels": {"shape": ["batch"], "dtype": "int64", "below": 10},
    },
    "sizes": {"batch": 512},
}
"""Also a job that can be named: tests.jobs.tiny:JOB."""


def job() -> dict[str, Any]:
    return JOB


def not_a_job() -> int:
    return 3


def enlarging_step(batch: int, channels: int, size: int) -> Callable[[], None]:
    """One convolution and an enlargement, channels last."""
    model = nn.Conv2d(3, channels, 3, padding=1).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        x = torch.empty(batch, 3, size // 8, size // 8, device="cuda").to(memory_format=torch.channels_last)
        F.interpolate(model(x), size=(size, size), mode="bilinear").mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
