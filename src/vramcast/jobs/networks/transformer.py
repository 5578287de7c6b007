"""A transformer encoder over embedded tokens."""

from __future__ import annotations

from torch import Tensor, nn

_HEAD = 64


class Transformer(nn.Module):
    def __init__(self, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        heads = next(count for count in range(max(1, width // _HEAD), 0, -1) if width % count == 0)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(layers)
            ]
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)  # type: ignore[no-any-return]
