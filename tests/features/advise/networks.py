"""Small networks whose blocks differ in what they keep and in how long they take."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn


class _Layer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class _Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(256, inner) for inner in (512, 2048, 256, 1024, 4096))
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class _Residual(nn.Module):
    def __init__(self, inside: int, outside: int, depth: int, stride: int) -> None:
        super().__init__()
        sizes = [inside] + [outside] * depth
        layers: list[nn.Module] = []
        for number, (a, b) in enumerate(itertools.pairwise(sizes)):
            layers += [nn.Conv2d(a, b, 3, stride=1 if number else stride, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
        self.body = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class _ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        plan = ((3, 32, 2, 1), (32, 64, 3, 2), (64, 64, 1, 1), (64, 128, 4, 2), (128, 256, 2, 2))
        self.stages = nn.ModuleList(_Residual(*one) for one in plan)
        self.head = nn.Linear(256, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            image = stage(image)
        return self.head(image.mean((2, 3)))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList((_Residual(3, 32, 1, 1), _Residual(32, 64, 2, 2), _Residual(64, 128, 2, 2)))
        self.up = nn.ModuleList((_Residual(192, 64, 2, 1), _Residual(96, 32, 1, 1)))
        self.out = nn.Conv2d(32, 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        kept = []
        for stage in self.down:
            image = stage(image)
            kept.append(image)
        image = kept.pop()
        for stage in self.up:
            image = stage(torch.cat((F.interpolate(image, scale_factor=2), kept.pop()), 1))
        return self.out(image)


def stack() -> nn.Module:
    return _Stack()


def conv_net() -> nn.Module:
    return _ConvNet()


def u_net() -> nn.Module:
    return _UNet()


def video() -> nn.Module:
    """Two convolutions over a clip, and every second frame kept."""
    return nn.Sequential(
        nn.Conv3d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 16, 3, stride=(2, 2, 2), padding=1), nn.ReLU()
    )
