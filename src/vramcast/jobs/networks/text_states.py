"""What text encoders returned, as the one tensor that a diffusion model takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TextStates(nn.Module):
    """States of SDXL's two encoders side by side. `chunks`: a long text went through an encoder in so many pieces,
    whose states are joined without the begin and end tokens in between, as kohya's scripts do."""

    def __init__(self, chunks: int = 1) -> None:
        super().__init__()
        self.chunks = chunks

    def forward(self, *states: Tensor) -> Tensor:
        joined = [self._joined(one) for one in states]
        return joined[0] if len(joined) == 1 else torch.cat(joined, dim=-1)

    def _joined(self, states: Tensor) -> Tensor:
        if self.chunks == 1:
            return states
        length = states.shape[1]
        row = states.reshape(-1, self.chunks * length, states.shape[2])
        inner = [row[:, start + 1 : start + length - 1] for start in range(0, row.shape[1], length)]
        return torch.cat([row[:, :1], *inner, row[:, -1:]], dim=1)
