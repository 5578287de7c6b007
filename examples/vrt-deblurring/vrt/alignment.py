"""Parallel warping: each frame gets its two neighbours' features, moved to where it has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.ops import deform_conv2d

from vrt.flow import warp


class GuidedDeformableConv(nn.Module):
    """A modulated deformable convolution whose offsets are the optical flow and what a few convolutions add to it."""

    def __init__(self, width: int, groups: int, reach: float) -> None:
        super().__init__()
        self.reach = reach
        self.weight = nn.Parameter(torch.empty(width, width, 3, 3))
        self.bias = nn.Parameter(torch.zeros(width))
        layers: list[nn.Module] = []
        for before in (2 * width + 2, width, width):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.LeakyReLU(0.1, inplace=True)]
        self.conv_offset = nn.Sequential(*layers, nn.Conv2d(width, 27 * groups, 3, padding=1))
        bound = (9 * width) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.zeros_(self.conv_offset[-1].weight)
        nn.init.zeros_(self.conv_offset[-1].bias)

    def forward(self, x: Tensor, warped: Tensor, current: Tensor, flow: Tensor) -> Tensor:
        out = self.conv_offset(torch.cat([warped, current, flow], dim=1))
        down, across, mask = out.chunk(3, dim=1)
        offset = self.reach * torch.tanh(torch.cat((down, across), dim=1))
        offset = offset + flow.flip(1).repeat(1, offset.shape[1] // 2, 1, 1)
        return deform_conv2d(x, offset, self.weight, self.bias, padding=(1, 1), mask=torch.sigmoid(mask))


def align(convolution: GuidedDeformableConv, x: Tensor, backward: Tensor, forward: Tensor) -> tuple[Tensor, Tensor]:
    """The next frame and the last frame as each frame (b, d, c, h, w) would see them; zeros past the ends."""
    frames = x.shape[1]
    following = [torch.zeros_like(x[:, -1])]
    for i in range(frames - 1, 0, -1):
        neighbour, flow = x[:, i], backward[:, i - 1]
        warped = warp(neighbour, flow)
        following.insert(0, convolution(neighbour, warped, x[:, i - 1], flow))
    preceding = [torch.zeros_like(x[:, 0])]
    for i in range(frames - 1):
        neighbour, flow = x[:, i], forward[:, i]
        warped = warp(neighbour, flow)
        preceding.append(convolution(neighbour, warped, x[:, i + 1], flow))
    return torch.stack(following, dim=1), torch.stack(preceding, dim=1)
