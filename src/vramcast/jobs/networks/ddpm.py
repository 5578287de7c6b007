"""The U-Net of denoising diffusion: residual blocks that know the time, attention at the coarsest scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_GROUPS = 32


class Block(nn.Module):
    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(_norm(before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1))
        self.time = nn.Linear(time, after)
        self.second = nn.Sequential(_norm(after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        inner = self.first(x) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.second(inner)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.out = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x).flatten(2)).transpose(1, 2).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        attended: Tensor = self.out(mixed).view_as(x)
        return x + attended


class DiffusionUNet(nn.Module):
    def __init__(self, width: int = 128, layers: int = 4, in_channels: int = 3, out_channels: int = 3) -> None:
        """`layers`: scales, two blocks each; the channels double twice."""
        super().__init__()
        channels = [width * min(4, 2**scale) for scale in range(layers)]
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(in_channels, width, 3, padding=1)
        pairs = list(zip((width, *channels[:-1]), channels, strict=True))
        self.down = nn.ModuleList([nn.ModuleList([Block(a, b, time), Block(b, b, time)]) for a, b in pairs])
        self.halve = nn.ModuleList([nn.Conv2d(c, c, 3, stride=2, padding=1) for c in channels[:-1]])
        self.middle = nn.ModuleList([Block(channels[-1], channels[-1], time), Block(channels[-1], channels[-1], time)])
        self.attention = Attention(channels[-1])
        ups = [(b + b, a) for a, b in reversed(pairs)]
        self.up = nn.ModuleList([nn.ModuleList([Block(a, b, time), Block(b, b, time)]) for a, b in ups])
        self.enlarge = nn.ModuleList([nn.Conv2d(b, b, 3, padding=1) for _, b in ups[:-1]])
        self.last = nn.Sequential(_norm(width), nn.SiLU(), nn.Conv2d(width, out_channels, 3, padding=1))

    def forward(self, noised: Tensor, times: Tensor) -> Tensor:
        time = self.time(self._waves(times))
        x, skips = self.first(noised), []
        for scale, blocks in enumerate(self.down):
            for block in blocks.children():
                x = block(x, time)
            skips.append(x)
            x = self.halve[scale](x) if scale < len(self.halve) else x
        x = self.middle[1](self.attention(self.middle[0](x, time)), time)
        for scale, blocks in enumerate(self.up):
            x = torch.cat([x, skips.pop()], dim=1)
            for block in blocks.children():
                x = block(x, time)
            if scale < len(self.enlarge):
                x = self.enlarge[scale](nn.functional.interpolate(x, scale_factor=2.0))
        return self.last(x)  # type: ignore[no-any-return]

    def _waves(self, times: Tensor) -> Tensor:
        half = self.width // 2
        frequencies = torch.exp(torch.arange(half, device=times.device) * (-9.21 / half))
        angles = times[:, None].float() * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS if channels % _GROUPS == 0 else 1, channels)
