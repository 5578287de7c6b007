"""Latents as the tokens that Flux takes, patches of 2 × 2, and back."""

from __future__ import annotations

from torch import Tensor, nn


class Packed(nn.Module):
    def forward(self, latents: Tensor) -> Tensor:
        batch, channels, height, width = latents.shape
        patches = latents.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(batch, (height // 2) * (width // 2), channels * 4)


class Unpacked(nn.Module):
    """`like`: the latents whose shape the result has."""

    def forward(self, tokens: Tensor, like: Tensor) -> Tensor:
        batch, channels, height, width = like.shape
        patches = tokens.view(batch, height // 2, width // 2, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return patches.reshape(batch, channels, height, width)
