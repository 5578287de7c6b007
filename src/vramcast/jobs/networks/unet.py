"""A U-Net: two convolutions a scale on the way down and up, with skips between."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _twice(before: int, after: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for channels in (before, after):
        parts += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    def __init__(
        self, width: int = 64, layers: int = 4, in_channels: int = 1, out_channels: int = 1, upsample: int = 1
    ) -> None:
        """`layers`: scales that halve the image; the channels double at each."""
        super().__init__()
        channels = [width * 2**scale for scale in range(layers + 1)]
        self.upsample = nn.Upsample(scale_factor=upsample, mode="bicubic") if upsample > 1 else nn.Identity()
        self.down = nn.ModuleList(
            [_twice(a, b) for a, b in zip((in_channels, *channels[:-2]), channels[:-1], strict=True)]
        )
        self.middle = _twice(channels[-2], channels[-1])
        pairs = list(zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.widen = nn.ModuleList([nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs])
        self.up = nn.ModuleList([_twice(a, b) for a, b in pairs])
        self.last = nn.Conv2d(width, out_channels, 1)

    def forward(self, image: Tensor) -> Tensor:
        x, skips = self.upsample(image), []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for widen, up in zip(self.widen, self.up, strict=True):
            x = up(torch.cat([widen(x), skips.pop()], dim=1))
        return self.last(x)  # type: ignore[no-any-return]
