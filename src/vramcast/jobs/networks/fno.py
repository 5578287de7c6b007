"""A Fourier neural operator: layers that mix the lowest frequencies of a field, beside pointwise ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Spectral(nn.Module):
    """Complex weights for the lowest `modes` frequencies of each direction; the others are dropped."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (width, width, modes, modes)
        self.positive = nn.Parameter(torch.rand(shape, dtype=torch.cfloat) / width**2)
        self.negative = nn.Parameter(torch.rand(shape, dtype=torch.cfloat) / width**2)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x.float())
        high, wide = (min(self.modes, size) for size in spectrum.shape[-2:])
        mixed = torch.zeros_like(spectrum)
        for rows, weights in ((slice(high), self.positive), (slice(-high, None), self.negative)):
            mixed[:, :, rows, :wide] = torch.einsum(
                "bixy,ioxy->boxy", spectrum[:, :, rows, :wide], weights[:, :, :high, :wide]
            )
        field: Tensor = torch.fft.irfft2(mixed, s=x.shape[-2:])
        return field


class FNO(nn.Module):
    def __init__(
        self, width: int = 64, layers: int = 4, modes: int = 16, in_channels: int = 1, out_channels: int = 1,
        projection: int = 128, upsample: int = 1,
    ) -> None:  # fmt: skip
        """`upsample`: a coarse field is first interpolated to so many times its size."""
        super().__init__()
        self.upsample = nn.Upsample(scale_factor=upsample, mode="bicubic") if upsample > 1 else nn.Identity()
        self.lift = nn.Conv2d(in_channels, width, 1)
        self.spectral = nn.ModuleList([Spectral(width, modes) for _ in range(layers)])
        self.local = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(layers)])
        self.project = nn.Sequential(nn.Conv2d(width, projection, 1), nn.GELU(), nn.Conv2d(projection, out_channels, 1))

    def forward(self, field: Tensor) -> Tensor:
        x = self.lift(self.upsample(field))
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = nn.functional.gelu(spectral(x) + local(x))
        return self.project(x)  # type: ignore[no-any-return]
