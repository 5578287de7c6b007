"""Tensors that a network is given as one."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Joined(nn.Module):
    """Noisy latents and those of a picture, by their channels (InstructPix2Pix)."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, dim=self.dim)
