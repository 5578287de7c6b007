"""Noise on clean latents, as training scripts of diffusion models add it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vramcast.jobs.schema import Diffusion
from vramcast.jobs.training.references import first_tensor, look_up


class Noise:
    def __init__(self, wish: Diffusion) -> None:
        self._wish = wish
        self._levels: torch.Tensor | None = None
        if wish.schedule == "noise":
            self._levels = torch.cumprod(1 - torch.linspace(1e-4, 0.02, wish.steps, device="cuda"), dim=0)

    def clean(self, batch: Mapping[str, Any], live: Mapping[str, Any]) -> torch.Tensor:
        value = look_up(self._wish.clean, {**live, **batch}, "diffusion.clean")
        return first_tensor(value, "diffusion.clean")

    def timesteps(self, clean: torch.Tensor) -> torch.Tensor:
        if self._levels is not None:
            return torch.randint(0, self._wish.steps, (clean.shape[0],), device="cuda")
        return torch.rand(clean.shape[0], device="cuda", dtype=clean.dtype)

    def noisy(self, clean: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        ones = [1] * (clean.dim() - 1)
        if self._levels is not None:
            level = self._levels[timesteps].view(-1, *ones).to(clean.dtype)
            return level.sqrt() * clean + (1 - level).sqrt() * noise
        sigma = timesteps.view(-1, *ones)
        return (1 - sigma) * clean + sigma * noise

    def objective(self, clean: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return noise if self._wish.schedule == "noise" else noise - clean
