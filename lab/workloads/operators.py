"""Fourier neural operators: FFTs and complex weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


class SpectralConv2d(nn.Module):
    """Keep the lowest modes of the spectrum and mix their channels with complex weights."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        scale = 1 / width**2
        self.low = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cfloat))
        self.high = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        mixed = torch.zeros_like(spectrum)
        mixed[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.low)
        mixed[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.high)
        return torch.fft.irfft2(mixed, s=x.shape[-2:])


class SpectralConv3d(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weights = nn.ParameterList(
            [torch.rand(width, width, modes, modes, modes, dtype=torch.cfloat) / width**2 for _ in range(4)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        m = self.modes
        spectrum = torch.fft.rfftn(x, dim=(-3, -2, -1))
        mixed = torch.zeros_like(spectrum)
        corners = [(a, b) for a in (slice(None, m), slice(-m, None)) for b in (slice(None, m), slice(-m, None))]
        for (a, b), weight in zip(corners, self.weights, strict=True):
            mixed[:, :, a, b, :m] = torch.einsum("bixyz,ioxyz->boxyz", spectrum[:, :, a, b, :m], weight)
        return torch.fft.irfftn(mixed, s=x.shape[-3:], dim=(-3, -2, -1))


class FourierOperator(nn.Module):
    def __init__(self, dims: int, channels: int, width: int, modes: int, layers: int) -> None:
        super().__init__()
        convolution: Any = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
        spectral: Any = {2: SpectralConv2d, 3: SpectralConv3d}[dims]
        self.lift = convolution(channels, width, 1)
        self.spectral = nn.ModuleList([spectral(width, modes) for _ in range(layers)])
        self.local = nn.ModuleList([convolution(width, width, 1) for _ in range(layers)])
        self.project = nn.Sequential(convolution(width, 2 * width, 1), nn.GELU(), convolution(2 * width, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        return self.project(x)


def _relative_l2(model: nn.Module, batch: Batch) -> Any:
    predicted = model(batch["fields"])
    error = (predicted - batch["target"]).flatten(1).norm(dim=1)
    return (error / batch["target"].flatten(1).norm(dim=1)).mean(), predicted


def fno(
    *, dims: int = 2, batch: int = 8, size: int = 128, width: int = 256, modes: int = 16, layers: int = 10,
    optimizer: str = "adam", style: str = "function", depth: int | None = None,
) -> Step:  # fmt: skip
    """`depth` is the third extent of a 3-D field when it differs from `size`."""
    model = FourierOperator(dims, dims + 1, width, modes, layers).cuda()
    extent = (size, size) if dims == 2 else (size, size, depth or size)
    data = {"fields": torch.randn(batch, dims + 1, *extent), "target": torch.randn(batch, 1, *extent)}
    return train(model, data, _relative_l2, make_optimizer(optimizer, model.parameters()), style=style)
