"""nnU-Net's networks and its loss, from what a plans file says: a U-Net of plain convolutions, or with a residual
encoder. Modules and order of operations are those of dynamic_network_architectures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_CONVOLUTIONS: dict[int, Any] = {2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED: dict[int, Any] = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_NORMS: dict[int, Any] = {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
_POOLS: dict[int, Any] = {2: nn.AvgPool2d, 3: nn.AvgPool3d}
_SMOOTH = 1e-5

Sizes = Sequence[int]


def _block(
    before: int, after: int, kernel: Sizes, stride: Sizes, *, bias: bool = True, active: bool = True
) -> nn.Sequential:
    dimensions = len(kernel)
    layers: list[nn.Module] = [
        _CONVOLUTIONS[dimensions](before, after, kernel, stride, [(size - 1) // 2 for size in kernel], bias=bias),
        _NORMS[dimensions](after, eps=1e-5, affine=True),
    ]
    return nn.Sequential(*layers, *([nn.LeakyReLU(inplace=True)] if active else []))


def _plain_stage(count: int, before: int, after: int, kernel: Sizes, stride: Sizes, *, bias: bool) -> nn.Sequential:
    ones = [1] * len(kernel)
    first = _block(before, after, kernel, stride, bias=bias)
    return nn.Sequential(first, *(_block(after, after, kernel, ones, bias=bias) for _ in range(count - 1)))


class ResidualBlock(nn.Module):
    """ResNet-D: where sizes change, the shortcut is pooled, then projected."""

    def __init__(self, before: int, after: int, kernel: Sizes, stride: Sizes, *, bias: bool) -> None:
        super().__init__()
        ones = [1] * len(kernel)
        self.first = _block(before, after, kernel, stride, bias=bias)
        self.second = _block(after, after, kernel, ones, bias=bias, active=False)
        shortcut: list[nn.Module] = []
        if any(step != 1 for step in stride):
            shortcut.append(_POOLS[len(kernel)](tuple(stride), tuple(stride)))
        if before != after:
            shortcut.append(_block(before, after, ones, ones, bias=False, active=False))
        self.shortcut = nn.Sequential(*shortcut)
        self.active = nn.LeakyReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        out: Tensor = self.second(self.first(x))
        out += shortcut
        return self.active(out)  # type: ignore[no-any-return]


class NnUNet(nn.Module):
    """Returns a segmentation of each size for deep supervision, the largest first."""

    def __init__(
        self, *, channels: int, classes: int, features: Sizes, kernels: Sequence[Sizes], strides: Sequence[Sizes],
        encoder: Sizes, decoder: Sizes, residual: bool = False, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        dimensions, ones = len(kernels[0]), [1] * len(kernels[0])
        self.stem = _block(channels, features[0], kernels[0], ones, bias=bias) if residual else nn.Identity()
        before = features[0] if residual else channels
        stages: list[nn.Module] = []
        for after, kernel, stride, count in zip(features, kernels, strides, encoder, strict=True):
            if residual:
                blocks = [ResidualBlock(before, after, kernel, stride, bias=bias)]
                blocks += [ResidualBlock(after, after, kernel, ones, bias=bias) for _ in range(count - 1)]
                stages.append(nn.Sequential(*blocks))
            else:
                stages.append(_plain_stage(count, before, after, kernel, stride, bias=bias))
            before = after
        self.encoder = nn.ModuleList(stages)
        below = list(range(len(features) - 1, 0, -1))
        self.enlarge = nn.ModuleList(
            _TRANSPOSED[dimensions](features[i], features[i - 1], tuple(strides[i]), tuple(strides[i]), bias=bias)
            for i in below
        )
        self.decoder = nn.ModuleList(
            _plain_stage(count, 2 * features[i - 1], features[i - 1], kernels[i - 1], ones, bias=bias)
            for i, count in zip(below, decoder, strict=True)
        )
        self.segment = nn.ModuleList(_CONVOLUTIONS[dimensions](features[i - 1], classes, 1) for i in below)

    def forward(self, x: Tensor) -> list[Tensor]:
        x, skips = self.stem(x), []
        for stage in self.encoder:
            x = stage(x)
            skips.append(x)
        segmentations: list[Tensor] = []
        for i, (enlarge, stage, segment) in enumerate(zip(self.enlarge, self.decoder, self.segment, strict=True)):
            x = stage(torch.cat((enlarge(x), skips[-(i + 2)]), 1))
            segmentations.append(segment(x))
        return segmentations[::-1]


def dice_and_cross_entropy(prediction: Tensor, target: Tensor) -> Tensor:
    """nnU-Net's loss of one output: MemoryEfficientSoftDiceLoss without the background, and cross-entropy."""
    dice = _dice(prediction, target)
    return nn.functional.cross_entropy(prediction, target[:, 0].long()) + dice


def _dice(prediction: Tensor, target: Tensor) -> Tensor:
    x = torch.softmax(prediction, 1)
    axes = tuple(range(2, x.ndim))
    with torch.no_grad():
        one_hot = torch.zeros(x.shape, device=x.device, dtype=torch.float32)
        one_hot.scatter_(1, target.long(), 1)
        one_hot = one_hot[:, 1:]
        wanted = one_hot.sum(axes, dtype=torch.float32)
    x = x[:, 1:]
    both = (x * one_hot).sum(axes, dtype=torch.float32)
    found = x.sum(axes, dtype=torch.float32)
    return -((2 * both + _SMOOTH) / (wanted + found + _SMOOTH).clamp_min(1e-8)).mean()
