"""As in flash-attn, without its variants for tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from flash_attn.ops.activations import swiglu  # type: ignore[import-not-found]
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(
        self, in_features: int, hidden_features: int | None = None, out_features: int | None = None,
        activation: Callable[[Tensor], Tensor] = F.gelu, bias1: bool = True, bias2: bool = True,
        return_residual: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = hidden_features or 4 * in_features
        self.return_residual, self.activation = return_residual, activation
        self.fc1 = nn.Linear(in_features, hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out_features or in_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        y = self.fc2(self.activation(self.fc1(x)))
        return (y, x) if self.return_residual else y


class GatedMlp(nn.Module):
    def __init__(
        self, in_features: int, hidden_features: int | None = None, out_features: int | None = None,
        activation: Callable[[Tensor], Tensor] = F.sigmoid, bias1: bool = True, bias2: bool = True,
        multiple_of: int = 128, return_residual: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        hidden = -(-(hidden_features or int(8 * in_features / 3)) // multiple_of) * multiple_of
        self.return_residual, self.activation = return_residual, activation
        self.fc1 = nn.Linear(in_features, 2 * hidden, bias=bias1, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, out_features or in_features, bias=bias2, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Any:
        y = self.fc1(x)
        if self.activation == F.sigmoid:
            y = F.glu(y, dim=-1)
        else:
            y, gate = y.chunk(2, dim=-1)
            y = swiglu(gate, y) if self.activation == F.silu else y * self.activation(gate)
        y = self.fc2(y)
        return (y, x) if self.return_residual else y
