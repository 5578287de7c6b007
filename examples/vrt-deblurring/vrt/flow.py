"""Optical flow between neighbouring frames, and warping by it."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 6
"""SpyNet's pyramid: from 1/32 of the resolution to the full one."""


def places(x: Tensor, flow: Tensor) -> Tensor:
    """The pixel that each pixel of `x` is to be taken from: (n, h, w, 2), x before y."""
    height, width = x.shape[-2:]
    rows = torch.arange(height, dtype=x.dtype, device=x.device)
    columns = torch.arange(width, dtype=x.dtype, device=x.device)
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=2)
    return grid + flow.permute(0, 2, 3, 1)


def sample(x: Tensor, columns: Tensor, rows: Tensor, mode: str, padding: str = "zeros") -> Tensor:
    """Take the pixels at these places."""
    height, width = x.shape[-2:]
    across = 2.0 * columns / max(width - 1, 1) - 1.0
    down = 2.0 * rows / max(height - 1, 1) - 1.0
    return F.grid_sample(x, torch.stack((across, down), dim=3), mode=mode, padding_mode=padding, align_corners=True)


def warp(x: Tensor, flow: Tensor, padding: str = "zeros") -> Tensor:
    """Features or images `x` moved by `flow`, between pixels bilinearly."""
    place = places(x, flow)
    return sample(x, place[..., 0], place[..., 1], "bilinear", padding)


def four_neighbours(x: Tensor, flow: Tensor) -> Tensor:
    """The four pixels around each place, as channels: the network weighs them itself."""
    place = places(x, flow)
    ends = [(end(place[..., 0]), end(place[..., 1])) for end in (torch.floor, torch.ceil)]
    (left, top), (right, bottom) = ends
    corners = [(left, top), (left, bottom), (right, top), (right, bottom)]
    return torch.cat([sample(x, across, down, "nearest") for across, down in corners], dim=1)


class FlowRefiner(nn.Module):
    """What has to be added to a level's flow, from both images and the flow so far."""

    def __init__(self) -> None:
        super().__init__()
        widths = [8, 32, 64, 32, 16, 2]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, kernel_size=7, padding=3), nn.ReLU()]
        self.basic_module = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.basic_module(x)


class SpyNet(nn.Module):
    """The spatial pyramid network (Ranjan and Black, 2017): coarse flow first, refined at each finer level."""

    def __init__(self) -> None:
        super().__init__()
        self.basic_module = nn.ModuleList([FlowRefiner() for _ in range(LEVELS)])
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def pyramid(self, images: Tensor) -> list[Tensor]:
        """The images at each level, coarsest first."""
        levels = [(images - self.mean) / self.std]
        for _ in range(LEVELS - 1):
            levels.insert(0, F.avg_pool2d(levels[0], kernel_size=2, stride=2, count_include_pad=False))
        return levels

    def forward(self, here: Tensor, there: Tensor) -> list[Tensor]:
        """Flow from `here` to `there` at the full, half, quarter and eighth resolution."""
        height, width = here.shape[-2:]
        whole = (-(-height // 32) * 32, -(-width // 32) * 32)
        here = F.interpolate(here, size=whole, mode="bilinear", align_corners=False)
        there = F.interpolate(there, size=whole, mode="bilinear", align_corners=False)
        return self.estimate(self.pyramid(here), self.pyramid(there), (height, width), whole)

    def estimate(
        self, here: list[Tensor], there: list[Tensor], size: tuple[int, int], whole: tuple[int, int]
    ) -> list[Tensor]:
        flows: list[Tensor] = []
        flow = here[0].new_zeros(here[0].shape[0], 2, here[0].shape[2] // 2, here[0].shape[3] // 2)
        for level, refine in enumerate(self.basic_module):
            coarse = F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True) * 2.0
            missing = [have - got for have, got in zip(here[level].shape[2:], coarse.shape[2:], strict=True)]
            if any(missing):
                coarse = F.pad(coarse, [0, missing[1], 0, missing[0]], mode="replicate")
            flow = refine(torch.cat([here[level], warp(there[level], coarse, "border"), coarse], dim=1)) + coarse
            scale = 2 ** (LEVELS - 1 - level)
            if scale <= 8:
                flows.insert(0, self.resize(flow, size, whole, scale))
        return flows

    @staticmethod
    def resize(flow: Tensor, size: tuple[int, int], whole: tuple[int, int], scale: int) -> Tensor:
        """A level's flow at the size that the features of this scale have."""
        (height, width), (padded_height, padded_width) = ([n // scale for n in pair] for pair in (size, whole))
        flow = F.interpolate(flow, size=(height, width), mode="bilinear", align_corners=False)
        flow[:, 0] *= width / padded_width
        flow[:, 1] *= height / padded_height
        return flow
