"""A Fourier neural operator (Li et al., 2021) that makes a fine field from a coarse one."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "tanh": torch.tanh}


class SpectralConv2d(nn.Module):
    """Mixes the channels of the lowest frequencies with complex weights, and drops the others."""

    def __init__(self, before: int, after: int, modes1: int, modes2: int) -> None:
        super().__init__()
        self.after, self.modes1, self.modes2 = after, modes1, modes2
        scale = 1 / (before * after)
        # Rows of the spectrum hold positive frequencies first and negative ones last.
        self.positive = nn.Parameter(scale * torch.rand(before, after, modes1, modes2, dtype=torch.cfloat))
        self.negative = nn.Parameter(scale * torch.rand(before, after, modes1, modes2, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        m, n = self.modes1, self.modes2
        spectrum = torch.fft.rfft2(x.float())
        mixed = spectrum.new_zeros(x.shape[0], self.after, *spectrum.shape[-2:])
        mixed[:, :, :m, :n] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :n], self.positive)
        mixed[:, :, -m:, :n] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :n], self.negative)
        return torch.fft.irfft2(mixed, s=x.shape[-2:])


class FNO2d(nn.Module):
    """Coarse fields (batch, in_dim, h, w) → fine ones (batch, out_dim, h × factor, w × factor).

    The coarse field is interpolated first and the operator works at the fine resolution. `layers` are the channels
    between the spectral layers, so there is one more of them than of `modes1` and `modes2`.
    """

    def __init__(
        self,
        *,
        modes1: list[int],
        modes2: list[int],
        layers: list[int],
        fc_dim: int,
        in_dim: int,
        out_dim: int,
        act: str = "gelu",
        pos_dim: int = 2,
        upsample_factor: list[int],
    ) -> None:
        super().__init__()
        if not len(modes1) == len(modes2) == len(layers) - 1:
            raise ValueError("`layers` needs one entry more than `modes1` and `modes2`, which need as many each")
        self.factor, self.pos_dim, self.act = tuple(upsample_factor), pos_dim, ACTIVATIONS[act]
        self.lift = nn.Conv2d(in_dim + pos_dim, layers[0], 1)
        pairs = list(pairwise(layers))
        self.spectral = nn.ModuleList(
            [SpectralConv2d(a, b, m, n) for (a, b), m, n in zip(pairs, modes1, modes2, strict=True)]
        )
        self.local = nn.ModuleList([nn.Conv2d(a, b, 1) for a, b in pairs])
        self.widen = nn.Conv2d(layers[-1], fc_dim, 1)
        self.project = nn.Conv2d(fc_dim, out_dim, 1)

    def forward(self, coarse: Tensor) -> Tensor:
        x = F.interpolate(coarse, scale_factor=self.factor, mode="bicubic", align_corners=False)
        if self.pos_dim:
            x = torch.cat([x, self.places(x)], dim=1)
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = self.act(spectral(x) + local(x))
        return self.project(self.act(self.widen(x)))

    def places(self, x: Tensor) -> Tensor:
        """The coordinates of each point, from 0 to 1, as channels."""
        axes = [torch.linspace(0, 1, size, device=x.device) for size in x.shape[-2:]]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij")[: self.pos_dim])
        return grid.expand(x.shape[0], -1, -1, -1)
