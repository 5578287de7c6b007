"""As in xformers: since version 0.0.33 SwiGLU is made of PyTorch's own operators."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from xformers.ops.unbind import unbind  # type: ignore[import-not-found]


def swiglu(
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, w3: Tensor, b3: Tensor | None, *,
    op: Any = None,
) -> Tensor:  # fmt: skip
    rows = x.reshape(-1, x.shape[-1])
    hidden = F.silu(F.linear(rows, w1, b1)) * F.linear(rows, w2, b2)
    return F.linear(hidden, w3, b3).reshape(*x.shape[:-1], -1)


class SwiGLU(nn.Module):
    def __init__(
        self, in_features: int, hidden_features: int, out_features: int | None = None, bias: bool = True, *,
        _pack_weights: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.hidden_features = hidden_features or in_features
        self.w12 = nn.Linear(in_features, 2 * self.hidden_features, bias=bias) if _pack_weights else None
        if self.w12 is None:
            self.w1 = nn.Linear(in_features, self.hidden_features, bias=bias)
            self.w2 = nn.Linear(in_features, self.hidden_features, bias=bias)
        self.w3 = nn.Linear(self.hidden_features, out_features or in_features, bias=bias)
        self.in_features, self.out_features = in_features, out_features or in_features
        self.op = None

    def forward(self, x: Tensor) -> Tensor:
        return swiglu(x, *self._ordered_params())

    def _ordered_params(self) -> tuple[Any, ...]:
        if self.w12 is None:
            pairs = [(layer.weight, layer.bias) for layer in (self.w1, self.w2)]
            return *pairs[0], *pairs[1], self.w3.weight, self.w3.bias
        width = self.w12.weight.shape
        w1, w2 = unbind(self.w12.weight.view(2, width[0] // 2, width[1]), dim=0)
        b1, b2 = (None, None) if self.w12.bias is None else unbind(self.w12.bias.view(2, -1), dim=0)
        return w1, b1, w2, b2, self.w3.weight, self.w3.bias
